"""Context and season that a forecaster chooses for itself."""

from __future__ import annotations

import pytest

from spgru.forecast.settings import Settings, choose_sizes


@pytest.mark.parametrize(
    ("season", "horizon", "longest", "expected"),
    [
        (24, 24, 5000, 360),  # hours: two weeks and a day
        (24, 24, 600, 300),  # no more than half of the series
        (24, 24, 300, 168),  # and no less than seven days
        (48, 48, 20000, 400),  # half hours: at most 400
        (12, 12, 300, 84),  # months
        (7, 7, 1000, 49),  # days
        (52, 13, 500, 364),  # weeks
        (1, 24, 1000, 96),  # four horizons
    ],
)
def test_the_context_that_is_chosen(season: int, horizon: int, longest: int, expected: int) -> None:
    assert choose_sizes(Settings(horizon), [longest // 2, longest], season) == (expected, season)


def test_a_context_that_is_given_is_taken() -> None:
    assert choose_sizes(Settings(24, context=100), [5000], 24) == (100, 24)
