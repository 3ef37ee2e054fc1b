"""Weights alone, for sharing: one safetensors file with its configuration in the metadata."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor

from spgru.calibration.state import make_room, uncalibrate
from spgru.checks import check_choice
from spgru.nn.weight import from_old_layout, has_old_layout
from spgru.runtime.errors import ConfigError
from spgru.runtime.storage import write_whole
from spgru.training import checkpoint as checkpoints
from spgru.training.checkpoint import Checkpoint, CheckpointError
from spgru.training.compact import compact, is_spread_of_matrix, restored
from spgru.training.config import TrainConfig
from spgru.training.means import is_plain_file, load_means
from spgru.training.model import make_model
from spgru.training.packaged import find_weights
from spgru.training.schema import from_mapping

__all__ = [
    "CHECKPOINTS", "ExportPrecision", "Loaded", "check_export", "export", "load_exported",
    "load_model", "load_weights",
]  # fmt: skip

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints inside that of a run."""
FORMAT, COMPACT_FORMAT = "spgru-weights-1", "spgru-weights-2"
"""The second has some tensors in 8 bits, which older versions would take for their values."""
ExportPrecision = Literal["float32", "float16", "compact"]


@dataclass(frozen=True)
class Loaded:
    """A model with trained weights."""

    model: Any
    """in evaluation mode, float32, on the CPU"""
    config: TrainConfig
    """how it was trained"""
    step: int
    """after how many steps"""
    origin: dict[str, str] = field(default_factory=dict)
    """commit, torch and hardware of its training; empty if not recorded"""


def export(
    source: str | Path,
    path: str | Path,
    precision: ExportPrecision = "float32",
    overwrite: bool = False,
    calibration: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the weights of any source that `load_model` takes to `path`.

    With `calibration`, what `spgru.calibration.calibration_state` gives for the same network, they
    carry that in place of their own.

    `"float16"` halves the file. It was chosen over bfloat16 because weights and spreads (logs of
    ratios of variances) need digits, not range: at spreads of -8 to 8 float16 is off by at most
    0.4 % of the variance, bfloat16 by 3 %, and weights by 0.05 % against 0.4 %. A certain weight's
    spread of minus infinity is kept. Whatever does not fit is refused. `"compact"` is float16 with
    spreads of matrices in 8 bits (`spgru.training.compact`), three eighths of float32.
    """
    check_choice("precision", precision, get_args(ExportPrecision))
    path = check_export(path, overwrite)
    stored = _stored(source)
    if calibration is not None:
        stored = replace(stored, model=_calibrated(stored, str(source), calibration))
    eight_bits, ranges = compact(
        {n: t for n, t in stored.model.items() if is_spread_of_matrix(n, t)}
        if precision == "compact"
        else {}
    )
    tensors = {
        name: eight_bits[name] if name in eight_bits else _narrow(name, tensor, precision)
        for name, tensor in stored.model.items()
    }
    metadata = {
        "format": COMPACT_FORMAT if eight_bits else FORMAT,
        **({"eight_bits": ranges} if eight_bits else {}),
        "config": json.dumps(stored.config, sort_keys=True),
        "step": str(stored.step),
        "origin": json.dumps(stored.origin, sort_keys=True),
        "precision": precision,
        "sha256": _payload_digest(safetensors.torch.save(tensors)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, safetensors.torch.save(tensors, metadata))
    return path


def check_export(path: str | Path, overwrite: bool) -> Path:
    """Refuse a path that cannot be written to."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path} must end in .safetensors")
    if path.exists() and not overwrite:
        raise CheckpointError(f"{path} exists; remove it, choose another name, or overwrite it")
    return path


