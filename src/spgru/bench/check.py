"""Whether a contender computes what it should; if not, its time is not reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from spgru.bench.problem import Answer

__all__ = ["Comparison", "compare", "limit_for", "worst"]


class Comparison(NamedTuple):
    """One comparison with the truth."""

    what: str
    error: float
    limit: float

    @property
    def is_fine(self) -> bool:
        return self.error <= self.limit  # False for NaN


def limit_for(dtype: torch.dtype, tf32: bool) -> float:
    """The largest allowed relative error in norm, against float64.

    Largest errors in benchmarks/results, ours and torch.nn's: 4.3e-3 in bfloat16 (whose unit of
    rounding is 3.9e-3), 7.0e-4 in TF32, 1.1e-6 in float32. The limits leave a factor of 5, of 1.4
    and of 9; a wrong formula or a missing gate is off by far more.
    """
    if dtype == torch.bfloat16:
        return 2e-2
    # TF32 keeps 10 bits of what it multiplies: off by up to 1e-3 if operands are truncated.
    return 1e-3 if tf32 else 1e-5


def relative_error(found: Tensor, true: Tensor) -> float:
    """|found - true| / |true|; infinite where the true one is 0 and the other is not."""
    difference = (found.double() - true.double()).norm()
    return 0.0 if not difference else (difference / true.double().norm()).item()


def compare(answer: Answer, truth: Mapping[str, Tensor], limit: float) -> list[Comparison]:
    """Everything the contender answered with, against the same thing of the truth."""
    comparisons = []
    for what, found in answer.items():
        if found.shape != truth[what].shape:
            raise ValueError(
                f"{what} has shape {tuple(found.shape)} but should have {tuple(truth[what].shape)}"
            )
        comparisons.append(Comparison(what, relative_error(found, truth[what]), limit))
    if "var" in answer:
        comparisons.append(Comparison("negative variances", float((answer["var"] < 0).sum()), 0))
    return comparisons


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """The one furthest beyond its limit, or closest to it."""

    def excess(comparison: Comparison) -> float:
        if not comparison.error:
            return 0.0
        return comparison.error / comparison.limit if comparison.limit else math.inf

    return max(comparisons, key=lambda comparison: (not comparison.is_fine, excess(comparison)))
