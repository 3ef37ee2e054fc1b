"""Intervals of a forecaster where there are few windows to judge by."""

from __future__ import annotations

import numpy as np
import pytest

from spgru.forecast import Forecaster


@pytest.mark.parametrize(
    ("length", "warning", "is_fitted"),
    [
        (30, "hold 3 windows of validation, too few to calibrate by", False),
        (40, "hold 5 windows of validation, too few to make intervals of level 0.8", True),
    ],
)
def test_few_windows_of_validation_are_warned_of(
    length: int, warning: str, is_fitted: bool
) -> None:
    series = np.sin(np.arange(length)) + 0.1 * np.random.default_rng(0).normal(size=length)
    forecaster = Forecaster(4, 4, 1, hidden_size=4, mode="direct", steps=20, progress=False)
    with pytest.warns(UserWarning, match=warning):
        forecaster.fit(series)
    assert (forecaster.report is not None) == is_fitted
    assert np.isfinite(forecaster.predict(series).interval(0.8)).all()
