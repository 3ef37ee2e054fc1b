"""`Forecaster` as a forecaster of sktime.

    from spgru.forecast.sktime import SpgruForecaster

    forecaster = SpgruForecaster().fit(y, fh=range(1, 25))
    forecaster.predict_interval(coverage=0.8)

sktime checks and converts what comes in. Here its tables become series for a `Forecaster`, and a
`Forecast` becomes tables again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from spgru.forecast.forecast import Forecast
from spgru.forecast.forecaster import Forecaster
from spgru.forecast.network import Cell
from spgru.forecast.scaling import Array
from spgru.forecast.settings import Mode
from spgru.forecast.times import times_of
from spgru.forecast.training import Loss

try:
    import pandas
    from sktime.datatypes import update_data
    from sktime.forecasting.base import BaseForecaster
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"spgru.forecast.sktime needs {error.name}; install it with pip install 'spgru[sktime]'"
    ) from error

__all__ = ["SpgruForecaster"]

_TABLES = ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"]


class SpgruForecaster(BaseForecaster):
    """Forecasts of one or many series with intervals that hold, without sampling.

    All series, be they columns of y or parts of a panel or a hierarchy, share one network, and each
    is forecast from its own past. The network is trained for the steps up to the last of `fh`,
    which `fit` therefore needs. `X` holds known covariates: `predict` needs a row of it for every
    step up to the last of `fh`.

    `update` goes on from new values and keeps the weights, also with `update_params=True`; call
    `fit` to train again. What is known already (in-sample) is not forecast. Missing values of y
    are handled, those of X are refused.

    Quantiles and intervals are those of the forecast's distribution. `predict_proba` gives it as an
    object where it is Gaussian, which it is unless `positive=True`.

    Parameters
    ----------
    context, season, hidden_size, num_layers, cell, mode, positive, calendar, steps, batch_size
        as of `spgru.forecast.Forecaster`
    lr, patience, loss, kl_weight, calibrate, level, seed, device, progress
        likewise

    Attributes
    ----------
    forecaster_ : spgru.forecast.Forecaster
        the fitted one

    Examples
    --------
    >>> import pandas as pd
    >>> from spgru.forecast.sktime import SpgruForecaster
    >>> y = pd.Series([1.0, 2.0, 3.0] * 20)
    >>> forecaster = SpgruForecaster(season=3, steps=10, mode="direct", progress=False)
    >>> forecaster.fit(y, fh=[1, 2, 3]).predict().round(1).to_list()
    [1.0, 2.0, 3.0]
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": ["spgru"],
        "maintainers": ["spgru"],
        "python_dependencies": ["torch"],
        "y_inner_mtype": _TABLES,
        "X_inner_mtype": _TABLES,
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:categorical_in_X": False,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:non_contiguous_X": False,
        "capability:update": True,
        "X-y-must-have-same-index": False,  # said more clearly below
        "requires-fh-in-fit": True,
        "property:randomness": "deterministic",
    }
    # What was seen is kept below, in the form that is needed.
    _config: ClassVar[dict[str, Any]] = {"remember_data": False}

    def __init__(
        self,
        context: int | None = None,
        season: int | None = None,
        hidden_size: int = 32,
        num_layers: int = 1,
        cell: Cell = "gru",
        mode: Mode = "auto",
        positive: bool = False,
        calendar: bool = True,
        steps: int = 1000,
        batch_size: int = 64,
        lr: float = 3e-3,
        patience: int = 12,
        loss: Loss = "crps",
        kl_weight: float = 0.01,
        calibrate: bool = True,
        level: float | None = 0.8,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.context = context
        self.season = season
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.cell = cell
        self.mode = mode
        self.positive = positive
        self.calendar = calendar
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.loss = loss
        self.kl_weight = kl_weight
        self.calibrate = calibrate
        self.level = level
        self.seed = seed
        self.device = device
        self.progress = progress
        super().__init__()
        self._y = self._X = None  # where sktime keeps data, if it is told to

    def _fit(self, y: Any, X: Any, fh: Any) -> SpgruForecaster:  # noqa: N803
        self._values, self._covariates = y, _rows_of(X, y)
        series = self._series()
        horizon = max(int(_steps(fh, part.index).max()) for part in series.values())
        self.forecaster_ = Forecaster(horizon, **self.get_params(deep=False))
        rows = _parts(self._covariates)
        known = None if X is None else {key: rows[key[0]] for key in series if key[0] in rows}
        self.forecaster_.fit(*_one_or_all(series, known))
        return self

    def _update(self, y: Any, X: Any = None, update_params: bool = True) -> SpgruForecaster:  # noqa: N803
        self._values = update_data(self._values, y)
        self._covariates = self._followed_by(_rows_of(X, y))
        return self

    def _predict(self, fh: Any, X: Any) -> Any:  # noqa: N803
        return self._table(fh, X, self._get_varnames(), lambda found: found.mean)

    def _predict_var(self, fh: Any, X: Any = None, cov: bool = False) -> Any:  # noqa: N803
        if cov:
            raise NotImplementedError(
                "the covariance of different steps is not known, only their variances; pass "
                "cov=False"
            )
        return self._table(fh, X, self._get_varnames(), lambda found: found.var)

    def _predict_quantiles(self, fh: Any, X: Any, alpha: list[float]) -> Any:  # noqa: N803
        columns = self._get_columns("predict_quantiles", alpha=alpha)
        return self._table(fh, X, columns, *(_quantile(probability) for probability in alpha))

    def _predict_proba(self, fh: Any, X: Any, marginal: bool = True) -> Any:  # noqa: N803
        if self.positive:
            raise NotImplementedError(
                "with positive=True a forecast is no Gaussian, and there is no object for its "
                "distribution; call predict_quantiles, predict_interval or predict_var"
            )
        return super()._predict_proba(fh=fh, X=X, marginal=marginal)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings for sktime's tests: as little work as possible."""
        tiny = {"hidden_size": 2, "steps": 1, "batch_size": 4, "progress": False, "device": "cpu"}
        return [
            tiny | {"mode": "direct", "calibrate": False, "context": 4, "season": 1},
            tiny | {"mode": "fed-back", "calibrate": False},
        ]

    # -- between sktime and spgru -----------------------------------------------------------------

    def _series(self) -> dict[Any, Any]:
        """Every series until the present time: {(name, column): pandas Series}."""
        found: dict[Any, Any] = {}
        for name, part in _parts(self._values).items():
            seen = part[part.index <= self._cutoff[0]]
            if len(seen) == 0:
                raise ValueError(f"the series {name} has no values until {self._cutoff[0]}")
            _require_steps_of_one(seen.index, name)
            found |= {(name, column): seen[column] for column in seen.columns}
        return found

    def _followed_by(self, X: Any) -> Any:  # noqa: N803
        """Known covariates and these."""
        if X is None:
            return self._covariates
        if self._covariates is None:
            raise ValueError("X is given, and the forecaster was fitted without covariates")
        if X.index.nlevels != self._covariates.index.nlevels:
            raise ValueError(
                f"the index of X has levels {list(X.index.names)}, that of X in fit "
                f"{list(self._covariates.index.names)}"
            )
        found, known = list(X.columns), list(self._covariates.columns)
        if found != known:
            raise ValueError(f"X has columns {found}, the forecaster was fitted with {known}")
        return update_data(self._covariates, X)

    def _table(
        self, fh: Any, X: Any, columns: Any, *numbers: Callable[[Forecast], Array]  # noqa: N803
    ) -> Any:  # fmt: skip
        """The forecast at the times of `fh`; for each column of y one for each of `numbers`."""
        series = self._series()
        horizon = self.forecaster_.settings.horizon
        known = None
        if X is not None:
            seen = _parts(self._followed_by(X))
            known = {
                key: _rows_until(seen[key[0]], part.index, horizon)
                for key, part in series.items()
                if key[0] in seen
            }
        forecast = self.forecaster_.predict(*_one_or_all(series, known), parts=False)
        # (series, horizon, numbers)
        found = np.stack([np.atleast_2d(number(forecast)) for number in numbers], -1)
        tables: dict[Any, list[Any]] = {}
        for number, ((name, _), part) in enumerate(series.items()):
            steps = _steps(fh, part.index)
            if steps.max() > horizon:
                raise ValueError(
                    f"fh reaches {steps.max()} steps after {part.index[-1]}, and fit was given "
                    f"{horizon}; fit again with this fh"
                )
            index = _following(part.index, forecast, number, horizon)[steps - 1]
            if name:
                index = pandas.MultiIndex.from_tuples([(*name, time) for time in index])
            index.names = self._values.index.names
            tables.setdefault(name, []).append(pandas.DataFrame(found[number, steps - 1], index))
        table = pandas.concat([pandas.concat(parts, axis=1) for parts in tables.values()])
        return table.set_axis(columns, axis=1)


def _quantile(probability: float) -> Callable[[Forecast], Array]:
    return lambda forecast: forecast.quantile(probability)


def _parts(table: Any) -> dict[tuple[Any, ...], Any]:
    """The parts of a panel or hierarchy by name; without labels, the whole table by ()."""
    if table is None:
        return {}
    labels = list(range(table.index.nlevels - 1))
    if not labels:
        return {(): table}
    level = labels[0] if len(labels) == 1 else labels
    return {
        name if isinstance(name, tuple) else (name,): part.droplevel(labels)
        for name, part in table.groupby(level=level, sort=False)
    }


def _one_or_all(series: dict[Any, Any], known: dict[Any, Any] | None) -> tuple[Any, Any]:
    """Series and covariates; a single series as itself, so that messages do not name it."""
    if len(series) > 1:
        return series, known
    return next(iter(series.values())), None if known is None else next(iter(known.values()), None)


def _rows_of(X: Any, y: Any) -> Any:  # noqa: N803
    """sktime allows more rows of X than of y; what comes later is not known for sure yet."""
    return None if X is None else X[X.index.isin(y.index)]


def _require_steps_of_one(index: Any, name: tuple[Any, ...]) -> None:
    """Whole numbers count steps, also in `fh`; another distance would be another time."""
    if isinstance(index, pandas.DatetimeIndex | pandas.PeriodIndex):
        return
    other = np.flatnonzero(np.diff(index.to_numpy()) != 1)
    if len(other):
        before, after = index[other[0]], index[other[0] + 1]
        raise ValueError(
            f"the index of y{f' of the series {name}' if name else ''} goes from {before} to "
            f"{after}; whole numbers must rise by 1: number the rows with "
            "reset_index(drop=True), or where rows are missing add them with reindex"
        )


def _steps(fh: Any, index: Any) -> Any:
    """The horizon in steps after the end of a series, from 1."""
    end = index[-1:]
    if isinstance(index, pandas.DatetimeIndex) and end.freq is None:
        times = times_of(index, "y")
        end = pandas.DatetimeIndex(end, freq=None if times is None else times.freq)
    steps = np.asarray(fh.to_relative(end).to_pandas(), np.int64)
    if steps.min() < 1:
        raise NotImplementedError(
            f"fh asks for times until {index[-1]}, which are in-sample; this forecaster forecasts "
            "only what comes later"
        )
    return steps


def _following(index: Any, forecast: Forecast, number: int, horizon: int) -> Any:
    """The times after a series."""
    if forecast.index is None:
        return pandas.RangeIndex(index[-1] + 1, index[-1] + 1 + horizon)
    return forecast.index if forecast.single else forecast.index[number]


def _rows_until(X: Any, index: Any, horizon: int) -> Any:  # noqa: N803
    """Covariates for all times of a series and the horizon."""
    if isinstance(index, pandas.DatetimeIndex | pandas.PeriodIndex):
        return X  # looked up by their times
    wanted = pandas.RangeIndex(index[0], index[-1] + 1 + horizon)
    missing = wanted.difference(X.index)
    if len(missing):
        raise ValueError(f"X has no row for {missing[0]}; covariates must be known")
    return X.loc[wanted]
