"""A trained network with its calibration: its own, one kept from an earlier study, or a new fit."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from spgru.calibration import calibration_state, is_calibrated, load_calibration, uncalibrate
from spgru.calibration.truth import device_of
from spgru.models import VideoModel
from spgru.runtime.storage import write_whole
from spgru.studies.scales import Scale
from spgru.training import Loaded
from spgru.training.calibration import calibrate_as_trained

__all__ = [
    "EXPLANATION", "FILE", "OWN", "PICTURED", "Calibrated", "calibrate_copy",
    "take_out_calibration",
]  # fmt: skip

FILE = "calibration.safetensors"
"""Name of a calibration in the folder of a run."""
OWN = "came with it"
"""What is said of a network that has its calibration from elsewhere."""

EXPLANATION = (
    "Calibrated: after `spgru.calibrate`, on other sequences, of the kind that the network was "
    "trained on; the table of networks at the end says in which form."
)
PICTURED = "; uncertainty calibrated"
"""Both for reports; the second ends the caption of a picture."""


class Calibrated(NamedTuple):
    """A network with its calibration."""

    model: VideoModel
    form: str
    """what the fit chose, "plain" if nothing was better, or `OWN`"""


def take_out_calibration(model: nn.Module) -> Calibrated | None:
    """Make a network plain that came with a calibration; the copy that keeps it, None if none."""
    if not isinstance(model, VideoModel) or not is_calibrated(model):
        return None
    found = Calibrated(copy.deepcopy(model), OWN)
    uncalibrate(model)
    return found


def calibrate_copy(
    loaded: Loaded, scale: Scale, mnist: str | None, kept: Path | None
) -> Calibrated | None:
    """A copy that is calibrated, of a network in the plain closed form.

    None for a network that is not of `spgru.models`: there is nothing to calibrate in it.

    Args:
        scale: says how large the fit is
        mnist: folder with your own MNIST files; None for those of the training
        kept: file that the fit is read from, or written to if it is not there or belongs to other
            weights or to a fit of another size; None to keep nothing
    """
    if not isinstance(loaded.model, VideoModel):
        return None
    model = copy.deepcopy(loaded.model)
    sizes: dict[str, Any] = {
        "sequences": scale.calibration_sequences,
        "draws": scale.calibration_draws,
        "steps": scale.calibration_steps,
    }
    belongs = {f"fit_{name}": str(size) for name, size in sizes.items()}
    belongs |= {"step": str(loaded.step), "weights": _digest(model)}
    if kept is not None and (form := _read(kept, belongs, model)) is not None:
        return Calibrated(model, form)
    data = loaded.config.data
    if mnist is not None:
        data = replace(data, directory=mnist)
    form = calibrate_as_trained(model, data, **sizes, progress=False).chosen
    if kept is not None:
        _write(kept, {**belongs, "form": form}, calibration_state(model))
    return Calibrated(model, form)


def _digest(model: nn.Module) -> str:
    """SHA-256 of the weights: a run that was begun anew may have the same number of steps."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _read(path: Path, belongs: Mapping[str, str], model: VideoModel) -> str | None:
    """Give the model the calibration of a file; the form that it has, None if it does not fit."""
    where = device_of(model)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).to(where) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None  # not there, or damaged: a new fit takes its place
    if {name: metadata.get(name) for name in belongs} != belongs:
        return None
    load_calibration(model, {**model.state_dict(), **tensors})
    form: str = metadata["form"]
    return form


def _write(path: Path, metadata: dict[str, str], state: Mapping[str, Tensor]) -> None:
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    write_whole(path, safetensors.torch.save(tensors, metadata))
