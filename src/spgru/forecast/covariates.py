"""Covariates in: what is known of every time, the future included, with or without uncertainty."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spgru.forecast.data import Panel, as_numbers, is_pandas
from spgru.forecast.numbers import Numbers, numbers_of
from spgru.forecast.scaling import LARGEST, Array
from spgru.forecast.times import Times, check_index
from spgru.moments import Moments

__all__ = ["Covariates", "read_covariates", "warn_if_far"]

_FAR = 10.0
"""Covariates that lie so many ranges of the known ones away from them are not of the same kind."""


@dataclass(frozen=True)
class Covariates:
    """Of every series."""

    mean: list[Array]
    """(rows, F) each"""
    var: list[Array] | None
    """likewise, None where all are certain"""
    names: list[str]
    """of the columns"""
    extent: Array | None = None
    """(2, F) smallest and largest of all series where only some are here"""

    def range(self) -> Array:
        """(2, F) smallest and largest of each column."""
        if self.extent is not None:
            return self.extent
        found = np.concatenate(self.mean)
        return np.stack([found.min(0), found.max(0)])

    def variances(self) -> list[Array]:
        return self.var if self.var is not None else [np.zeros_like(part) for part in self.mean]

    def followed_by(self, later: Covariates) -> Covariates:
        """These rows, then those."""
        var = None
        if self.var is not None or later.var is not None:
            pairs = zip(self.variances(), later.variances(), strict=True)
            var = [np.concatenate(pair) for pair in pairs]
        pairs = zip(self.mean, later.mean, strict=True)
        return Covariates([np.concatenate(pair) for pair in pairs], var, self.names)

    def first(self, rows: Sequence[int]) -> Covariates:
        """So many rows of each series."""
        mean = [part[:count] for part, count in zip(self.mean, rows, strict=True)]
        if self.var is None:
            return Covariates(mean, None, self.names)
        return Covariates(
            mean, [part[:count] for part, count in zip(self.var, rows, strict=True)], self.names
        )


def read_covariates(
    X: Any,  # noqa: N803
    panel: Panel,
    first: int | None,
    rows: Sequence[Sequence[int]],
    expected: Sequence[str] | None = None,
) -> Covariates:
    """Whatever holds the covariates of the series, checked.

    Args:
        X: for one series an array or Moments (rows, F), a pandas Series or DataFrame; for several
            a list or dict of these, or one DataFrame with a time index that serves all
        panel: the series
        first: number of the time that the first row stands for, counted from the series' start;
            None for its end
        rows: for each series, how many rows there may be; the first is what is taken from a table
            with times
        expected: names of the columns that there must be
    """
    parts = _parts(X, panel)
    means, variances, names = [], [], None
    for number, part in enumerate(parts):
        where = "X" if panel.single else f"X[{panel.names[number]!r}]"
        index = panel.times or panel.numbers
        times = None if index is None else index[number]
        start = len(panel.values[number]) if first is None else first
        mean, var, columns = _one(part, where, times, start, rows[number])
        if expected is not None and var is not None and len(columns) == len(expected):
            columns = list(expected)  # Moments have no names, and their columns go by order
        if names is not None and columns != names:
            raise ValueError(f"{where} has columns {columns}, other series have {names}")
        names = columns
        means.append(mean)
        variances.append(var)
    assert names is not None
    if expected is not None and list(names) != list(expected):
        raise ValueError(f"X has columns {names}, the forecaster was fitted with {list(expected)}")
    certain = all(var is None for var in variances)
    return Covariates(
        means,
        None
        if certain
        else [np.zeros_like(m) if v is None else v for m, v in zip(means, variances, strict=True)],
        names,
    )


def warn_if_far(X: Covariates, known: Covariates) -> None:  # noqa: N803
    """Say so if covariates are far from what the network has seen, as those of another unit are."""
    new = np.concatenate(X.mean)
    low, high = known.range()
    reach = _FAR * (high - low)
    for column, name in enumerate(known.names):
        values = new[:, column]
        far = (values < low[column] - reach[column]) | (values > high[column] + reach[column])
        if far.any():
            warnings.warn(
                f"the covariate {name!r} is {values[far][0]:g}, and so far it was between "
                f"{low[column]:g} and {high[column]:g}; check its unit, the forecast may be wrong",
                stacklevel=4,
            )


def _parts(X: Any, panel: Panel) -> list[Any]:  # noqa: N803
    """The covariates of each series, in the order of the panel."""
    if panel.single:
        if isinstance(X, Mapping):
            raise TypeError(
                "X is a dict, which is for several series, and there is one; pass its covariates "
                "themselves, an array (time, covariates) or a DataFrame with a column for each"
            )
        return [X]
    if isinstance(X, Mapping):
        missing = [name for name in panel.names if name not in X]
        if missing:
            raise ValueError(f"X has no covariates for the series {missing[0]!r}")
        return [X[name] for name in panel.names]
    if is_pandas(X, "DataFrame") or is_pandas(X, "Series"):
        if panel.times is None or not check_index(X.index, "X"):
            raise ValueError(
                "one table X serves several series only where it and they have a time index; pass "
                "a list with one X for each series"
            )
        return [X] * len(panel)
    if isinstance(X, Sequence):
        if len(X) != len(panel):
            raise ValueError(f"X holds covariates of {len(X)} series, and there are {len(panel)}")
        return list(X)
    raise TypeError(
        f"X is {type(X).__name__} and there are several series; pass a list with one X for each"
    )


def _one(
    X: Any,  # noqa: N803
    where: str,
    times: Times | Numbers | None,
    first: int,
    rows: Sequence[int],
) -> tuple[Array, Array | None, list[str]]:
    if isinstance(X, Moments):
        mean, var = (np.asarray(part.detach().cpu(), np.float64) for part in X)
        mean, _, names = _one(mean, where, None, first, rows)
        var, _, _ = _one(var, f"{where}.var", None, first, rows)
        if (var < 0).any():
            raise ValueError(f"{where}.var has negative entries (smallest {var.min():g})")
        return mean, var, names
    columns: list[str] | None = None
    if is_pandas(X, "DataFrame") and X.columns.has_duplicates:
        twice = X.columns[X.columns.duplicated()][0]
        raise ValueError(f"{where} has several columns named {twice!r}; rename them")
    if is_pandas(X, "Series"):
        X = X.to_frame()  # noqa: N806
    if is_pandas(X, "DataFrame"):
        columns = [str(column) for column in X.columns]
        X = _at_times(X, where, times, first, rows[0])  # noqa: N806
        numbers = [as_numbers(X[c].to_numpy(), f"{where}[{c!r}]") for c in X.columns]
        found = np.stack(numbers, 1) if numbers else np.zeros((len(X), 0))
    else:
        found = as_numbers(X, where)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2:
        raise ValueError(f"{where} has shape {found.shape}; pass (time, covariates)")
    if found.shape[1] == 0:
        raise ValueError(f"{where} has no columns; pass X=None where there are no covariates")
    if len(found) not in rows:
        wanted = " or ".join(str(count) for count in dict.fromkeys(rows))
        raise ValueError(
            f"{where} has {len(found)} rows and {wanted} are needed: one for every value of the "
            "series, and for a forecast one for every step of the horizon"
        )
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        raise ValueError(
            f"{where} is {found[row, column]} in row {row}, column {column}; covariates must be "
            "known: fill it, with its uncertainty as Moments if there is any"
        )
    if found.size and np.abs(found).max() > LARGEST:
        raise ValueError(
            f"{where} has values beyond {LARGEST:g}, whose squares overflow; change its unit"
        )
    return found, None, columns or [str(number) for number in range(found.shape[1])]


def _at_times(
    X: Any,  # noqa: N803
    where: str,
    times: Times | Numbers | None,
    first: int,
    count: int,
) -> Any:
    """The rows of a table at the times that are needed; as they are where the series have none."""
    timed = check_index(X.index, where)
    if timed != isinstance(times, Times):
        which = f"{where} has" if timed else "the series have"
        raise ValueError(f"only {which} a time index; give both one, or none")
    if times is None:
        return X
    what_to_do = "covariates must be known"
    if isinstance(times, Times):
        zones = [str(getattr(part, "tz", None)) for part in (times.start, X.index)]
        if zones[0] != zones[1]:
            raise ValueError(
                f"{where} has times of zone {zones[1]}, the series of {zones[0]}; convert one of "
                "them"
            )
    else:
        what_to_do = (
            f"number its rows as those of the series, which goes from {times.start} to "
            f"{times.values(times.count - 1, 1)[0]}"
        )
        if numbers_of(X.index) is None:
            raise ValueError(
                f"{where} has no index of whole numbers, and the series have one; {what_to_do}"
            )
    wanted = times.index(first, count)
    missing = ~wanted.isin(X.index)
    if missing.any():
        raise ValueError(f"{where} has no row for {wanted[missing][0]}; {what_to_do}")
    return X.loc[wanted]
