from __future__ import annotations

import errno
import json
import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from spgru.runtime import storage
from spgru.training import checkpoint as checkpoints
from spgru.training.checkpoint import Checkpoint, CheckpointError, CheckpointWarning


def make(step: int, size: int = 50) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(size, 4, generator=generator)
    weights[0] = -torch.inf  # the log-variance of a certain weight
    return Checkpoint(
        step,
        {"steps": 9, "model": {"hidden_size": 3}, "lr": 1e-5, "initial": None},
        {"position": step, "seed": 7, "start": [0.1, 0.2]},
        {"a.mean": weights, "count": torch.tensor(step)},
        {"a.mean/exp_avg": weights.t() * 2, "a.mean/step": torch.tensor(float(step))},
        {"commit": "abc123", "hardware": "CPU"},
    )


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert (a.step, a.config, a.data, a.origin) == (b.step, b.config, b.data, b.origin)
    for mine, other in ((a.model, b.model), (a.optimizer, b.optimizer)):
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            assert tensor.dtype == other[name].dtype
            assert torch.equal(tensor, other[name])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path / "new" / "folder", make(3))
    assert_same(checkpoints.load(path), make(3))
    assert_same(checkpoints.load_newest(path.parent), make(3))
    assert names(path.parent) == ["step-00000003.json", "step-00000003.safetensors"]


def test_equal_states_are_equal_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        checkpoints.save(tmp_path / folder, make(3))
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        checkpoints.save(tmp_path, make(step), keep=2)
    assert checkpoints.saved_steps(tmp_path) == [6, 8]
    # Going on from step 4, what came after it belongs to no one.
    checkpoints.save(tmp_path, make(5), keep=2)
    assert checkpoints.saved_steps(tmp_path) == [5]
    assert len(names(tmp_path)) == 2


def test_there_is_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*; train first"):
            checkpoints.load_newest(folder)


def damage(path: Path, how: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        position = rng.randrange(len(data))
        data[position] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[rng.randrange(len(data)) :]
    elif how == "empty":
        data.clear()
    elif how == "zeros":
        data[:] = bytes(len(data))
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("ending", ["safetensors", "json"])
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "zeros", "missing"])
def test_damage_falls_back_to_the_one_before(tmp_path: Path, how: str, ending: str) -> None:
    rng = random.Random(0)
    for attempt in range(40 if how in ("flip", "cut") else 1):
        folder = tmp_path / str(attempt)
        for step in (1, 2):
            checkpoints.save(folder, make(step))
        damage(folder / f"step-00000002.{ending}", how, rng)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = checkpoints.load_newest(folder)
        if how in ("flip", "cut") and ending == "json" and loaded.step == 2:
            # White space between two values may change without harm, and the last be lost.
            assert_same(loaded, make(2))
            continue
        assert_same(loaded, make(1))
        if how != "missing" or ending != "json":  # without its JSON it never was a checkpoint
            (warning,) = caught
            assert warning.category is CheckpointWarning
            assert str(warning.message).endswith("; falling back to step 1")
            assert "step-00000002" in str(warning.message)


def test_all_are_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, make(step))
        (tmp_path / f"step-0000000{step}.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is sound: .*00002.*; .*00001"):
        checkpoints.load_newest(tmp_path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = checkpoints.save(tmp_path, make(1))
    bomb = pickle.dumps(Bomb())
    path.with_suffix(".safetensors").write_bytes(bomb)
    content = json.loads(path.read_text())
    del content["sha256"]
    content["tensors"]["sha256"] = storage.sha256(path.with_suffix(".safetensors"))
    path.write_text(json.dumps(content | {"sha256": checkpoints._digest(content)}))
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        checkpoints.load(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "spgru-checkpoint-9"}', "3"])
def test_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step-00000001.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="is not a checkpoint of this version"):
        checkpoints.load(path)


# -- a full disk ----------------------------------------------------------------------------------


