"""`Forecast`: what `Forecaster.predict` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from spgru.forecast.numbers import Numbers
from spgru.forecast.scaling import Array, Scaling
from spgru.forecast.times import Times

__all__ = ["DECILES", "Forecast"]

DECILES = tuple(k / 10 for k in range(1, 10))


@dataclass(frozen=True)
class Forecast:
    """Mean, variance, quantiles and intervals of the values to come.

    Quantiles are those of a Gaussian in the units of the network: for positive data, of the
    logarithm. Arrays are (H,) for one series, (S, H) for several.
    """

    z_mean: Array
    """(S, H), in the units of each window"""
    z_var: Array
    """likewise"""
    scaling: Scaling
    names: list[Any]
    """labels of the series"""
    times: list[Times] | None
    """of the histories"""
    single: bool
    shares: dict[str, Array] | None
    """(S, H) each, parts of the variance, which add up to 1"""
    history: list[Array]
    """what was known before, for plots"""
    numbers: list[Numbers] | None = None
    """of the histories, where their index is one of whole numbers"""

    # -- numbers ----------------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Expected values. With positive=True they lie not below the median."""
        return self._shaped(self.scaling.moments(self.z_mean, self.z_var)[0])

    @property
    def var(self) -> Array:
        """Variances, of weights, inputs and noise together."""
        return self._shaped(self.scaling.moments(self.z_mean, self.z_var)[1])

    @property
    def std(self) -> Array:
        """The standard deviation, of the shape of `mean`."""
        found: Array = np.sqrt(self.var)
        return found

    @property
    def median(self) -> Array:
        """The value below and above which an outcome is equally likely."""
        return self.quantile(0.5)

    def quantile(self, q: float | Sequence[float]) -> Array:
        """The values below which an outcome lies with probability `q`.

        Args:
            q: between 0 and 1, both excluded; several add a dimension in front
        """
        if np.ndim(q):
            return np.stack([self.quantile(float(one)) for one in np.asarray(q)])
        probability = float(q)  # type: ignore[arg-type]
        if not 0 < probability < 1:
            raise ValueError(f"q must lie between 0 and 1, got {probability}; pass 0.9 for 90 %")
        normal = NormalDist().inv_cdf(probability)
        return self._shaped(self.scaling.unscaled(self.z_mean + normal * np.sqrt(self.z_var)))

    def interval(self, level: float = 0.8) -> tuple[Array, Array]:
        """Central intervals that hold an outcome with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}; pass 0.8 for 80 %")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def parts(self) -> dict[str, Array]:
        """The variance by what it comes from: "weights", "inputs", "noise". They add up to it."""
        if self.shares is None:
            raise ValueError(
                "this forecast was made without parts of its variance; call predict(parts=True)"
            )
        return {name: self.var * self._shaped(share) for name, share in self.shares.items()}

    def of(self, series: int) -> Forecast:
        """The forecast of one series, by its number."""
        self._check_number(series)
        one = slice(series, series + 1)
        return Forecast(
            self.z_mean[one], self.z_var[one], self.scaling.of_rows(one), self.names[one],
            None if self.times is None else self.times[one], True,
            None if self.shares is None else {k: part[one] for k, part in self.shares.items()},
            self.history[one], None if self.numbers is None else self.numbers[one],
        )  # fmt: skip

    # -- tables and pictures ----------------------------------------------------------------------

    @property
    def index(self) -> Any:
        """Times of the forecast, or numbers that count on, pandas; of several series a list.

        None for arrays.
        """
        known = self.times or self.numbers
        if known is None:
            return None
        horizon = self.z_mean.shape[1]
        found = [times.index(times.count, horizon) for times in known]
        return found[0] if self.single else found

    def to_frame(self, quantiles: Sequence[float] = DECILES) -> Any:
        """A pandas DataFrame: item (for several series), time, mean, std, and the quantiles.

        Without a time index, time goes on from an index of whole numbers; else it counts the steps
        from the series' start.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_frame needs pandas; install it with pip install 'spgru[forecast]'"
            ) from error
        horizon = self.z_mean.shape[1]
        columns = {"mean": self.mean, "std": self.std}
        columns |= {f"{q:g}": self.quantile(q) for q in quantiles}
        table: dict[str, Any] = {}
        if not self.single:
            # A list: numpy would take names that are tuples for rows.
            table["item"] = [name for name in self.names for _ in range(horizon)]
        if self.times is None:
            counts = [self._counts(series) for series in range(len(self.history))]
            table["time"] = np.concatenate([c.values(c.count, horizon) for c in counts])
        else:
            found = [times.index(times.count, horizon) for times in self.times]
            table["time"] = found[0].append(found[1:])
        table |= {name: values.reshape(-1) for name, values in columns.items()}
        return pandas.DataFrame(table)

    def plot(
        self,
        series: int = 0,
        levels: Sequence[float] = (0.5, 0.8, 0.95),
        history: int | None = None,
    ) -> Any:
        """A matplotlib Figure: the end of the history, the median, and central intervals.

        Args:
            series: its number, where there are several
            levels: of the intervals
            history: steps to show of it; three horizons by default
        """
        from spgru.reporting.pictures import new_figure, require_matplotlib

        require_matplotlib("a plot of a forecast")
        self._check_number(series)
        horizon, past = self.z_mean.shape[1], self.history[series]
        shown = min(len(past), 3 * horizon if history is None else history)
        counts = self._counts(series)
        before: Any = counts.values(len(past) - shown, shown)
        after: Any = counts.values(len(past), horizon)
        if self.times is not None:
            times = self.times[series]
            before, after = times.index(len(past) - shown, shown), times.index(len(past), horizon)
            if times.is_period:
                before, after = before.to_timestamp(), after.to_timestamp()
        figure = new_figure(9, 4)
        axes = figure.subplots()
        axes.plot(before, past[len(past) - shown :], color="black", linewidth=1, label="observed")
        for level in sorted(levels, reverse=True):
            low, high = (np.atleast_2d(bound)[series] for bound in self.interval(level))
            axes.fill_between(
                after, low, high, color="C0", alpha=0.2, label=f"{level:.0%} interval"
            )
        axes.plot(after, np.atleast_2d(self.median)[series], color="C0", label="median")
        axes.set_title("forecast" if self.single else f"forecast of {self.names[series]}")
        axes.legend(loc="upper left", fontsize="small")
        return figure

    def _counts(self, series: int) -> Numbers:
        """An index of numbers; steps from the start of a series that has none."""
        if self.numbers is None:
            return Numbers(0, len(self.history[series]), 1)
        return self.numbers[series]

    def _check_number(self, series: int) -> None:
        if not 0 <= series < len(self.history):
            raise ValueError(f"series is {series}, and there are {len(self.history)}")

    def _shaped(self, values: Array) -> Array:
        return values[0] if self.single else values

    def __repr__(self) -> str:
        series, horizon = self.z_mean.shape
        return f"Forecast({series} series, {horizon} steps)"