def _calibrated(
    stored: Checkpoint, source: str, calibration: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    model = _loaded(stored, source).model
    uncalibrate(model)
    tensors = {**model.state_dict(), **{name: part.cpu() for name, part in calibration.items()}}
    make_room(model, tensors)
    checkpoints.fit(model.state_dict(), tensors, "calibration")
    return tensors


def _narrow(name: str, tensor: Tensor, precision: ExportPrecision) -> Tensor:
    # A single number, such as the log of a starting variance, is not worth rounding; nor are the
    # few of a scale, among them variances of pixels that would round to 0.
    is_kept = tensor.ndim == 0 or name.rpartition(".")[0].endswith("_scale")
    if precision == "float32" or not tensor.is_floating_point() or is_kept:
        return tensor.contiguous()
    narrow = tensor.to(torch.float16)
    if bool((narrow.isinf() != tensor.isinf()).any()):
        raise CheckpointError(f"{name} has values beyond float16 (65504); export it in float32")
    return narrow.contiguous()


def _payload_digest(data: bytes) -> str:
    """SHA-256 of the tensors' bytes, which follow a header whose length comes first."""
    start = 8 + int.from_bytes(data[:8], "little")
    return hashlib.sha256(memoryview(data)[start:]).hexdigest()


# -- reading --------------------------------------------------------------------------------------


def load_exported(path: str | Path) -> Any:
    """The model in an exported file, or a packaged one by name, in float32 on the CPU, ready to
    `predict`.
    """
    return _loaded(_stored(path), str(path)).model


def load_model(source: str | Path) -> Loaded:
    """A trained model from a run's folder (its newest sound checkpoint), a checkpoint's JSON file,
    an exported file, or the package, by a name of `packaged_names`.
    """
    return _loaded(_stored(source), str(source))


def load_weights(model: Any, source: str | Path) -> None:
    """Put the weights of any such source into a model of the same shapes, to go on with them.

    A calibration belongs to weights as they are, and stays behind.

    A plain safetensors file gives the means alone, see `spgru.training.means`.
    """
    path = find_weights(source)
    if is_plain_file(path):
        load_means(model, path)
        return
    stored = _stored(source).model
    make_room(model, stored)
    checkpoints.fit(model.state_dict(), stored, str(source))
    uncalibrate(model)


def _loaded(stored: Checkpoint, source: str) -> Loaded:
    config = _config(stored, source)
    model = make_model(config.model)
    make_room(model, stored.model)
    checkpoints.fit(model.state_dict(), stored.model, source)
    return Loaded(model.eval(), config, stored.step, stored.origin)


def _stored(source: str | Path) -> Checkpoint:
    """What any source holds, its weights in today's layout."""
    stored = _read(source)
    if not has_old_layout(stored.model):
        return stored
    starts = make_model(_config(stored, str(source)).model).state_dict()
    return replace(stored, model=from_old_layout(stored.model, starts))


def _config(stored: Checkpoint, source: str) -> TrainConfig:
    try:
        return from_mapping(TrainConfig, stored.config)
    except ConfigError as error:
        raise CheckpointError(
            f"the configuration in {source} is of another version ({error})"
        ) from error


def _read(source: str | Path) -> Checkpoint:
    path = find_weights(source)
    if path.is_dir():
        folder = path / CHECKPOINTS
        return checkpoints.load_newest(folder if folder.is_dir() else path)
    if path.suffix == ".json":
        return checkpoints.load(path)
    # The JSON file beside an export may be something else, such as its scores.
    partner = path.with_suffix(".json")
    is_checkpoint = re.fullmatch(r"step-\d{8,}\.safetensors", path.name) is not None
    if is_checkpoint and partner.exists():
        return checkpoints.load(partner)
    return _read_export(path)


def _read_export(path: Path) -> Checkpoint:
    try:
        data = path.read_bytes()
        tensors = read_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, or not a safetensors file ({error})") from error
    metadata: Mapping[str, str] = header.get("__metadata__", {})
    if metadata.get("format") not in (FORMAT, COMPACT_FORMAT):
        raise CheckpointError(
            f"{path} is not an export of this version ({FORMAT}); export it again"
        )
    if metadata.get("sha256") != _payload_digest(data):
        raise CheckpointError(f"{path} is damaged (SHA-256 differs); copy or export it again")
    wide = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    wide |= restored(tensors, metadata.get("eight_bits", "{}"))
    config = json.loads(metadata["config"])
    origin = json.loads(metadata.get("origin", "{}"))
    return Checkpoint(int(metadata["step"]), config, {}, wide, {}, origin)
