"""Windows that train a network and windows that judge it; intervals that hold on the latter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
from torch import nn

from spgru.calibration import calibrate as fit_variance
from spgru.calibration.outcomes import least_sequences
from spgru.calibration.report import OutcomeReport
from spgru.forecast.settings import least_history
from spgru.forecast.windows import Numbers, Split, Windows, length_needed, split_windows

__all__ = ["choose_windows", "fit_intervals"]

_JUDGED = 256
"""Windows of validation that are aimed at, over all series; at most `_MOST_OF_ONE` of one."""
_MOST_OF_ONE = 32
_MOST_CALIBRATED = 2048
"""Windows that the calibration takes."""
_HELD_OUT = 0.7
"""Of them, the share that says how wide intervals must be; the fit itself takes less."""


def choose_windows(
    windows: Windows, lengths: Sequence[int], seed: int
) -> tuple[Split, tuple[Numbers, Numbers]]:
    """How windows divide into training and validation, and some of the training's."""
    judged = min(max(1, math.ceil(_JUDGED / len(lengths))), _MOST_OF_ONE)
    least = least_history(windows.context, windows.season)
    split = split_windows(lengths, windows.horizon, least, judged)
    if not (split.last_origin >= split.first_origin).any():
        needed = length_needed(windows.horizon, least, judged)
        raise ValueError(
            f"the longest series has {max(lengths)} values, and {needed} are needed: {least} to "
            f"read and {windows.horizon} to forecast in training, and up to a fifth for "
            "validation; use a smaller horizon, context or season, or more data"
        )
    split = split._replace(validation=_with_outcomes(windows, split.validation))
    return split, _drawn(windows, split.first_origin, split.last_origin, seed)


def fit_intervals(
    network: nn.Module,
    windows: Windows,
    which: tuple[Numbers, Numbers],
    level: float | None,
    seed: int,
) -> OutcomeReport | None:
    """Fit the variance to these windows of validation, in place.

    Args:
        network: any module from inputs of a batch to Moments
        level: of the interval that is made to hold, None for likelihood alone
    """
    series, origins = (part[:: max(1, len(part) // _MOST_CALIBRATED)] for part in which)
    if len(series) < 4:
        warnings.warn(
            f"the series hold {len(series)} windows of validation, too few to calibrate by; "
            "intervals are as trained",
            stacklevel=3,
        )
        return None
    if level is not None and math.floor(_HELD_OUT * len(series)) < least_sequences(level):
        warnings.warn(
            f"the series hold {len(series)} windows of validation, too few to make intervals of "
            f"level {level} hold by; the variance is fitted by likelihood alone",
            stacklevel=3,
        )
        level = None
    batch = windows.batch(series, origins)
    report = fit_variance(
        network, batch.inputs, batch.target, form="scale", level=level, held_out=_HELD_OUT,
        batch_dim=0, time_dim=1, seed=seed, progress=False,
    )  # fmt: skip
    assert isinstance(report, OutcomeReport)
    return report


def _with_outcomes(windows: Windows, which: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
    seen = windows.observed(*which)
    if not seen.any():
        raise ValueError(
            "nothing was observed at the end of the series, by which a network is judged; cut the "
            "missing values off"
        )
    return which[0][seen], which[1][seen]


def _drawn(windows: Windows, first: Numbers, last: Numbers, seed: int) -> tuple[Numbers, Numbers]:
    """Some windows of the training in which something was observed."""
    generator = np.random.default_rng(seed)
    usable = np.flatnonzero(last >= first)
    series = usable[generator.integers(len(usable), size=1024)]
    origins = first[series] + generator.integers((last - first + 1)[series])
    seen = windows.observed(series, origins)
    if not seen.any():
        raise ValueError(
            "no window of the series holds observed values both to read and to forecast; there are "
            "too many missing values"
        )
    return series[seen], origins[seen]
