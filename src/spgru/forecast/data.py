"""Series in, as people have them: arrays, lists, pandas; checked, and in one form afterwards.

What cannot be a series is refused with a sentence that names it. What is handled:

- NaN, masked entries and gaps in a time index are missing values;
- integers, booleans and exact decimals become floating point.

pandas is only imported where pandas objects come in.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from spgru.forecast.numbers import Numbers, numbers_of
from spgru.forecast.scaling import LARGEST, Array
from spgru.forecast.times import Times, aligned, times_of

__all__ = ["LONG", "Panel", "as_numbers", "is_pandas", "read_series"]

LONG = (
    ("item", "time", "value"),
    ("unique_id", "ds", "y"),
    ("item_id", "timestamp", "target"),
)
"""Names of the columns of a long table: ours, Nixtla's, GluonTS's."""


@dataclass(frozen=True)
class Panel:
    """One or many series of one frequency."""

    values: list[Array]
    """(n,) each, NaN where nothing was observed"""
    names: list[Any]
    """labels of the series: keys or columns, or 0, 1, ..."""
    times: list[Times] | None
    """of each series, None for plain arrays"""
    single: bool
    """whether one series was given, and not a collection of one"""
    numbers: list[Numbers] | None = None
    """the index of each series where it is one of whole numbers, None for plain arrays"""

    def __len__(self) -> int:
        return len(self.values)


def read_series(
    y: Any,
    positive: bool = False,
    name: str = "y",
    freq: str | None = None,
    may_be_unknown: bool = False,
    step: int | None = None,
) -> Panel:
    """Whatever holds one or many series, checked.

    Args:
        y: a 1-D array or list of numbers; a pandas Series; a list or dict of these; a DataFrame
            with a column for each series (wide) or with columns item, time and value (long)
        positive: refuse negative values
        name: of the argument, for messages
        freq: of the time index, if it is known; else found out, which takes three times
        may_be_unknown: allow series that are NaN throughout
        step: of an index of whole numbers, if it is known
    """
    items, single = _items(y, name)
    values, times, numbers = [], [], []
    for label, item in items:
        where = name if single else f"{name}[{label!r}]"
        found, when = _one(item, where, freq)
        _check_values(found, where, positive, may_be_unknown)
        values.append(found)
        times.append(when)
        if when is None and is_pandas(item, "Series"):
            numbers.append(numbers_of(item.index, step))
    known = [when for when in times if when is not None]
    if known and len(known) < len(times):
        raise ValueError(
            f"some series of {name} have a time index and some have none; give all one"
        )
    for when in known[1:]:
        known[0].require_alike(when, name)
    # By one name of the frequency: the calendar goes by it.
    known = [replace(when, freq=known[0].freq) for when in known]
    counts = [count for count in numbers if count is not None]
    if len(counts) < len(values):
        counts = []  # by order, as arrays are
    for count in counts[1:]:
        counts[0].require_alike(count, name)
    return Panel(values, [label for label, _ in items], known or None, single, counts or None)


def _items(y: Any, name: str) -> tuple[list[tuple[Any, Any]], bool]:
    """Labels and series, and whether it is one series."""
    if y is None:
        raise TypeError(f"{name} is None; pass a series")
    if isinstance(y, str | bytes):
        raise TypeError(f"{name} is text; read the file first, for example by pandas.read_csv")
    if is_pandas(y, "DataFrame"):
        return _from_frame(y, name), False
    if is_pandas(y, "Series"):
        return [(y.name, y)], True
    if isinstance(y, Mapping):
        items = list(y.items())
    elif isinstance(y, np.ndarray | Tensor):
        return _from_array(y if isinstance(y, np.ndarray) else as_numbers(y, name), name)
    elif isinstance(y, Sequence):
        if all(np.ndim(item) == 0 for item in y) and len(y):
            return _from_array(as_numbers(y, name), name)
        items = list(enumerate(y))
    else:
        raise TypeError(
            f"{name} is {type(y).__name__}; pass an array, a list of arrays, or a pandas Series or "
            "DataFrame"
        )
    if not items:
        raise ValueError(f"{name} holds no series")
    return items, False


def _from_array(y: Any, name: str) -> tuple[list[tuple[Any, Any]], bool]:
    if y.ndim != 1:
        raise ValueError(
            f"{name} has shape {y.shape}, and it is not said which dimension is time; pass one "
            "dimension, or list(y) if every row is a series, list(y.T) if every column is one"
        )
    return [(0, y)], True


def _from_frame(y: Any, name: str) -> list[tuple[Any, Any]]:
    """The columns of a wide table, or the items of a long one."""
    columns = list(y.columns)
    if len(set(columns)) < len(columns):
        twice = next(column for column in columns if columns.count(column) > 1)
        raise ValueError(f"{name} has several columns named {twice!r}; rename them")
    for item, time, value in LONG:
        if {item, time, value} <= set(columns):
            if y[item].isna().any():
                row = int(y[item].isna().to_numpy().argmax())
                raise ValueError(
                    f"{name} has no {item!r} in row {row}; say which series it belongs to, or "
                    "remove it"
                )
            unused = [str(column) for column in columns if column not in (item, time, value)]
            if unused:
                warnings.warn(
                    f"{name} has columns that are not used: {', '.join(unused)}; pass as X what "
                    "will be known for the horizon, too",
                    stacklevel=5,
                )
            return [
                (label, part.set_index(time)[value])
                for label, part in y.groupby(item, sort=False, observed=True)
            ]
    if y.shape[1] == 0 or y.shape[0] == 0:
        raise ValueError(f"{name} is an empty table")
    if "time" in columns or "timestamp" in columns or "ds" in columns:
        raise ValueError(
            f"{name} has a column of times and not the columns of a long table ("
            + "; or ".join(", ".join(names) for names in LONG)
            + "); rename its columns, or set the times as index for one series a column"
        )
    return [(column, y[column]) for column in columns]


def _one(item: Any, where: str, freq: str | None) -> tuple[Array, Times | None]:
    """Values and times of one series; gaps in the times are missing values."""
    if is_pandas(item, "Series"):
        times = times_of(item.index, where, freq)
        values = as_numbers(item.to_numpy(), where)
        return (values, None) if times is None else aligned(values, item.index, times)
    values = as_numbers(item, where)
    if values.ndim != 1:
        raise ValueError(f"{where} has shape {values.shape}; a series has one dimension, time")
    return values, None


def as_numbers(values: Any, where: str) -> Array:
    """Floating point, or an error that shows the first entry that is no number."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            values = values.detach().double()  # numpy knows neither gradients nor bfloat16
        values = values.cpu().numpy()
    if isinstance(values, np.ma.MaskedArray):
        kind: Any = np.float64 if values.dtype.kind in "biuf" else object
        values = np.ma.filled(values.astype(kind), np.nan)
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{where} is no array of numbers: {error}") from None
    if found.dtype.kind in "biuf":
        return found.astype(np.float64)
    if found.dtype.kind == "c":
        raise TypeError(f"{where} holds complex numbers; forecast their parts")
    if found.dtype.kind in "mM":
        raise TypeError(f"{where} holds times, not numbers; pass them as index")
    numbers = np.empty(found.shape)
    for place, value in np.ndenumerate(found):
        if isinstance(value, str | bytes):
            raise TypeError(
                f"{where} holds text ({str(value)!r} at {place[0]}); convert it, for example by "
                "pandas.to_numeric(column, errors='coerce'), which makes text missing"
            )
        try:
            # None and pandas.NA are missing values.
            numbers[place] = np.nan if _is_missing(value) else float(value)
        except OverflowError:
            raise ValueError(
                f"{where} has a number beyond {LARGEST:g} at {place[0]}; change its unit"
            ) from None
        except (TypeError, ValueError):
            raise TypeError(
                f"{where} holds {type(value).__name__} at {place[0]}; pass numbers"
            ) from None
    return numbers


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _check_values(values: Array, where: str, positive: bool, may_be_unknown: bool) -> None:
    if len(values) == 0:
        raise ValueError(f"{where} is empty")
    if np.isinf(values).any():
        place = int(np.flatnonzero(np.isinf(values))[0])
        raise ValueError(f"{where} is infinite at {place}; put NaN where nothing was observed")
    seen = values[~np.isnan(values)]
    if len(seen) == 0 and may_be_unknown:
        return
    if len(seen) == 0:
        raise ValueError(f"{where} is NaN throughout; leave it out")
    if np.abs(seen).max() > LARGEST:
        raise ValueError(
            f"{where} has values beyond {LARGEST:g}, whose squares overflow; change its unit"
        )
    if positive and seen.min() < 0:
        raise ValueError(
            f"{where} has negative values (smallest {seen.min():g}) and positive=True; "
            "use positive=False, or correct them"
        )


def is_pandas(value: Any, kind: str) -> bool:
    pandas = sys.modules.get("pandas")  # who holds such an object has imported it
    return pandas is not None and isinstance(value, getattr(pandas, kind))
