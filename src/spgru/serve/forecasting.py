"""Forecasts of an uploaded table, as a worker computes them."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import numpy as np

from spgru.forecast import Forecaster
from spgru.forecast.tables import read_column
from spgru.serve.errors import RefusedError
from spgru.serve.table import ForecastAsked

__all__ = ["forecast"]

_HISTORY = 4
"""Known values that the page shows, in horizons; at least `_LEAST_SHOWN`."""
_LEAST_SHOWN = 60
_QUICK: dict[str, Any] = {"steps": 150, "batch_size": 32}
_THOROUGH: dict[str, Any] = {"steps": 600, "batch_size": 64}


def forecast(asked: ForecastAsked) -> dict[str, Any]:
    """A forecast with two intervals, and its variance by what it comes from."""
    start = time.perf_counter()
    try:
        series = read_column(io.StringIO(asked.csv), asked.column, asked.time)
        forecaster = Forecaster(
            asked.horizon,
            season=asked.season,
            mode="direct",
            positive=asked.positive,
            level=asked.level,
            device="cpu",
            progress=False,
            **(_THOROUGH if asked.thorough else _QUICK),
        ).fit(series)
        found = forecaster.predict(parts=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise RefusedError(str(error)) from error
    shown = min(len(found.history[0]), max(_HISTORY * asked.horizon, _LEAST_SHOWN))
    times = None if asked.time is None else found.index
    past = found.history[0][-shown:]
    low, high = found.interval(asked.level)
    inner = found.interval(0.5)
    return {
        "column": asked.column,
        "level": asked.level,
        "first_step": len(found.history[0]) - shown,
        "history": _numbers(past),
        "history_times": None if found.times is None else _texts(
            found.times[0].index(len(found.history[0]) - shown, shown)
        ),
        "times": None if times is None else _texts(times),
        "mean": _numbers(found.mean),
        "median": _numbers(found.median),
        "std": _numbers(found.std),
        "low": _numbers(low),
        "high": _numbers(high),
        "inner_low": _numbers(inner[0]),
        "inner_high": _numbers(inner[1]),
        "parts": {name: _numbers(part) for name, part in found.parts.items()},
        "context": forecaster.context,
        "season": forecaster.season,
        "seconds": time.perf_counter() - start,
    }  # fmt: skip


def _numbers(values: Any) -> list[float | None]:
    """JSON has no NaN: what is missing is null."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return [float(value) if math.isfinite(value) else None for value in flat]


def _texts(index: Any) -> list[str]:
    return [str(value) for value in index]
