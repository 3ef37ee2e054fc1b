"""`Forecaster` as an estimator and a predictor of GluonTS.

    from spgru.forecast.gluonts import SpgruEstimator

    predictor = SpgruEstimator(prediction_length=24).train(dataset)
    for forecast in predictor.predict(dataset):
        forecast.quantile(0.9)

A forecast gives its mean and any quantile from its distribution; nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from spgru.forecast.forecast import Forecast
from spgru.forecast.forecaster import Forecaster
from spgru.forecast.scaling import Array

try:
    import pandas
    from gluonts.model import Estimator, Predictor
    from gluonts.model.forecast import Forecast as GluontsForecast
    from gluonts.model.forecast import Quantile
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"spgru.forecast.gluonts needs {error.name}; install it with pip install 'spgru[gluonts]'"
    ) from error

__all__ = ["SpgruEstimator", "SpgruForecast", "SpgruPredictor"]

_AT_ONCE = 512
"""Series that are forecast together; memory does not grow with a dataset."""
_FOLDER = "forecaster"


class SpgruForecast(GluontsForecast):
    """Forecast of one series: mean and quantiles of its distribution.

    `forecast` is the `spgru.forecast.Forecast` behind it, with its variance and intervals.
    """

    def __init__(self, forecast: Forecast, start_date: Any, item_id: str | None = None) -> None:
        self.forecast = forecast
        self.start_date = start_date
        self.item_id = item_id
        self.info = None
        self.prediction_length = forecast.z_mean.shape[1]

    @property
    def mean(self) -> Array:
        """Of the forecast's distribution, one for each step."""
        return self.forecast.mean

    @property
    def mean_ts(self) -> Any:
        """The mean as a pandas Series with the times ahead."""
        return pandas.Series(self.mean, self.index)

    def quantile(self, q: float | str | Quantile) -> Array:
        return self.forecast.quantile(Quantile.parse(q).value)

    def dim(self) -> int:
        return 1

    def copy_dim(self, dim: int) -> SpgruForecast:
        if dim:
            raise ValueError(f"dim is {dim}, and the forecast is that of one series")
        return self

    def copy_aggregate(self, agg_fun: Callable[..., Any]) -> SpgruForecast:
        return self  # over one dimension

    def __repr__(self) -> str:
        return (
            f"SpgruForecast(start_date={self.start_date!r}, item_id={self.item_id!r}, "
            f"prediction_length={self.prediction_length})"
        )


class SpgruPredictor(Predictor):
    """A fitted `Forecaster` that forecasts the entries of a dataset.

    Args:
        forecaster: fitted, to series with periods as index or without times
    """

    def __init__(self, forecaster: Forecaster) -> None:
        super().__init__(prediction_length=forecaster.settings.horizon)
        self.forecaster = forecaster

    def predict(
        self, dataset: Iterable[dict[str, Any]], num_samples: int | None = None, **kwargs: Any
    ) -> Iterator[SpgruForecast]:
        """Forecasts in the order of the dataset.

        Args:
            dataset: entries with `start` and `target`, and with `feat_dynamic_real` up to the end
                of the horizon if the forecaster was trained with it
            num_samples: ignored, since nothing is drawn; GluonTS passes it to every predictor
        """
        if kwargs:
            raise TypeError(f"predict takes no argument {next(iter(kwargs))!r}")
        entries = iter(dataset)
        with_features = bool(self.forecaster.covariates)
        while chunk := list(islice(entries, _AT_ONCE)):
            series = [_series(entry) for entry in chunk]
            covariates = [_covariates(entry) for entry in chunk] if with_features else None
            found = self.forecaster.predict(series, covariates, parts=False)
            for number, (entry, values) in enumerate(zip(chunk, series, strict=True)):
                start = values.index[-1] + 1
                yield SpgruForecast(found.of(number), start, entry.get("item_id"))

    def serialize(self, path: Path) -> None:
        """Write a folder that `Predictor.deserialize` reads: safetensors and JSON."""
        super().serialize(path)
        self.forecaster.save(path / _FOLDER)

    @classmethod
    def deserialize(cls, path: Path, device: str = "auto", **kwargs: Any) -> SpgruPredictor:
        if kwargs:
            raise TypeError(f"deserialize takes no argument {next(iter(kwargs))!r}")
        return cls(Forecaster.load(path / _FOLDER, device))


class SpgruEstimator(Estimator):
    """Trains one network for all series of a dataset.

    Args:
        prediction_length: steps to forecast
        use_feat_dynamic_real: take the dynamic real features as known covariates; other features
            of entries are not used
        options: further arguments of `spgru.forecast.Forecaster`
    """

    def __init__(
        self, prediction_length: int, use_feat_dynamic_real: bool = False, **options: Any
    ) -> None:
        super().__init__()
        Forecaster(prediction_length, **options)  # what is wrong is said now, not in train
        self.prediction_length = prediction_length
        self.use_feat_dynamic_real = use_feat_dynamic_real
        self.options = options

    def train(
        self,
        training_data: Iterable[dict[str, Any]],
        validation_data: Iterable[dict[str, Any]] | None = None,
    ) -> SpgruPredictor:
        """Fit a forecaster.

        Args:
            training_data: entries with `start` and `target`, and `feat_dynamic_real` if it is used
            validation_data: must be None: the ends of the training series validate
        """
        if validation_data is not None:
            raise ValueError(
                "validation_data is given, and the ends of the series in training_data serve for "
                "validation; pass None"
            )
        entries = list(training_data)
        series = [_series(entry) for entry in entries]
        covariates = None
        if self.use_feat_dynamic_real:
            covariates = [_covariates(entry)[: len(entry["target"])] for entry in entries]
        forecaster = Forecaster(self.prediction_length, **self.options)
        return SpgruPredictor(forecaster.fit(series, covariates))


def _series(entry: dict[str, Any]) -> Any:
    """The target of an entry with its periods as index."""
    target = np.asarray(entry["target"])
    if target.ndim != 1:
        raise ValueError(
            f"target of {_name(entry)} has shape {target.shape}; give a dataset with an entry for "
            "every series"
        )
    start = entry["start"]
    return pandas.Series(target, pandas.period_range(start, periods=len(target), freq=start.freq))


def _covariates(entry: dict[str, Any]) -> Any:
    """(time, features), of all times that an entry has features for."""
    if "feat_dynamic_real" not in entry:
        raise ValueError(
            f"{_name(entry)} has no feat_dynamic_real; give it to all entries, or train with "
            "use_feat_dynamic_real=False"
        )
    return np.asarray(entry["feat_dynamic_real"], np.float64).T


def _name(entry: dict[str, Any]) -> str:
    return f"the entry {entry['item_id']!r}" if "item_id" in entry else "an entry"
