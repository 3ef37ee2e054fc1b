"""How good quantiles are: WQL, CRPS, MASE, coverage and width, one definition for all methods.

A method gives its quantiles at `LEVELS`, whether it has a distribution or samples. Errors of a
window are divided by the mean |seasonal difference| of its history where series are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spgru.compare.tasks import Task
from spgru.forecast.scaling import Array

__all__ = ["LEVELS", "Scores", "pinball", "score"]

_DECILES = tuple(k / 10 for k in range(1, 10))
_CELLS = 100
_MIDDLES = tuple((k + 0.5) / _CELLS for k in range(_CELLS))
LEVELS = tuple(sorted({*_DECILES, *_MIDDLES}))
"""Of the quantiles that a method is asked for: deciles, and the middles of 100 equal cells."""


class Scores(NamedTuple):
    wql: float
    """twice the quantile loss over the sum of |y|, averaged over the deciles"""
    crps: float
    """integral of twice the quantile loss over all levels by the midpoint rule, which for a
    Gaussian is within 0.5 %; in units of the seasonal error, averaged over windows"""
    mase: float
    """mean |error| of the median, likewise"""
    coverage: float
    """share of outcomes between the first and the last decile: 0.8 is right"""
    width: float
    """mean distance between these, in units of the seasonal error"""


def pinball(quantiles: Array, levels: Sequence[float], y: Array) -> Array:
    """Quantile loss, (L, W, H) and (W, H) -> (L, W, H)"""
    error = y - quantiles
    level = np.asarray(levels)[:, None, None]
    found: Array = np.maximum(level * error, (level - 1) * error)
    return found


def score(quantiles: Array, task: Task) -> Scores:
    """Judge quantiles (L, W, H) at `LEVELS` for the W windows of a task."""
    expected = len(LEVELS), len(task.windows), task.horizon
    if quantiles.shape != expected:
        raise ValueError(f"quantiles have shape {quantiles.shape}, expected {expected}")
    if not np.isfinite(quantiles).all():
        raise ValueError("some quantiles are not finite")
    y = np.stack([future for _, future in task.windows])
    deciles, middles = (
        quantiles[np.searchsorted(LEVELS, np.asarray(levels) - 1e-9)]
        for levels in (_DECILES, _MIDDLES)
    )
    unit = np.asarray([seasonal_error(history, task.season) for history, _ in task.windows])
    low, high = deciles[0], deciles[-1]
    crps = 2 * pinball(middles, _MIDDLES, y).mean((0, 2))
    return Scores(
        wql=float(2 * pinball(deciles, _DECILES, y).mean(0).sum() / np.abs(y).sum()),
        crps=float((crps / unit).mean()),
        mase=float((np.abs(y - deciles[4]).mean(1) / unit).mean()),
        coverage=float(((low <= y) & (y <= high)).mean()),
        width=float(((high - low).mean(1) / unit).mean()),
    )


def seasonal_error(history: Array, season: int) -> float:
    """Mean |difference| between seasons, what seasonal naive is wrong by one season ahead."""
    found = float(np.abs(history[season:] - history[:-season]).mean())
    if not found > 0:
        raise ValueError("a history repeats its season exactly; its errors have no unit")
    return found
