"""Every measure against a formula that owes nothing to the code."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from spgru.compare.scores import LEVELS, score
from spgru.compare.tasks import Task, thinned

LOC, SIGMA = 3.0, 1.7


def make_task(windows: int = 40, season: int = 4, horizon: int = 6) -> Task:
    generator = np.random.default_rng(0)
    histories = [10 + generator.normal(size=50).cumsum() for _ in range(windows)]
    futures = [10 + 4 * generator.normal(size=horizon) for _ in range(windows)]
    return Task("made", histories, list(zip(histories, futures, strict=True)), season, "D")


def gaussian(task: Task, loc: float = LOC, sigma: float = SIGMA) -> np.ndarray:
    z = np.asarray([NormalDist().inv_cdf(level) for level in LEVELS])
    return np.broadcast_to(
        (loc + sigma * z)[:, None, None], (len(LEVELS), len(task.windows), task.horizon)
    )


def unit_of(task: Task, number: int) -> float:
    history, gap = task.windows[number][0], task.season
    return sum(abs(history[t] - history[t - gap]) for t in range(gap, len(history))) / (
        len(history) - gap
    )


def crps_by_quadrature(loc: float, sigma: float, y: float) -> float:
    """The integral of (F(x) - [x >= y])^2 over x."""
    from scipy.integrate import quad

    law = NormalDist(loc, sigma)
    below = quad(lambda x: law.cdf(x) ** 2, loc - 12 * sigma, y, limit=200)[0]
    above = quad(lambda x: (1 - law.cdf(x)) ** 2, y, max(y, loc) + 12 * sigma, limit=200)[0]
    return below + above


def test_crps_is_the_integral() -> None:
    pytest.importorskip("scipy")
    task = make_task(5)
    expected = np.mean(
        [
            np.mean([crps_by_quadrature(LOC, SIGMA, y) for y in future]) / unit_of(task, k)
            for k, (_, future) in enumerate(task.windows)
        ]
    )
    # 100 cells instead of the integral: 0.2 % here.
    assert score(gaussian(task), task).crps == pytest.approx(expected, rel=5e-3)


def test_crps_of_a_point_is_the_absolute_error() -> None:
    task = make_task(5)
    found = score(gaussian(task, sigma=0.0), task)
    assert found.crps == pytest.approx(found.mase, rel=1e-9)
    assert found.width == 0


def test_wql_and_mase_by_definition() -> None:
    task = make_task(7)
    quantiles = gaussian(task)
    loss = total = 0.0
    errors = []
    for k, (_, future) in enumerate(task.windows):
        for q in range(1, 10):
            value = LOC + SIGMA * NormalDist().inv_cdf(q / 10)
            for y in future:
                loss += 2 * ((y - value) * q / 10 if y > value else (value - y) * (1 - q / 10)) / 9
        total += sum(abs(y) for y in future)
        errors.append(np.mean([abs(y - LOC) for y in future]) / unit_of(task, k))
    found = score(quantiles, task)
    assert found.wql == pytest.approx(loss / total, rel=1e-9)
    assert found.mase == pytest.approx(np.mean(errors), rel=1e-9)


def test_coverage_and_width() -> None:
    task = make_task(400)
    found = score(gaussian(task, loc=10.0, sigma=4.0), task)
    count = 400 * task.horizon
    assert found.coverage == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / count))
    units = [unit_of(task, k) for k in range(400)]
    width = 2 * 4.0 * 1.2815515655446004
    assert found.width == pytest.approx(np.mean([width / unit for unit in units]), rel=1e-9)


def test_what_cannot_be_judged_is_refused() -> None:
    task = make_task(3)
    with pytest.raises(ValueError, match="have shape"):
        score(gaussian(task)[:-1], task)
    with pytest.raises(ValueError, match="not finite"):
        score(gaussian(task) * np.nan, task)
    flat = Task("flat", [np.ones(20)], [(np.ones(20), np.ones(6))], 4, "D")
    with pytest.raises(ValueError, match="repeats its season"):
        score(gaussian(flat), flat)


def test_thinning_keeps_windows_with_their_series() -> None:
    series = [np.full(10, float(k)) for k in range(5)]
    windows = [(values, values[:2]) for values in series for _ in range(3)]
    few = thinned(Task("made", series, windows, 2, "D"), 2)
    assert [values[0] for values in few.histories] == [0.0, 3.0]
    assert [history[0] for history, _ in few.windows] == [0.0] * 3 + [3.0] * 3
