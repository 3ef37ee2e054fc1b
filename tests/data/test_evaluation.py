from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from spgru.data import MovingMNIST, MovingMNISTTest, evaluation


@pytest.fixture(scope="module")
def regenerated():
    return MovingMNISTTest()


def entropy(p: Tensor) -> Tensor:
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


def test_regenerated_set_is_the_pinned_one(regenerated, full):
    assert regenerated.source == "regenerated"
    assert len(regenerated) == 10_000
    assert regenerated.sha256(500) == evaluation.SHA256_FIRST_500
    if full:
        regenerated.verify()


def test_a_changed_set_is_refused(regenerated, monkeypatch):
    monkeypatch.setattr(evaluation, "SEQUENCES", 3)
    found = regenerated.sha256(3)
    with pytest.raises(RuntimeError, match=rf"has SHA-256 {found} but .* is pinned; do not"):
        regenerated.verify()


def test_every_test_digit_is_shown_exactly_twice(regenerated):
    data = MovingMNIST(10_000, split="test", seed=evaluation.SEED, frames=1)
    layout = data.layout(0)
    assert (np.bincount(layout.digits.ravel(), minlength=10_000) == 2).all()
    assert (layout.digits[:, 0] != layout.digits[:, 1]).all()


def test_regenerated_set_follows_the_protocol(regenerated, paste):
    data = MovingMNIST(2, split="test", seed=evaluation.SEED)
    slow = paste(data.images.numpy(), data.layout(4999))
    assert np.array_equal(regenerated.sequences(9998, 10_000).numpy(), slow)


def test_target_entropy_per_frame(regenerated, full):
    """86.3 nats; no predictor of frames 11 to 20 scores below it."""
    count = 10_000 if full else 500
    values = []
    for start in range(0, count, 250):
        frames = regenerated.sequences(start, start + 250)[10:].float() / 255
        values.append(entropy(frames).sum(dim=(2, 3)).mean(dim=0))
    per_sequence = torch.cat(values)
    error = per_sequence.std() / count**0.5
    assert (per_sequence.mean() - 86.35).abs() < 4 * error


def test_constant_per_pixel_mean_scores_674(regenerated, full):
    """Fitted to the training split at reduced size, to the whole set itself with --full."""
    count = 10_000 if full else 500
    source = regenerated.batches(250) if full else MovingMNIST(250, seed=1)
    total = torch.zeros(64, 64, dtype=torch.float64)
    for _, frames in zip(range(max(count, 1000) // 250), source, strict=False):
        total += frames[10:].double().sum(dim=(0, 1))
    # The mean's own sampling error must not make a pixel impossible.
    mean = (total / (10 * max(count, 1000))).clamp(1e-5, 1 - 1e-5)
    scores = []
    for start in range(0, count, 250):
        y = regenerated.sequences(start, start + 250)[10:].double() / 255
        cross = -(y * mean.log() + (1 - y) * (-mean).log1p()).sum(dim=(2, 3))
        scores.append(cross.mean(dim=0))
    per_sequence = torch.cat(scores)
    error = per_sequence.std() / count**0.5
    assert (per_sequence.mean() - 674).abs() < 4 * error


def test_access_by_item_slice_and_batch_agree(regenerated):
    raw = regenerated.sequences(9_990, 10_000)
    assert raw.shape == (20, 10, 64, 64)
    assert raw.dtype == torch.uint8
    scaled = raw.float() / 255
    for index in (9_990, 9_999, -1):
        item = regenerated[index]
        assert item.shape == (20, 64, 64)
        assert torch.equal(item, scaled[:, index % 10_000 - 9_990])


def test_batches_cover_the_set_in_order(regenerated, monkeypatch):
    monkeypatch.setattr(evaluation, "SEQUENCES", 10)
    batches = list(regenerated.batches(4, dtype=torch.float64))
    assert [batch.shape[1] for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat(batches, dim=1), regenerated.sequences(0, 10).double() / 255)


def test_bad_arguments(regenerated):
    with pytest.raises(IndexError, match=r"index is 10000; pass one from 0 to 9999"):
        regenerated[10_000]
    with pytest.raises(ValueError, match=r"stop is 10001; the set ends at 10000"):
        regenerated.sequences(0, 10_001)
    with pytest.raises(ValueError, match=r"stop is 3; pass a whole number of at least 4"):
        regenerated.sequences(3, 3)
    with pytest.raises(ValueError, match=r"batch_size is 0; pass"):
        next(regenerated.batches(0))


@pytest.fixture(scope="module")
def look_alike(tmp_path_factory):
    """A file of the official shape: zeros, which take no room on disk, and one sequence."""
    path = tmp_path_factory.mktemp("official") / "mnist_test_seq.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (20, 10_000, 64, 64))
    array[:, 17] = np.arange(20, dtype=np.uint8)[:, None, None]
    array.flush()
    yield path
    path.unlink()


def test_official_file_is_read_where_its_md5_is_right(look_alike, monkeypatch):
    with look_alike.open("rb") as file:
        md5 = hashlib.file_digest(file, "md5").hexdigest()
    monkeypatch.setattr(evaluation, "OFFICIAL_MD5", md5)
    official = MovingMNISTTest(look_alike)
    assert official.source == "official"
    assert len(official) == 10_000
    expected = torch.arange(20, dtype=torch.uint8).view(20, 1, 1).expand(20, 64, 64)
    assert torch.equal(official.sequences(16, 18)[:, 1], expected)
    assert torch.equal(official[17], expected.float() / 255)
    assert not official[18].any()
    pickled = pickle.dumps(official)
    assert len(pickled) < 10_000  # a path, not the file's 819 MB
    assert torch.equal(pickle.loads(pickled)[17], official[17])


def test_look_alike_is_refused(look_alike):
    with pytest.raises(
        ValueError, match=r"path .* has MD5 [0-9a-f]{32} but the official .* leave path out"
    ):
        MovingMNISTTest(look_alike)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path .*gone.npy' is not a file; pass the off"):
        MovingMNISTTest(tmp_path / "gone.npy")
    file = tmp_path / "mnist_test_seq.npy"
    for content in (b"", b"<html>", b"\x93NUMPY\x01\x00"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"not a readable .npy file .*leave path out"):
            MovingMNISTTest(file)
    np.save(file, np.zeros((20, 3, 64, 64), dtype=np.uint8))
    with pytest.raises(
        ValueError, match=r"holds uint8 \[20, 3, 64, 64\], not uint8 \[20, 10000, 64, 64\]"
    ):
        MovingMNISTTest(file)
    with file.open("wb") as target:
        np.savez(target, a=np.zeros(3))
    with pytest.raises(ValueError, match=r"holds an archive, not uint8"):
        MovingMNISTTest(file)
