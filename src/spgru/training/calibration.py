"""Calibration of a trained network, from file to file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spgru.calibration import CalibrationReport, calibrate
from spgru.calibration.forms import FormName
from spgru.calibration.state import calibration_state
from spgru.calibration.truth import device_of
from spgru.models import VideoModel
from spgru.runtime.device import choose_device
from spgru.runtime.errors import ConfigError
from spgru.training.config import DataConfig
from spgru.training.evaluation import make_data
from spgru.training.export import ExportPrecision, check_export, export, load_model

__all__ = ["calibrate_as_trained", "calibrate_file"]

# Added to the seed, so that the sequences are not the first that the training saw.
_FAR = 1_000_003


def calibrate_file(
    source: str | Path,
    path: str | Path,
    *,
    sequences: int = 32,
    draws: int = 200,
    steps: int = 300,
    seed: int = 0,
    form: FormName = "auto",
    keep_mean: bool = False,
    directory: str | Path | None = None,
    device: str = "auto",
    precision: ExportPrecision = "float32",
    overwrite: bool = False,
    progress: bool = True,
) -> CalibrationReport:
    """Calibrate any source that `load_model` takes and write it to `path`.

    Args:
        sequences: of the kind that the network was trained on, drawn anew
        draws: networks drawn for the truth
        steps: of the fit of gains
        form, keep_mean: see `spgru.calibrate`
        directory: folder with your own MNIST files; None for those of the training
    """
    check_export(path, overwrite)  # before minutes are spent
    loaded, where = load_model(source), choose_device(device)
    config = loaded.config.data
    if directory is not None:
        config = replace(config, directory=str(directory))
    model = loaded.model.to(where)
    report = calibrate_as_trained(
        model, config, sequences=sequences, draws=draws, steps=steps, seed=seed,
        form=form, keep_mean=keep_mean, progress=progress,
    )  # fmt: skip
    export(source, path, precision, overwrite, calibration_state(model))
    return report


def calibrate_as_trained(
    model: VideoModel,
    config: DataConfig,
    *,
    sequences: int,
    draws: int,
    steps: int,
    seed: int = 0,
    form: FormName = "auto",
    keep_mean: bool = False,
    progress: bool = True,
) -> CalibrationReport:
    """Calibrate a network, in place, on sequences of the kind it was trained on.

    Args:
        config: of the data of its training
        sequences: how many, drawn anew
        draws, steps, form, keep_mean: of `spgru.calibrate`
    """
    if not isinstance(model, VideoModel):
        raise ConfigError(
            f"a network of kind {type(model).__name__} has no random weights of ours, which a "
            "calibration is about"
        )
    where = device_of(model)
    data = make_data(config, sequences, split="train", seed=seed + _FAR, device=where)
    seen = next(data).chunk(2)[0]
    report = calibrate(
        model, seen, form=form, draws=draws, steps=steps, seed=seed, keep_mean=keep_mean,
        progress=progress,
    )  # fmt: skip
    assert isinstance(report, CalibrationReport)
    return report
