"""Contexts that are constant, or nearly so, in series that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spgru.forecast import Forecaster
from spgru.forecast.usual import Usual
from spgru.forecast.windows import Windows

CONTEXT, HORIZON, PLATEAU = 16, 12, 25


def plateaus(length: int, random: np.random.Generator) -> Any:
    levels = random.standard_normal(length // PLATEAU + 2)
    return np.repeat(levels, PLATEAU)[random.integers(PLATEAU) :][:length]


@pytest.fixture(scope="module", params=["direct", "fed-back"])
def fitted(request: pytest.FixtureRequest) -> Forecaster:
    random = np.random.default_rng(0)
    return Forecaster(
        HORIZON, context=CONTEXT, steps=30, hidden_size=4, mode=request.param, progress=False,
        device="cpu",
    ).fit([plateaus(400, random) for _ in range(8)])  # fmt: skip


@pytest.mark.parametrize("known", ["history", "context"])
def test_intervals_hold_after_constant_contexts(fitted: Forecaster, known: str) -> None:
    random = np.random.default_rng(1)
    histories, outcomes = [], []
    for one in (plateaus(200, random) for _ in range(60)):
        for origin in range(120, 200 - HORIZON, 7):
            if np.ptp(one[origin - CONTEXT : origin]) == 0:
                histories.append(
                    one[:origin] if known == "history" else one[origin - CONTEXT : origin]
                )
                outcomes.append(one[origin : origin + HORIZON])
    forecast = fitted.predict(histories, parts=False)
    low, high = forecast.interval(0.8)
    share = np.mean((low <= outcomes) & (outcomes <= high))
    assert 0.68 < share < 0.92
    low, high = forecast.interval(0.99)
    assert np.mean((low <= outcomes) & (outcomes <= high)) > share + 0.05


def test_what_is_usual_is_saved(fitted: Forecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path)
    context = np.full(CONTEXT, 0.25)
    found = Forecaster.load(tmp_path).predict(context, parts=False)
    np.testing.assert_array_equal(found.std, fitted.predict(context, parts=False).std)
    assert found.std.min() > 1e-3
    # A value that no known series has had: in other units, perhaps.
    assert fitted.predict(context * 1e6, parts=False).std.max() < 1.0


def test_usual_is_the_median_of_stretches_that_are_not_constant() -> None:
    wave = np.array([0.0, 2, 0, 2, 5, 5, 5, 5, 0, 6, 0, 6, 1, 3, 1, 3])
    found = Usual.of([wave, np.full(16, 3.0), wave[:3]], 4, 2, positive=False)
    np.testing.assert_allclose(found.scale[:, 0], [1, np.nan, np.nan])
    np.testing.assert_allclose(found.steps[0], [2, 0])
    assert found.extent.tolist() == [[0, 6], [3, 3], [0, 2]]
    again = Usual.of_table(found.table())
    np.testing.assert_array_equal(again.scale, found.scale)
    np.testing.assert_array_equal(again.extent, found.extent)


def test_a_calm_context_has_a_share_of_the_usual_scale() -> None:
    one = np.concatenate([np.tile([0.0, 2.0], 20), np.full(8, 1.0), [41.0, 41.0]])
    windows = Windows([one], None, None, 8, 2, 2, False, torch.device("cpu"))
    origin = np.zeros(1, np.int64), np.full(1, 48)
    batch = windows.batch(*origin)
    np.testing.assert_allclose(batch.scaling.scale, 0.1)
    np.testing.assert_allclose(batch.target, 400, rtol=1e-5)  # as far away as it is
    np.testing.assert_allclose(windows.batch(*origin, clipped=True).target, 20)


def test_the_unit_of_positive_data_does_not_matter_after_zeros() -> None:
    random = np.random.default_rng(0)
    y = random.poisson(3 + 2 * np.sin(np.arange(300) * 2 * np.pi / 12)).astype(float)
    y[100:140] = y[200:230] = y[-30:] = 0
    found = []
    for unit in (1e-3, 1.0, 1e6):
        fitted = Forecaster(
            4, 24, 12, positive=True, mode="direct", hidden_size=4, steps=10, progress=False,
            device="cpu",
        ).fit(unit * y)  # fmt: skip
        other = fitted.predict(unit * np.zeros(24))  # a history too short to tell
        found.append([fitted.predict().quantile(0.99) / unit, other.quantile(0.99) / unit])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[1], rtol=1e-6)
    assert np.min(found) > 0.01
