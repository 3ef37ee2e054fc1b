"""Features of every time: what a calendar says, and covariates in units of their own.

There is no feature that counts steps: where a series starts is arbitrary, and a history that is cut
must not change a forecast. What repeats with a season reaches the network as values a season ago.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spgru.forecast.covariates import Covariates
from spgru.forecast.data import Panel
from spgru.forecast.scaling import Array

__all__ = ["FeatureScaling", "features_of"]

_IGNORED = 1e150
"""A unit in which all covariates are 0, and whose square does not overflow."""


@dataclass(frozen=True)
class FeatureScaling:
    """Mean and standard deviation of every covariate, from the fit."""

    mean: Array
    """(F,)"""
    std: Array
    """(F,), positive"""
    calendar: int
    """columns of the calendar, which come first"""

    @property
    def size(self) -> int:
        return self.calendar + len(self.mean)


def features_of(
    panel: Panel,
    covariates: Covariates | None,
    calendar: bool,
    extra: int,
    scaling: FeatureScaling | None = None,
) -> tuple[tuple[list[Array] | None, list[Array] | None], FeatureScaling]:
    """Features and their variances for all values and `extra` steps after them, None without any.

    Args:
        scaling: of the fit; None to find it
    """
    rows = [len(values) + extra for values in panel.values]
    dates = None
    if calendar and panel.times is not None and (scaling is None or scaling.calendar):
        dates = [t.calendar(0, n) for t, n in zip(panel.times, rows, strict=True)]
    if scaling is None:
        together = np.zeros((1, 0)) if covariates is None else np.concatenate(covariates.mean)
        std = together.std(0)
        # A constant covariate says nothing, and is 0 then, whatever it becomes later.
        std = np.where(std > 1e-12 * np.maximum(np.abs(together).max(0), 1e-300), std, _IGNORED)
        scaling = FeatureScaling(together.mean(0), std, dates[0].shape[1] if dates else 0)
    if not scaling.size:
        return (None, None), scaling
    parts: list[list[Array]] = [[] for _ in rows] if dates is None else [[date] for date in dates]
    if covariates is not None:
        for part, mean in zip(parts, covariates.mean, strict=True):
            part.append((mean - scaling.mean) / scaling.std)
    variances = None
    if covariates is not None and covariates.var is not None:
        variances = [
            np.concatenate([np.zeros((len(var), scaling.calendar)), var / scaling.std**2], 1)
            for var in covariates.var
        ]
    return ([np.concatenate(part, 1) for part in parts], variances), scaling
