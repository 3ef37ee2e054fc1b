from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from spgru.data import MovingMNIST, MovingMNISTTest
from spgru.metrics import similarity_per_frame
from spgru.models import ModelConfig
from spgru.training import DataConfig, TrainConfig, score
from spgru.training.evaluation import CONTROLLED_SETS, Score, evaluation_sets, make_data
from spgru.training.export import Loaded
from spgru.training.inference import predict_file, read_sequences
from spgru.training.model import DropoutConfig, make_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["predictor", "autoencoder", "composite"])
def test_scores_are_their_definitions(kind: Any) -> None:
    """In float64 by NumPy, over all sequences at once, while `score` sees them in parts."""
    model = make_model(ModelConfig(kind=kind, hidden_size=8))
    frames = MovingMNIST(7).batch(0)
    found = score(model, frames.split([3, 3, 1], 1))
    pixels = model.predict(frames[:10])
    mean, var = pixels.mean.double().numpy(), pixels.var.double().numpy()
    target = (frames[:10].flip(0) if kind == "autoencoder" else frames[10:]).double().numpy()
    entropy = -(target * np.log(mean) + (1 - target) * np.log1p(-mean))
    error = ((mean - target) ** 2).sum((0, 2, 3)) / 10
    variance = var.sum((0, 2, 3)) / 10
    assert found.cross_entropy == pytest.approx(entropy.sum((2, 3)).mean(), rel=1e-6)
    assert found.squared_error == pytest.approx(error.mean(), rel=1e-6)
    assert found.variance == pytest.approx(variance.mean(), rel=1e-6)
    assert found.correlation == pytest.approx(scipy.stats.spearmanr(variance, error).statistic)
    assert found.sequences == 7
    absolute = np.abs(mean - target).sum((2, 3))  # (frames, sequences)
    assert found.absolute_error == pytest.approx(absolute.mean(), rel=1e-6)
    assert found.by_frame["absolute_error"] == pytest.approx(absolute.mean(1), rel=1e-6)
    assert found.by_frame["cross_entropy"] == pytest.approx(entropy.sum((2, 3)).mean(1), rel=1e-6)
    # Frames of a sequence are no independent samples: the error is that of means over its frames.
    assert found.standard_errors["absolute_error"] == pytest.approx(
        scipy.stats.sem(absolute.mean(0)), rel=1e-6
    )
    assert found.by_frame_errors["absolute_error"] == pytest.approx(
        scipy.stats.sem(absolute, axis=1), rel=1e-6
    )
    likeness = [similarity_per_frame(pixels, torch.tensor(target), r).mean() for r in (1.0, 2.0)]
    assert found.plain_similarity == pytest.approx(likeness[0].item(), rel=1e-6)
    assert found.similarity == pytest.approx(likeness[1].item(), rel=1e-6)
    assert found.similarity > found.plain_similarity
    assert set(found.single_numbers()) == {*Score.MEASURES, "correlation", "sequences"}


def test_one_sequence_has_no_correlation() -> None:
    found = score(make_model(ModelConfig(hidden_size=4)), [MovingMNIST(1).batch(0)])
    assert np.isnan(found.correlation)
    assert np.isnan(found.standard_errors["variance"])


def test_the_two_digit_set() -> None:
    ((name, batches),) = evaluation_sets("two-digits", 5, 2, CPU)
    assert name == "two digits, regenerated"
    frames = torch.cat(list(batches), 1)
    assert torch.equal(frames, next(MovingMNISTTest().batches(5)))
    with pytest.raises(ValueError, match="sequences is 10001, but the test set has 10000"):
        next(next(evaluation_sets("two-digits", 10_001, 2, CPU))[1])


def test_the_controlled_sets() -> None:
    sets = {name: list(batches) for name, batches in evaluation_sets("controlled", 3, 2, CPU)}
    assert len(sets) == sum(map(len, CONTROLLED_SETS.values()))
    assert all([part.shape[1] for part in parts] == [2, 1] for parts in sets.values())
    trained = [torch.cat(sets[name], 1) for name in ("angle 20", "speed 0.05", "noise 0")]
    assert torch.equal(trained[0], trained[1])
    assert torch.equal(trained[0], trained[2])
    assert not torch.equal(trained[0], torch.cat(sets["angle 25"], 1))
    noisy = torch.cat(sets["noise 0.6"], 1)
    assert noisy[:10].mean() > 0.2
    assert torch.equal(noisy[10:], trained[0][10:])  # noise is on what is seen alone
    with pytest.raises(ValueError, match="the official file is of two digits"):
        next(evaluation_sets("controlled", 3, 2, CPU, official="x.npy"))


def test_data_follows_its_configuration() -> None:
    official = make_data(DataConfig(), 2, seed=3)
    assert torch.equal(official.batch(4), MovingMNIST(2, seed=3).batch(4))
    controlled = make_data(DataConfig(path="controlled", digits=1, angle=30.0, noise=0.1), 2)
    expected = MovingMNIST.controlled(2, angle=30.0, noise=0.1)
    assert torch.equal(controlled.batch(0), expected.batch(0))


