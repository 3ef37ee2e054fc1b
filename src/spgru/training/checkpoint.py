"""Checkpoints: a safetensors file and a JSON file per step, the newest sound one always loadable.

`step-00000500.safetensors` holds the tensors. `step-00000500.json` holds everything else and the
SHA-256 of the tensors; it is written last, so a checkpoint without it does not exist. Older
checkpoints are removed only when a newer one is on the disk and has been read back. Nothing is
ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor

from spgru.runtime.storage import remove_leftovers, sha256, sync_folder, write_whole

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "clean",
    "fit",
    "load",
    "load_newest",
    "save",
    "saved_steps",
]

FORMAT = "spgru-checkpoint-1"
# A full disk, a quota, a limit on file size, a failing disk: training continues after these.
_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, written or used; the message is one sentence."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped, or one could not be written while training continues."""


@dataclass(frozen=True)
class Checkpoint:
    """A training run after `step` steps.

    Neither the schedule nor the random state need a place of their own: the learning rate is a
    function of the step, and random numbers are drawn afresh for every step from seed and step
    (see `spgru.training.loop`).
    """

    step: int
    config: dict[str, Any]
    """`stored_form` of the configuration"""
    data: dict[str, Any]
    """`state_dict` of the data: its position and what determines it"""
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    """"name of the parameter/name of the moment" -> tensor"""
    origin: dict[str, str] = field(default_factory=dict)
    """`spgru.runtime.provenance.origin` of the process that wrote it; empty if not recorded"""


def _paths(folder: Path, step: int) -> tuple[Path, Path]:
    stem = f"step-{step:08d}"
    return folder / f"{stem}.safetensors", folder / f"{stem}.json"


def saved_steps(folder: Path) -> list[int]:
    """Steps with a checkpoint, oldest first; not checked for damage."""
    matches = (re.fullmatch(r"step-(\d{8,})\.json", path.name) for path in folder.glob("*.json"))
    return sorted(int(match[1]) for match in matches if match)


# -- writing --------------------------------------------------------------------------------------


