from __future__ import annotations

import pytest
import torch
from scipy.stats import mannwhitneyu

from spgru.studies.statistics import (
    auroc,
    growth,
    mean_and_range,
    rank_correlation,
    ratio_error,
    rises,
)


@pytest.mark.parametrize(
    ("values", "answer"),
    [([1.0, 2.0, 3.0], True), ([1.0, 3.0, 2.0], False), ([1.0, 1.0], False), ([1.0], True)],
)
def test_rises(values: list[float], answer: bool) -> None:
    assert rises(values) is answer


def test_growth() -> None:
    assert growth([2.0, 9.0, 3.0]) == 1.5
    assert growth([0.0, 1.0]) == float("inf")


def test_spread() -> None:
    assert mean_and_range([3.0, 1.0, 5.0]) == (3.0, 1.0, 5.0)


def test_auroc_is_that_of_scipy_ties_included() -> None:
    negative, positive = torch.randint(0, 6, (40,)), torch.randint(2, 8, (30,))
    expected = mannwhitneyu(positive, negative).statistic / (40 * 30)
    assert auroc(negative, positive) == pytest.approx(expected, abs=1e-12)
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([3.0])) == 1


def test_error_of_a_ratio_is_the_spread_of_repetitions() -> None:
    above = torch.distributions.Gamma(4.0, 2.0).sample((4000, 200)).double()
    below = torch.distributions.Gamma(9.0, 6.0).sample((4000, 300)).double()
    std = (above.mean(1) / below.mean(1)).std().item()  # known to 1.1 %
    errors = [ratio_error(a, b) for a, b in zip(above[:50], below[:50], strict=True)]
    assert sum(error or 0 for error in errors) / 50 == pytest.approx(std, rel=0.06)
    assert ratio_error(above[0], below[0, :1]) is None


def test_rank_correlation_with_a_constant_is_unknown() -> None:
    x = torch.rand(2, 5)
    assert rank_correlation(x, x**3) == pytest.approx(1)
    assert rank_correlation(x, torch.ones(2, 5)) is None
