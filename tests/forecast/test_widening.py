"""Intervals where the end of a history is missing, or most of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from spgru import Moments
from spgru.forecast import Forecaster
from spgru.forecast.widening import Widening

CONTEXT, HORIZON = 32, 6


def walks(count: int, length: int, seed: int) -> Any:
    return np.cumsum(np.random.default_rng(seed).standard_normal((count, length)), 1)


@pytest.fixture(scope="module", params=["direct", "fed-back"])
def fitted(request: pytest.FixtureRequest) -> Forecaster:
    return Forecaster(
        HORIZON, context=CONTEXT, steps=30, hidden_size=4, mode=request.param, progress=False,
        device="cpu",
    ).fit(list(walks(6, 400, 0)))  # fmt: skip


def covered(fitted: Forecaster, hidden: slice) -> tuple[float, float]:
    """Share of outcomes in the 80 % interval, and its mean width."""
    values = walks(400, CONTEXT + HORIZON, 1)
    history, outcome = values[:, :CONTEXT].copy(), values[:, CONTEXT:]
    history[:, hidden] = np.nan
    low, high = fitted.predict(list(history), parts=False).interval(0.8)
    return float(np.mean((low <= outcome) & (outcome <= high))), float(np.mean(high - low))


def test_intervals_hold_after_a_gap(fitted: Forecaster) -> None:
    width = 0.0
    for gap in (0, 1, 5, 20):
        share, wider = covered(fitted, slice(CONTEXT - gap, None))
        assert 0.7 < share < 0.9, gap
        assert wider > width
        width = wider


def test_intervals_hold_with_few_values(fitted: Forecaster) -> None:
    for count in (2, 3, 8):
        share, _ = covered(fitted, slice(CONTEXT - count))
        assert 0.7 < share < 0.9, count


def test_a_context_that_lacks_nothing_keeps_its_variance(fitted: Forecaster) -> None:
    widening = fitted.network.widening
    assert isinstance(widening, Widening)
    np.testing.assert_array_equal(widening.by_gap[0], 1)
    assert widening.by_count[CONTEXT] == 1
    assert (widening.by_gap.diff(dim=0) >= 0).all()
    assert (widening.by_count.diff() <= 0).all()


def test_parts_add_up_after_a_gap(fitted: Forecaster) -> None:
    history = walks(1, CONTEXT, 3)[0]
    history[-4:] = np.nan
    forecast = fitted.predict(history, parts=True)
    np.testing.assert_allclose(sum(forecast.parts.values()), forecast.var, rtol=1e-5)
    np.testing.assert_allclose(forecast.var, fitted.predict(history, parts=False).var, rtol=1e-5)


def test_forecasters_saved_before_go_on_without(fitted: Forecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    config, model = tmp_path / "forecaster.json", tmp_path / "model.safetensors"
    gap = walks(1, CONTEXT, 3)[0]
    gap[-4:] = np.nan
    expected = fitted.predict(gap)
    np.testing.assert_array_equal(Forecaster.load(tmp_path).predict(gap).var, expected.var)
    weights = safetensors.torch.load_file(model)
    weights = {name: value for name, value in weights.items() if "widening" not in name}
    model.write_bytes(safetensors.torch.save(weights))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 1}))
    old = Forecaster.load(tmp_path)
    np.testing.assert_array_equal(old.predict().var, fitted.predict().var)
    np.testing.assert_array_equal(old.predict(gap).mean, expected.mean)
    assert (old.predict(gap).var < expected.var).all()


def test_factors_go_by_the_last_observed_value_and_by_their_number() -> None:
    widening = Widening(3, 2)
    widening.by_gap.copy_(torch.tensor([[1.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]))
    widening.by_count.copy_(torch.tensor([80.0, 40.0, 20.0, 10.0]))
    seen = torch.tensor([[1.0, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0]])
    values = torch.tensor([-1.0, 0.0, 1.0]).expand(4, 3)
    found = widening(Moments(torch.zeros(4, 2), torch.ones(4, 2)), values, seen)
    assert found.var.tolist() == [[10, 10], [80, 120], [20, 20], [480, 560]]
