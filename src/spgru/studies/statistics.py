"""Small statistics of the studies, on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from spgru.metrics import spearman

__all__ = [
    "auroc", "correlation", "growth", "mean", "mean_and_range", "rank_correlation", "ratio_error",
    "rises",
]  # fmt: skip


def rises(values: Sequence[float]) -> bool:
    """Whether each value is larger than the one before."""
    return all(before < after for before, after in pairwise(values))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def growth(values: Sequence[float]) -> float:
    """The last value over the first."""
    return values[-1] / values[0] if values[0] else math.inf


def mean_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, smallest and largest."""
    return mean(values), min(values), max(values)


def ratio_error(above: Tensor, below: Tensor) -> float | None:
    """Standard error of mean(above) / mean(below), of independent samples (N,) and (M,).

    None where a sample is one number.
    """
    if min(len(above), len(below)) < 2:
        return None
    above, below = above.double(), below.double()
    parts = [(x.var() / len(x) / x.mean() ** 2).item() for x in (above, below)]
    return abs((above.mean() / below.mean()).item()) * math.sqrt(sum(parts))


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's, of two vectors; None where one is constant."""
    found = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).double())[0, 1].item()
    return None if math.isnan(found) else found


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Spearman's, of two vectors; None where one is constant, since JSON has no NaN."""
    found = spearman(a.flatten(), b.flatten()).item()
    return None if math.isnan(found) else found


def auroc(negative: Tensor, positive: Tensor) -> float:
    """P(positive > negative) + P(equal) / 2: how well a number tells two kinds apart. (N,), (P,)

    1/2 is chance, 1 perfect.
    """
    ordered = negative.double().sort().values
    values = positive.double()
    below = torch.searchsorted(ordered, values, right=False)
    not_above = torch.searchsorted(ordered, values, right=True)
    return ((below + not_above).double().mean() / (2 * len(ordered))).item()
