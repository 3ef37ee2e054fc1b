"""An index of whole numbers, equally far apart: 0, 1, ... or years, or what else counts steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "numbers_of"]

_LARGEST = 2**53
"""Beyond it floating point does not hold all whole numbers."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a series, known by the first, how many there are and their distance."""

    start: int
    count: int
    step: int

    def values(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """From place `first` on; the series' own are at 0 to `self.count` - 1."""
        return self.start + self.step * np.arange(first, first + count, dtype=np.int64)

    def index(self, first: int, count: int) -> Any:
        """The same, as an index of pandas."""
        import pandas

        stop = self.start + self.step * (first + count)
        return pandas.RangeIndex(self.start + self.step * first, stop, self.step)

    def longer(self, steps: int) -> Numbers:
        return Numbers(self.start, self.count + steps, self.step)

    def require_alike(self, other: Numbers, name: str) -> None:
        """One distance."""
        if self.step != other.step:
            raise ValueError(
                f"{name} holds series whose index rises by {self.step} and by {other.step}; "
                "give all one step, or arrays, which have no index"
            )

    def missing_before(self, later: Numbers, name: object) -> int:
        """How many numbers lie between the end of these and the start of those."""
        self.require_alike(later, "the known series and y together")
        last = self.start + self.step * (self.count - 1)
        if later.start <= last:
            raise ValueError(
                f"y of the series {name!r} starts at {later.start}, and it is known until {last}; "
                f"an update takes what came later: number it from {last + self.step} on, or pass "
                "an array"
            )
        steps, rest = divmod(later.start - last, self.step)
        if rest:
            raise ValueError(
                f"y of the series {name!r} starts at {later.start}, which is no multiple of "
                f"{self.step} after {last}"
            )
        return steps - 1


def numbers_of(index: Any, step: int | None = None) -> Numbers | None:
    """Of a pandas index; None for one of something else, such as fractions.

    Args:
        step: if it is known, for an index of one number
    """
    found = np.asarray(index)
    if len(found) == 0 or found.dtype.kind not in "iuf":
        return None
    if np.abs(found[[0, -1]].astype(np.float64)).max() > _LARGEST or (found % 1 != 0).any():
        return None
    if len(found) == 1:
        return Numbers(int(found[0]), 1, step or int(getattr(index, "step", 1)))
    steps = np.diff(found)
    if (steps != steps[0]).any():
        return None
    return Numbers(int(found[0]), len(found), int(steps[0]))
