"""A forecaster in a folder: weights and series as safetensors, the rest as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from spgru.calibration import load_calibration
from spgru.calibration.report import OutcomeReport
from spgru.forecast.covariates import Covariates
from spgru.forecast.data import Panel
from spgru.forecast.features import FeatureScaling
from spgru.forecast.fitted import Fitted, make_network
from spgru.forecast.labels import label_from_json, label_to_json
from spgru.forecast.network import Anchor
from spgru.forecast.numbers import Numbers
from spgru.forecast.scaling import Array
from spgru.forecast.settings import Settings
from spgru.forecast.times import Times
from spgru.forecast.training import TrainingRecord
from spgru.forecast.usual import Usual
from spgru.runtime.device import choose_device
from spgru.runtime.storage import require_folder, sha256, write_whole

if TYPE_CHECKING:
    from spgru.forecast.forecaster import Forecaster

__all__ = ["fingerprint", "load", "save"]

_FORMAT = 2
_READABLE = (1, 2)
"""Files of format 1 know nothing of what missing or constant values do to the variance, and go on
without."""
_CONFIG, _MODEL, _SERIES = "forecaster.json", "model.safetensors", "series.safetensors"
_Kind = TypeVar("_Kind", bound="Forecaster")


def save(forecaster: Forecaster, folder: str | PathLike[str]) -> None:
    state, path = forecaster._fitted(), Path(folder)
    panel, covariates = state.panel, state.covariates
    config = {
        "format": _FORMAT,
        "settings": asdict(forecaster.settings),
        "mode": state.mode,
        "context": state.context,
        "season": state.season,
        "anchor": state.anchor,
        "names": [label_to_json(name) for name in panel.names],
        "single": panel.single,
        "times": None if panel.times is None else [_described(times) for times in panel.times],
        "numbers": None if panel.numbers is None else [[n.start, n.step] for n in panel.numbers],
        "covariates": None if covariates is None else covariates.names,
        "covariate_range": None if covariates is None else covariates.range().tolist(),
        "features": {
            "mean": state.scaling.mean.tolist(),
            "std": state.scaling.std.tolist(),
            "calendar": state.scaling.calendar,
        },
        "usual": None if state.usual is None else state.usual.table(),
        "records": {mode: asdict(record) for mode, record in state.records.items()},
        "report": None if state.report is None else state.report.to_dict(),
    }
    arrays = {f"values.{n}": values for n, values in enumerate(panel.values)}
    if covariates is not None:
        arrays |= {f"covariates.{n}": mean for n, mean in enumerate(covariates.mean)}
        if covariates.var is not None:
            arrays |= {f"variances.{n}": var for n, var in enumerate(covariates.var)}
    weights = {
        name: value.detach().cpu().contiguous()
        for name, value in state.network.state_dict().items()
    }
    require_folder(path)
    write_whole(path / _MODEL, safetensors.torch.save(weights))
    laid = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_whole(path / _SERIES, safetensors.numpy.save(laid))
    # Last: a folder with it is whole.
    write_whole(path / _CONFIG, json.dumps(config, indent=1).encode())


def load(
    kind: type[_Kind], folder: str | PathLike[str], device: str, most_series: int | None = None
) -> _Kind:
    """What `save` wrote.

    Args:
        most_series: read so many of the known series, which other series can be forecast without
    """
    path = Path(folder)
    if not (path / _CONFIG).exists():
        raise FileNotFoundError(f"{path} holds no forecaster ({_CONFIG} is missing)")
    config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    if config.get("format") not in _READABLE:
        raise ValueError(
            f"{path} has format {config.get('format')!r}, this version reads "
            f"{' and '.join(map(str, _READABLE))}"
        )
    settings = Settings(**config["settings"])
    found = config["features"]
    scaling = FeatureScaling(
        np.asarray(found["mean"], np.float64), np.asarray(found["std"], np.float64),
        found["calendar"],
    )  # fmt: skip
    network = make_network(
        settings, config["mode"], config["context"], config["season"], scaling.size,
        Anchor(*config["anchor"]),
    )  # fmt: skip
    load_calibration(network, safetensors.torch.load_file(path / _MODEL))
    network.to(choose_device(device)).eval()
    numbers = range(len(config["names"]))[:most_series]
    arrays = _arrays(path / _SERIES, len(numbers))
    covariates = None
    if config["covariates"] is not None:
        variances = [arrays[f"variances.{n}"] for n in numbers] if "variances.0" in arrays else None
        means = [arrays[f"covariates.{n}"] for n in numbers]
        extent = None if most_series is None else _extent(config)
        covariates = Covariates(means, variances, config["covariates"], extent)
    values = [arrays[f"values.{n}"] for n in numbers]
    times = None
    if config["times"] is not None:
        times = [
            _times(t, len(v)) for t, v in zip(config["times"][:most_series], values, strict=True)
        ]
    counts = None
    if config.get("numbers") is not None:  # files of earlier versions do not tell
        counts = [
            Numbers(start, len(v), step)
            for (start, step), v in zip(config["numbers"][:most_series], values, strict=True)
        ]
    names = [label_from_json(name) for name in config["names"][:most_series]]
    panel = Panel(values, names, times, config["single"], counts)
    forecaster = kind(**config["settings"])
    forecaster._state = Fitted(
        network, config["mode"], config["context"], config["season"], network.anchor, panel,
        covariates, scaling,
        {mode: TrainingRecord(**record) for mode, record in config["records"].items()},
        _report(config.get("report")),
        Usual.of_table(config["usual"]) if config.get("usual") is not None else None,
    )  # fmt: skip
    return forecaster


def fingerprint(folder: str | PathLike[str]) -> str:
    """Of settings and weights, not of the known series' values."""
    path = Path(folder)
    if not (path / _CONFIG).exists():
        raise FileNotFoundError(f"{path} holds no forecaster ({_CONFIG} is missing)")
    return sha256(path / _CONFIG) + sha256(path / _MODEL)


def _arrays(path: Path, count: int) -> dict[str, Array]:
    """Those of the first series."""
    with safetensors.safe_open(path, "numpy") as file:
        wanted = [name for name in file.keys() if int(name.split(".")[1]) < count]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in wanted}


def _report(found: dict[str, Any] | None) -> OutcomeReport | None:
    """None for a forecaster without calibration, and in files of earlier versions."""
    if found is None:
        return None
    values: dict[str, Any] = {
        name: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for name, value in found.items()
    }
    return OutcomeReport(**values)


def _extent(config: dict[str, Any]) -> Array:
    """Of the covariates of all series; without bounds in files that do not tell."""
    found = config.get("covariate_range")
    if found is None:
        found = [[bound] * len(config["covariates"]) for bound in (-np.inf, np.inf)]
    return np.asarray(found, np.float64)


def _described(times: Times) -> dict[str, Any]:
    if times.is_period:
        return {"period": str(times.start), "freq": times.freq}
    zone = getattr(times.start, "tz", None)
    naive = times.start if zone is None else times.start.tz_convert("UTC").tz_localize(None)
    zone = None if zone is None else str(zone)
    return {"start": naive.isoformat(), "zone": zone, "freq": times.freq}


def _times(described: dict[str, Any], count: int) -> Times:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this forecaster knows series with a time index, which needs pandas; install it with "
            "pip install 'spgru[forecast]'"
        ) from error
    freq = described["freq"]
    if "period" in described:
        return Times(pandas.Period(described["period"], freq=freq), count, freq)
    start = pandas.Timestamp(described["start"])
    if described["zone"] is not None:
        start = start.tz_localize("UTC").tz_convert(described["zone"])
    return Times(start, count, freq)