class FullDisk:
    """`os.write` on a disk with so many bytes left; removing files gives bytes back."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder, self.capacity, self.real = folder, capacity, os.write

    def __call__(self, descriptor: int, data: bytes | memoryview) -> int:
        used = sum(path.stat().st_size for path in self.folder.iterdir())
        left = self.capacity - used
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(descriptor, data[:left])  # a short write, as the real thing makes


def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of bytes that still fit, in steps down to a single one."""
    checkpoints.save(tmp_path, make(1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    used = sum(map(len, before.values()))
    # Both files are alike in size, the JSON coming last.
    room = [0, 1, 7, 100, used // 2, used - 500, used - 2, used - 1]
    for left in room:
        with monkeypatch.context() as patch:
            patch.setattr(storage.os, "write", FullDisk(tmp_path, used + left))
            message = (
                "step 2 could not be written to .*No space left.*; the checkpoint of step 1 is"
            )
            with pytest.raises(CheckpointError, match=message):
                checkpoints.save(tmp_path, make(2))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "write", FullDisk(tmp_path, 2 * used))
        checkpoints.save(tmp_path, make(2))
    assert_same(checkpoints.load_newest(tmp_path), make(2))


def test_older_checkpoints_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk for two checkpoints is enough to keep going, though there are two already."""
    for step in (1, 2):
        checkpoints.save(tmp_path, make(step))
    used = sum(path.stat().st_size for path in tmp_path.iterdir())
    monkeypatch.setattr(storage.os, "write", FullDisk(tmp_path, used + 100))
    checkpoints.save(tmp_path, make(3))
    assert checkpoints.saved_steps(tmp_path) == [2, 3]
    assert_same(checkpoints.load_newest(tmp_path), make(3))


def test_room_is_never_made_of_the_last_sound_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        checkpoints.save(tmp_path, make(step))
    (tmp_path / "step-00000002.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr(storage.os, "write", FullDisk(tmp_path, 0))
    with pytest.raises(CheckpointError):
        checkpoints.save(tmp_path, make(3))
    assert_same(checkpoints.load_newest(tmp_path), make(1))


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_any_failing_call_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    checkpoints.save(tmp_path, make(1))

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, call, fail)
        with pytest.raises(CheckpointError, match="the checkpoint of step 1 is intact"):
            checkpoints.save(tmp_path, make(2))
    assert_same(checkpoints.load_newest(tmp_path), make(1))
    assert len(names(tmp_path)) == 2


def test_bytes_reach_the_disk_before_their_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power failure would show: contents synced, then renamed, then the folder synced."""
    calls: list[str] = []

    def noting(name: str) -> Any:
        real = getattr(os, name)

        def call(first: Any, *rest: Any) -> Any:
            calls.append(f"{name} folder" if first == tmp_path else name)
            return real(first, *rest)

        return call

    for name in ("open", "write", "fsync", "close", "replace"):
        monkeypatch.setattr(storage.os, name, noting(name))
    storage.write_whole(tmp_path / "file", b"bytes")
    into_file = ["open", "write", "fsync", "close", "replace"]
    assert calls == [*into_file, "open folder", "fsync", "close"]


def test_a_lying_disk_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(tmp_path, make(1))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "write", lambda fd, data: real(fd, bytes(len(data))))
        with pytest.raises(CheckpointError, match="read back is not what was written"):
            checkpoints.save(tmp_path, make(2))
    assert_same(checkpoints.load_newest(tmp_path), make(1))


# -- fitting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": torch.ones(2)}, "it lacks b, which the model has; use the configuration"),
        ({"a": torch.ones(2), "b": torch.ones(1), "c": torch.ones(1)}, "it holds c, which the mod"),
        ({"a": torch.ones(3), "b": torch.ones(1)}, r"it has a of shape \(3,\), but .* is \(2,\)"),
    ],
)
def test_what_does_not_fit_changes_nothing(source: dict[str, Any], message: str) -> None:
    target = {"a": torch.zeros(2), "b": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=message):
        checkpoints.fit(target, source, "it")
    assert not any(bool(tensor.any()) for tensor in target.values())
