"""Every window in units of its own: location and scale of what was observed in the context.

They come from the context alone, so a forecast depends on nothing but the last `context` values,
and a network trained on some series reads others in the same units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["FLOOR", "LARGEST", "Array", "Scaling"]

Array = npt.NDArray[np.float64]

LARGEST = 1e100
"""Values beyond it are refused: their squares would overflow."""
FLOOR = 1e-9
"""A constant context has no scale; it counts as varying by this share of its level."""


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
    def of(cls, context: Array, positive: bool) -> Self:
        """Of the observed values of each context.

        Args:
            context: (B, C), NaN where nothing was observed; at least one value in every row
            positive: take the logarithm first
        """
        unit = None
        if positive:
            unit = np.nanmean(context, 1, keepdims=True)
            unit = np.where(unit > 0, unit, 1.0)
            context = np.log1p(context / unit)
        loc = np.nanmean(context, 1, keepdims=True)
        level = np.nanmean(np.abs(context), 1, keepdims=True)
        floor = FLOOR * np.where(level > 0, level, 1.0)
        return cls(loc, np.maximum(np.nanstd(context, 1, keepdims=True), floor), unit)

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

        With a logarithm, 1 + value / unit is log-normal and both are exact, but for what lies
        below 0.
        """
        mean, var = self.loc + self.scale * mean, self.scale**2 * var
        if self.unit is None:
            return mean, var
        factor = np.exp(mean + var / 2)
        return self.unit * (factor - 1), (self.unit * factor) ** 2 * np.expm1(var)
