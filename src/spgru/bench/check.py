"""Whether a contender computes what it should; if not, its time means nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from spgru.bench.problem import Answer

__all__ = ["Finding", "compare", "limit_for", "worst"]


class Finding(NamedTuple):
    """One comparison with the truth."""

    what: str
    error: float
    limit: float

    @property
    def is_fine(self) -> bool:
        return self.error <= self.limit  # and NaN is not


def limit_for(dtype: torch.dtype, tf32: bool) -> float:
    """How far relative norms may be from float64."""
    if dtype == torch.bfloat16:
        return 2e-2
    # TF32 keeps 10 bits of what it multiplies. Emulated on a CPU our GRU is off by 3e-4 to 5e-4,
    # and by up to 1e-3 if operands are truncated instead of rounded.
    return 1e-3 if tf32 else 1e-5


def relative_error(found: Tensor, true: Tensor) -> float:
    """|found - true| / |true|; infinite where the true one is 0 and the other is not."""
    difference = (found.double() - true.double()).norm()
    return 0.0 if not difference else (difference / true.double().norm()).item()


def compare(answer: Answer, truth: Mapping[str, Tensor], limit: float) -> list[Finding]:
    """Everything the contender answered with, against the same thing of the truth."""
    findings = []
    for what, found in answer.items():
        if found.shape != truth[what].shape:
            raise ValueError(
                f"{what} has shape {tuple(found.shape)} but should have {tuple(truth[what].shape)}"
            )
        findings.append(Finding(what, relative_error(found, truth[what]), limit))
    if "var" in answer:
        findings.append(Finding("negative variances", float((answer["var"] < 0).sum()), 0))
    return findings


def worst(findings: Iterable[Finding]) -> Finding:
    """The one furthest beyond its limit, or closest to it."""

    def excess(finding: Finding) -> float:
        if not finding.error:
            return 0.0
        return finding.error / finding.limit if finding.limit else math.inf

    return max(findings, key=lambda finding: (not finding.is_fine, excess(finding)))
