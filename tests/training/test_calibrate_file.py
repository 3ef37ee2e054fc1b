"""`spgru calibrate`: from trained weights to weights that carry a calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import spgru
from spgru.calibration import CalibrationReport, is_calibrated
from spgru.cli import main
from spgru.data import MovingMNIST
from spgru.models import ModelConfig
from spgru.training import CheckpointError, TrainConfig, load_exported, load_model, score, train
from spgru.training.calibration import calibrate_file

OPTIONS = {"sequences": 8, "draws": 20, "steps": 5, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, which no test writes to."""
    # Uncertain enough that the closed form has something to be wrong about.
    config = TrainConfig(
        model=ModelConfig(hidden_size=8, weight_std=0.3), batch_size=2, steps=1,
        precision="float32", device="cpu", output=str(tmp_path_factory.mktemp("trained") / "run"),
    )  # fmt: skip
    return train(config, show="none").folder


@pytest.fixture(scope="module")
def calibrated(
    run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CalibrationReport]:
    """Weights with a calibration, and its report; to be read only."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("calibrated") / "calibrated.safetensors"
    return path, calibrate_file(run, path, **OPTIONS)  # type: ignore[arg-type]


def test_the_file_carries_the_calibration(
    run: Path, calibrated: tuple[Path, CalibrationReport]
) -> None:
    path, report = calibrated
    assert report.chosen != "plain"
    assert abs(report.ratio.mean() - 1) < abs(report.plain_ratio.mean() - 1)
    frames = MovingMNIST(3).batch(0)[:10]
    plain, found = load_model(run).model, load_exported(path)
    assert is_calibrated(found)
    assert torch.equal(found.predict(frames).mean, plain.predict(frames).mean)
    assert not torch.allclose(found.predict(frames).var, plain.predict(frames).var, rtol=0.01)
    spgru.uncalibrate(found)
    assert torch.equal(found.predict(frames).var, plain.predict(frames).var)


def test_a_seed_gives_the_same_file(
    run: Path, calibrated: tuple[Path, CalibrationReport], tmp_path: Path
) -> None:
    torch.manual_seed(1)  # not the generator that counts
    calibrate_file(run, tmp_path / "again.safetensors", **OPTIONS)  # type: ignore[arg-type]
    again = load_exported(tmp_path / "again.safetensors").state_dict()
    for name, tensor in load_exported(calibrated[0]).state_dict().items():
        assert torch.equal(tensor, again[name]), name


def test_the_command_writes_and_reports(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    path = tmp_path / "half.safetensors"
    options = [
        "--sequences",
        "8",
        "--draws",
        "20",
        "--steps",
        "5",
        "--device",
        "cpu",
        "--precision",
        "float16",
    ]
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", str(run), str(path), *options])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "closed/true variance" in shown
    assert f"wrote {path}" in shown
    assert is_calibrated(load_exported(path))
    for source, expected in ((path, True), (run, False)):
        with pytest.raises(SystemExit):
            main(["evaluate", str(source), "--sequences", "2", "--device", "cpu"])
        assert ("uncalibrated" in capsys.readouterr().out) == expected


def test_scores_have_the_variance_before_and_after(
    run: Path, calibrated: tuple[Path, CalibrationReport]
) -> None:
    path, _ = calibrated
    frames = MovingMNIST(3).batch(0)
    before, after = (score(load_model(source).model, [frames]) for source in (run, path))
    assert before.closed_variance == before.variance
    assert after.closed_variance == before.variance
    assert after.variance != before.variance
    assert after.squared_error == before.squared_error


def test_a_file_that_exists_is_refused_before_any_work(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "there.safetensors"
    path.touch()
    with pytest.raises(CheckpointError, match="exists"):
        calibrate_file(run, path)


def test_a_network_without_random_weights_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(SystemExit):
        main(["calibrate", "one-digit-mc-lstm", str(path)])
    assert "has no random weights" in capsys.readouterr().err
