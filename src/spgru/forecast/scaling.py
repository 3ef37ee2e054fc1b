"""Every window in units of its own: location and scale of what was observed in the context.

They come from the context alone, so a forecast depends on the last `context` values, and a network
trained on some series reads others in the same units. Contexts that are constant, or far calmer
than the rest of their series, are the exception (`spgru.forecast.usual`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["FLOOR", "LARGEST", "Array", "Scaling", "at_least_usual"]

Array = npt.NDArray[np.float64]

LARGEST = 1e100
"""Values beyond it are refused: their squares would overflow."""
FLOOR = 1e-9
"""A constant context of a constant series has no scale; it counts as varying by this share of its
level."""
_NARROW = 1e-5
"""Standard deviations of a logarithm below which it is as good as linear, where it is cut off."""
_NOTHING_BELOW = 8.0
"""Standard deviations from 0 beyond which nothing is cut off."""
_LEAST_SHARE = 0.1
"""Of what is usual for a series: a context that varies less counts as varying by it."""


@dataclass(frozen=True)
class Scaling:
    """value -> z = (value - loc) / scale, for positive data with log(1 + value / unit) as value."""

    loc: Array
    """(B, 1)"""
    scale: Array
    """(B, 1), positive"""
    unit: Array | None = None
    """(B, 1), None where there is no logarithm"""

    @classmethod
    def of(
        cls,
        context: Array,
        positive: bool,
        usual: Array | None = None,
        level: Array | None = None,
    ) -> Self:
        """Of the observed values of each context.

        Args:
            context: (B, C), NaN where nothing was observed; at least one value in every row
            positive: take the logarithm first
            usual: (B, 1), the scale that other contexts of the series have, NaN where unknown
            level: (B, 1), likewise the mean of positive data, for contexts that are 0 throughout
        """
        unit = None
        if positive:
            unit = np.nanmean(context, 1, keepdims=True)
            if level is not None:
                unit = np.where(unit > 0, unit, level)
            unit = np.where(unit > 0, unit, 1.0)
            context = np.log1p(context / unit)
        loc = np.nanmean(context, 1, keepdims=True)
        level = np.nanmean(np.abs(context), 1, keepdims=True)
        floor = FLOOR * np.where(level > 0, level, 1.0)
        scale = np.nanstd(context, 1, keepdims=True)
        if usual is not None:
            scale = at_least_usual(scale, usual)
        return cls(loc, np.maximum(scale, floor), unit)

    def of_rows(self, rows: slice) -> Scaling:
        """That of some windows."""
        return Scaling(
            self.loc[rows], self.scale[rows], None if self.unit is None else self.unit[rows]
        )

    def forward(self, values: Array) -> Array:
        """(B, N) -> (B, N); NaN stays NaN"""
        if self.unit is not None:
            values = np.log1p(values / self.unit)
        return (values - self.loc) / self.scale

    def unscaled(self, z: Array) -> Array:
        """The inverse, (..., B, N) -> (..., B, N). Positive data is never below 0."""
        values = self.loc + self.scale * z
        if self.unit is None:
            return values
        return self.unit * np.maximum(np.expm1(values), 0.0)

    def moments(self, mean: Array, var: Array) -> tuple[Array, Array]:
        """Mean and variance of the value whose z is Gaussian with these moments. (B, N) each

        With a logarithm, value / unit is a log-normal less 1, cut off at 0 as the quantiles are.
        """
        mean, var = self.loc + self.scale * mean, self.scale**2 * var
        if self.unit is None:
            return mean, var
        first, second = _cut_log_normal(mean, var)
        return self.unit * first, self.unit**2 * second


def _cut_log_normal(mean: Array, var: Array) -> tuple[Array, Array]:
    """Mean and variance of max(exp(x) - 1, 0), x Gaussian with these moments."""
    std = np.sqrt(var)
    bound = mean / np.maximum(std, np.finfo(np.float64).tiny)
    factor = np.exp(mean + var / 2)
    above = _ndtr(bound)
    part = factor * _ndtr(bound + std)
    first = part - above
    second = factor**2 * np.exp(var) * _ndtr(bound + 2 * std) - 2 * part + above - first**2
    # Little spread: differences of numbers near 1 would lose it, and exp(x) - 1 is x there.
    density = std * np.exp(-(bound**2) / 2) / math.sqrt(2 * math.pi)
    plain = mean * above + density
    narrow = std < _NARROW
    first = np.where(narrow, plain, first)
    second = np.where(narrow, (mean**2 + var) * above + mean * density - plain**2, second)
    # Hardly anything is cut off: the log-normal itself, to the last digit.
    whole = bound > _NOTHING_BELOW
    first = np.where(whole, factor - 1, first)
    second = np.where(whole, factor**2 * np.expm1(var), second)
    return np.maximum(first, 0.0), np.maximum(second, 0.0)


def _ndtr(x: Array) -> Array:
    """The distribution function of a standard Gaussian."""
    found: Array = torch.special.ndtr(torch.from_numpy(np.asarray(x, np.float64))).numpy()
    return found


def at_least_usual(own: Array, usual: Array) -> Array:
    """The size of changes of contexts, not less than a share of what is usual for their series.

    (B, K) each; NaN where the context, or the series, does not tell.
    """
    known = np.where(np.isnan(own), usual, own)
    return np.where(np.isnan(usual), own, np.maximum(known, _LEAST_SHARE * usual))
