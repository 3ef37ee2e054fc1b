"""How much series usually vary, for contexts that do not show it.

A context that happens to be constant says nothing of the next change. The rest of the history does;
where there is none, the series of the fit do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spgru.forecast.scaling import Array, Scaling

__all__ = ["MOST_BLOCKS", "Usual", "mean_steps"]

MOST_BLOCKS = 64
"""Contexts of a history, its last ones, that tell what is usual."""


@dataclass(frozen=True)
class Usual:
    """Medians over stretches of a history that are as long as a context and not constant.

    In the units that values are scaled in: for positive data those of the logarithm. NaN where a
    history is constant or has no whole context.
    """

    scale: Array
    """(S, 1), standard deviations"""
    steps: Array
    """(S, 2), mean |difference| at lag 1 and at the season"""
    extent: Array
    """(S, 2), the smallest and the largest value of the series"""
    level: Array
    """(S, 1), mean value, of positive data alone"""

    @classmethod
    def of(cls, values: Sequence[Array], context: int, season: int, positive: bool) -> Usual:
        """Of each series, NaN where nothing was observed."""
        found, extent = np.full((len(values), 4), np.nan), np.full((len(values), 2), np.nan)
        for number, one in enumerate(values):
            if not np.isnan(one).all():
                extent[number] = np.nanmin(one), np.nanmax(one)
            count = min(len(one) // context, MOST_BLOCKS)
            blocks = one[len(one) - count * context :].reshape(count, context)
            blocks = blocks[(~np.isnan(blocks)).sum(1) > 1]
            # Rounding alone makes a deviation of numbers that are all the same.
            blocks = blocks[np.nanmax(blocks, 1) > np.nanmin(blocks, 1)] if len(blocks) else blocks
            if len(blocks):
                scaling = Scaling.of(blocks, positive)
                steps = mean_steps(scaling.forward(blocks), season) * scaling.scale
                unit = np.full_like(scaling.scale, np.nan) if scaling.unit is None else scaling.unit
                found[number] = _medians(np.concatenate([scaling.scale, steps, unit], 1))
        return cls(found[:, :1], found[:, 1:3], extent, found[:, 3:])

    def completed(self, known: Usual, short: npt.NDArray[np.bool_]) -> Usual:
        """Short constant series get what is usual for those that are known to have been there.

        Args:
            known: of the fit
            short: (S,), whose history is too short to tell whether it is always constant
        """
        scale, steps, level = self.scale.copy(), self.steps.copy(), self.level.copy()
        constant = self.extent[:, 0] == self.extent[:, 1]
        for number in np.flatnonzero(short & constant):
            value = self.extent[number, 0]
            there = (known.extent[:, 0] <= value) & (value <= known.extent[:, 1])
            there &= ~np.isnan(known.scale[:, 0])
            if there.any():
                scale[number] = _medians(known.scale[there])
                steps[number] = _medians(known.steps[there])
                level[number] = _medians(known.level[there])
        return Usual(scale, steps, self.extent, level)

    def some(self, most: int) -> Usual:
        """Of at most so many series."""
        every = slice(None, None, max(1, -(-len(self.scale) // most)))
        return Usual(self.scale[every], self.steps[every], self.extent[every], self.level[every])

    def table(self) -> list[list[float | None]]:
        """A row for each series, for a file."""
        rows = np.concatenate([self.scale, self.steps, self.extent, self.level], 1).tolist()
        return [[None if np.isnan(value) else value for value in row] for row in rows]

    @classmethod
    def of_table(cls, rows: list[list[float | None]]) -> Usual:
        """What `table` gave."""
        found = np.asarray(rows, np.float64)  # None becomes NaN
        # Files that were written before hold no level.
        level = found[:, 5:] if found.shape[1] > 5 else np.full((len(found), 1), np.nan)
        return cls(found[:, :1], found[:, 1:3], found[:, 3:5], level)


def mean_steps(z: Array, season: int) -> Array:
    """Mean |difference| at lag 1 and at the season, NaN where there is none. (B, C) -> (B, 2)"""
    found = []
    for lag in (1, season):
        difference = np.abs(z[:, lag:] - z[:, :-lag])
        seen = ~np.isnan(difference)
        total = np.where(seen, difference, 0.0).sum(1)
        found.append(np.where(seen.any(1), total / np.maximum(seen.sum(1), 1), np.nan))
    return np.stack(found, 1)


def _medians(columns: Array) -> Array:
    """(N, K) -> (K,), NaN where a column has nothing."""
    empty = np.isnan(columns).all(0)
    found: Array = np.where(empty, np.nan, np.nanmedian(np.where(empty, 0.0, columns), 0))
    return found