def save(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint, read it back, then remove all but the newest `keep`.

    On a full disk older checkpoints make room, all but the newest sound one, and the write is tried
    once more.

    Raises:
        CheckpointError: it could not be written; those written before are untouched.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _write(folder, checkpoint)
    except OSError as error:
        if error.errno not in _DISK_TROUBLE:
            raise _unwritable(folder, checkpoint.step, error) from error
        _make_room(folder)
        try:
            path = _write(folder, checkpoint)
        except OSError as again:
            raise _unwritable(folder, checkpoint.step, again) from again
    # Checkpoints of later steps are from a run that was rolled back.
    steps = saved_steps(folder)
    kept = [step for step in steps if step <= checkpoint.step][-keep:]
    _remove(folder, [step for step in steps if step not in kept])
    return path


def _unwritable(folder: Path, step: int, error: OSError) -> CheckpointError:
    earlier = [old for old in saved_steps(folder) if old != step]
    rest = f"the checkpoint of step {earlier[-1]} is intact" if earlier else "there is none before"
    return CheckpointError(
        f"the checkpoint of step {step} could not be written to {folder} "
        f"({error.strerror or error}); {rest}; free space there or choose another output"
    )


def _write(folder: Path, checkpoint: Checkpoint) -> Path:
    tensors_path, json_path = _paths(folder, checkpoint.step)
    tensors = {f"model/{name}": tensor for name, tensor in checkpoint.model.items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in checkpoint.optimizer.items()}
    data = safetensors.torch.save({name: _plain(tensor) for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    content = {
        "format": FORMAT,
        "step": checkpoint.step,
        "tensors": {"file": tensors_path.name, "bytes": len(data), "sha256": digest},
        "config": checkpoint.config,
        "data": checkpoint.data,
        "origin": checkpoint.origin,
    }
    document = content | {"sha256": _digest(content)}
    try:
        write_whole(tensors_path, data)
        if sha256(tensors_path) != digest:
            raise OSError(errno.EIO, "what was read back is not what was written")
        write_whole(json_path, (json.dumps(document, indent=2) + "\n").encode())
    except OSError:
        clean(folder)
        raise
    return json_path


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous()


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _remove(folder: Path, steps: list[int]) -> None:
    for step in steps:
        tensors_path, json_path = _paths(folder, step)
        json_path.unlink(missing_ok=True)
        tensors_path.unlink(missing_ok=True)
    if steps:
        sync_folder(folder)


def clean(folder: Path) -> None:
    """Remove incomplete files of a write that was interrupted."""
    remove_leftovers(folder)
    known = {_paths(folder, step)[0] for step in saved_steps(folder)}
    for path in folder.glob("step-*.safetensors"):
        if path not in known:
            path.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    steps = saved_steps(folder)
    sound = next((step for step in reversed(steps) if _is_sound(_paths(folder, step)[1])), None)
    if sound is not None:
        _remove(folder, [step for step in steps if step != sound])


# -- reading --------------------------------------------------------------------------------------


def load(path: Path) -> Checkpoint:
    """Read one checkpoint by its JSON file and verify every byte.

    Raises:
        CheckpointError: it is missing, damaged, or of another format.
    """
    content = _read_json(path)
    entry = content["tensors"]
    tensors_path = path.with_name(entry["file"])
    try:
        data = tensors_path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{tensors_path} cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"{tensors_path} is damaged ({len(data)} bytes of {entry['bytes']}, SHA-256 differs)"
        )
    try:
        tensors = read_tensors(data)
    except SafetensorError as error:  # possible only if the SHA-256 in the JSON was changed too
        raise CheckpointError(f"{tensors_path} is not a safetensors file ({error})") from error
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    origin = content.get("origin", {})
    return Checkpoint(content["step"], content["config"], content["data"], **parts, origin=origin)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this version ({FORMAT})")
    if document.pop("sha256", None) != _digest(document):
        raise CheckpointError(f"{path} is damaged (SHA-256 differs)")
    return document


def _is_sound(path: Path) -> bool:
    try:
        entry = _read_json(path)["tensors"]
        digest: str = entry["sha256"]
        return sha256(path.with_name(entry["file"])) == digest
    except (CheckpointError, OSError):
        return False


def load_newest(folder: Path) -> Checkpoint:
    """The newest sound checkpoint of a folder; damaged ones are skipped with a warning.

    Raises:
        CheckpointError: there is no sound one.
    """
    steps = saved_steps(folder)
    damaged = []
    for step in reversed(steps):
        try:
            checkpoint = load(_paths(folder, step)[1])
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        for problem in damaged:
            warnings.warn(
                f"{problem}; falling back to step {step}", CheckpointWarning, stacklevel=2
            )
        return checkpoint
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} is sound: {'; '.join(damaged)}")
    raise CheckpointError(f"there is no checkpoint in {folder}; train first, or correct the path")


@torch.no_grad()
def fit(target: Mapping[str, Tensor], source: Mapping[str, Tensor], what: str) -> None:
    """Copy `source` into the tensors of `target` in place, all of them or none.

    Raises:
        CheckpointError: names or shapes differ; nothing has been copied then.
    """
    remedy = "use the configuration it was made with"
    for name in (*target, *source):
        if name not in source:
            raise CheckpointError(f"{what} lacks {name}, which the model has; {remedy}")
        if name not in target:
            raise CheckpointError(f"{what} holds {name}, which the model lacks; {remedy}")
        if source[name].shape != target[name].shape:
            raise CheckpointError(
                f"{what} has {name} of shape {tuple(source[name].shape)}, but the model's is "
                f"{tuple(target[name].shape)}; {remedy}"
            )
    for name, tensor in target.items():
        tensor.copy_(source[name])