# -- files of a user's own ------------------------------------------------------------------------


@pytest.fixture
def loaded() -> Loaded:
    config = TrainConfig(model=ModelConfig(hidden_size=4))
    return Loaded(make_model(config.model).eval(), config, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("batch", [None, 3])
def test_predictions_are_laid_out_as_the_input(
    loaded: Loaded, tmp_path: Path, dtype: Any, batch: int | None
) -> None:
    frames = (MovingMNIST(batch or 1).batch(0)[:6] * 255).round().to(torch.uint8).numpy()
    array = frames if dtype is np.uint8 else (frames / 255).astype(dtype)
    np.save(tmp_path / "mine.npy", array if batch else array[:, 0])
    paths = predict_file(loaded, tmp_path / "mine.npy", steps=4, batch_size=2)
    assert paths == (tmp_path / "mine_mean.npy", tmp_path / "mine_var.npy")
    mean, var = (np.load(path) for path in paths)
    assert mean.shape == var.shape == ((4, 3, 64, 64) if batch else (4, 64, 64))
    exact = loaded.model.predict(torch.from_numpy(frames / 255).float(), 4)
    for found, want in ((mean, exact.mean), (var, exact.var)):
        want = want.numpy() if batch else want.numpy()[:, 0]
        assert found.dtype == np.float32
        # float16 has rounded the input itself.
        assert np.abs(found - want).max() < (1e-4 if dtype is np.float16 else 1e-6)


def test_old_predictions_are_not_overwritten_by_accident(loaded: Loaded, tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.zeros((2, 64, 64)))
    (tmp_path / "there_var.npy").write_text("precious")
    with pytest.raises(ValueError, match=r"there_var\.npy exists; remove it, choose another"):
        predict_file(loaded, tmp_path / "mine.npy", tmp_path / "there")
    assert not (tmp_path / "there_mean.npy").exists()
    predict_file(loaded, tmp_path / "mine.npy", tmp_path / "there", overwrite=True)
    assert np.load(tmp_path / "there_var.npy").shape == (2, 64, 64)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 32, 32)), r"has shape \(4, 32, 32\); save \(T, 64, 64\) or \(T, B, 64, 64\)"),
        (np.zeros((64, 64)), r"has shape \(64, 64\)"),
        (np.zeros((0, 64, 64)), r"has shape \(0, 64, 64\)"),
        (np.zeros((2, 3, 4, 64, 64)), r"has shape \(2, 3, 4, 64, 64\)"),
        (np.full((2, 64, 64), 255.0), "reaches from 255 to 255; pixels must lie in"),
        (np.full((2, 64, 64), -0.1), "reaches from -0.1 to -0.1; pixels must lie in"),
        (np.full((2, 64, 64), np.nan), "reaches from nan to nan; pixels must lie in"),
        (np.zeros((2, 64, 64), int), "has dtype int64; save uint8, or floats in"),
        (np.zeros((2, 64, 64), complex), "has dtype complex128; save uint8"),
        (np.full((2, 64, 64), None), r"is not a \.npy file of numbers"),
    ],
)
def test_what_is_no_sequence_is_refused(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "mine.npy", array)
    with pytest.raises(ValueError, match=message) as caught:
        read_sequences(tmp_path / "mine.npy", 64, 64)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["|u1", "<f8"])
def test_a_header_that_announces_terabytes_is_refused_before_memory_is_asked_for(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.npy"
    header = {"descr": dtype, "fortran_order": False, "shape": (10**9, 64, 64)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(2 * 64 * 64))
    monkeypatch.setattr(np, "load", None)  # which would ask for it
    message = (
        rf"is not a \.npy file of numbers \(its header announces .* but there are {8192 + 128}\)"
    )
    with pytest.raises(ValueError, match=message):
        read_sequences(path, 64, 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        (b"", r"is not a \.npy file of numbers"),
        (b"some words", r"is not a \.npy file of numbers"),
        (b"\x93NUMPY\x01\x00", r"is not a \.npy file of numbers"),
        (b"PK\x03\x04 broken", r"is not a \.npy file of numbers"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "mine.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_sequences(path, 64, 64)
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="is an archive of arrays; save"):
        read_sequences(tmp_path / "several.npz", 64, 64)


@pytest.mark.parametrize("kind", ["mc_dropout_lstm", "mc_dropout_gru"])
def test_a_network_that_samples_has_the_same_score_every_time(kind: Any, tmp_path: Path) -> None:
    config = DropoutConfig(kind=kind, hidden_size=4)
    model, frames = make_model(config), MovingMNIST(3).batch(0)
    first, second = (score(model, frames.split([2, 1], 1)) for _ in range(2))
    assert first == second
    np.save(tmp_path / "seen.npy", frames[:10].numpy())
    loaded = Loaded(model, TrainConfig(model=config), 0, {})
    found = []
    for name in ("a", "b"):
        paths = predict_file(loaded, tmp_path / "seen.npy", tmp_path / name)
        found.append([np.load(path) for path in paths])
    assert np.array_equal(found[0][1], found[1][1])
