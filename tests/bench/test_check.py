from __future__ import annotations

import math

import pytest
import torch

from spgru.bench.check import Comparison, compare, limit_for, worst
from spgru.bench.contenders import make_contenders
from spgru.bench.problem import CELLS, Problem
from spgru.bench.sampling import MCLSTM, check_sampling
from spgru.bench.shapes import MODES, Case, Shape

CPU = torch.device("cpu")
CASE = Case(Shape(3, 5, 7, 6))


def test_limits() -> None:
    assert limit_for(torch.float32, False) == 1e-5
    assert limit_for(torch.float32, True) == 1e-3
    assert limit_for(torch.bfloat16, True) == 2e-2


def test_comparing() -> None:
    truth = {"mean": torch.tensor([3.0, 4.0]), "var": torch.ones(2)}
    answer = {"mean": torch.tensor([3.0, 4.5]), "var": torch.tensor([1.0, -1.0])}
    errors = {finding.what: finding.error for finding in compare(answer, truth, 0.2)}
    assert errors["mean"] == pytest.approx(0.1)
    assert errors["var"] == pytest.approx(2 / math.sqrt(2))
    assert errors["negative variances"] == 1
    with pytest.raises(ValueError, match=r"mean has shape \(3,\) but should have \(2,\)"):
        compare({"mean": torch.ones(3)}, truth, 0.1)


def test_the_worst_is_what_counts() -> None:
    good, close = Comparison("a", 0.1, 1.0), Comparison("b", 1e-6, 2e-6)
    assert worst([good, close]) == close
    for bad in (
        Comparison("c", math.nan, 1.0),
        Comparison("d", 1.0, 0.0),
        Comparison("e", math.inf, 1.0),
    ):
        assert not bad.is_fine
        assert worst([close, bad, good]) is bad
    assert worst([Comparison("none", 0.0, 0.0), good]) == good


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cell", CELLS)
def test_truth_agrees_with_torch_and_ours_with_truth(cell, mode) -> None:
    made = make_contenders(Problem(CASE, CPU), mode, 1e-5, (cell,), with_peers=False)
    checked = {one.name: one.check() for one in made if hasattr(one, "check")}
    assert {f"nn.{cell}", f"ours {cell}, reference"} <= set(checked)
    for findings in checked.values():
        assert all(finding.is_fine for finding in findings)
    names = {finding.what for finding in checked[f"ours {cell}, reference"]}
    gradients = {"gradient of means", "gradient of spreads"}
    assert names == {"mean", "var", "negative variances"} | (
        gradients if mode != "forward" else set()
    )


def test_sampling_without_the_factor_that_keeps_the_mean_is_found_out() -> None:
    class Biased(MCLSTM):
        def _masks(self, draws: int, x: torch.Tensor) -> torch.Tensor:
            return super()._masks(draws, x) * (1 - self.dropout) ** 3

    problem = Problem(Case(Shape(3, 5, 64, 32)), CPU)
    for method in ("folded", "looped"):
        right = check_sampling(MCLSTM(problem.plain("LSTM")), method, problem, 1e-5)
        assert all(finding.is_fine for finding in right)
        wrong = check_sampling(Biased(problem.plain("LSTM")), method, problem, 1e-5)
        assert not all(finding.is_fine for finding in wrong)
