"""Baselines: equal to their definitions, and intervals that make sense."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgru.compare import tasks
from spgru.compare.method import Budget
from spgru.compare.methods import make_methods, seasonal_naive
from spgru.compare.networks import Ensemble, MonteCarloDropout, PlainDirect
from spgru.compare.scores import LEVELS
from spgru.compare.tasks import PACKAGED, Task, packaged_tasks
from spgru.forecast.network import Anchor, Direct
from spgru.nn.contexts import at_mean

TINY = Budget(steps=6, hidden_size=4, batch_size=8, members=2, draws=4, samples=20)


def wave_task() -> Task:
    t = np.arange(220)
    noise = 0.3 * np.random.default_rng(0).normal(size=(2, 220))
    series = [10 + 3 * np.sin(2 * np.pi * (t + k) / 12) + noise[k] for k in range(2)]
    windows = [(values[:-6], values[-6:]) for values in series]
    return Task("waves", [values[:-6] for values in series], windows, 12, "M")


def inputs(context: int = 9, horizon: int = 3) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    values = torch.randn(5, context)
    return values, torch.ones_like(values), torch.randn(5, 2), torch.zeros(5, context + horizon, 0)


def test_the_plain_network_is_ours_with_certain_weights() -> None:
    anchor = Anchor(4, 1.0)
    plain = PlainDirect(3, 9, 6, anchor)
    torch.nn.init.normal_(plain.head.weight)
    ours = Direct(
        horizon=3, context=9, season=4, features=0, hidden_size=6, num_layers=1, cell="gru",
        anchor=anchor,
    )  # fmt: skip
    ours.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad(), at_mean(ours):
        expected, found = ours(*inputs()), plain.eval()(*inputs())
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.var, expected.var, rtol=1e-5, atol=1e-6)


def test_an_ensemble_has_the_moments_of_the_mixture() -> None:
    torch.manual_seed(0)
    members = [PlainDirect(3, 9, 6, Anchor(1, 1.0)).eval() for _ in range(3)]
    for member in members:
        torch.nn.init.normal_(member.head.weight)
    with torch.no_grad():
        found, parts = Ensemble(members)(*inputs()), [member(*inputs()) for member in members]
    draws = np.random.default_rng(0).normal(size=(200_000, 3))
    for place in ((0, 0), (4, 2)):
        means = np.asarray([part.mean[place] for part in parts])
        stds = np.asarray([part.var[place] ** 0.5 for part in parts])
        sample = (means + stds * draws).ravel()
        error = 5 * sample.std() / np.sqrt(len(sample))
        assert found.mean[place].item() == pytest.approx(sample.mean(), abs=error)
        assert found.var[place].item() == pytest.approx(sample.var(), rel=0.01)


def test_dropout_is_drawn_and_repeats() -> None:
    network = PlainDirect(3, 9, 6, Anchor(1, 1.0), dropout=0.5)
    torch.nn.init.normal_(network.head.weight)
    drawn = MonteCarloDropout(network, 200).eval()
    with torch.no_grad():
        first, again, certain = drawn(*inputs()), drawn(*inputs()), network.eval()(*inputs())
        alone = drawn(*(part[2:3] for part in inputs()))
        torch.testing.assert_close(alone.mean, first.mean[2:3])
        network.dropout = 0.0
        torch.testing.assert_close(drawn(*inputs()).mean, certain.mean)
    torch.testing.assert_close(first.mean, again.mean)
    assert (first.var > certain.var).float().mean() > 0.8


def test_seasonal_naive_widens_with_the_seasons() -> None:
    task = Task("t", [], [(np.arange(8.0), np.zeros(5))], 2, "D")
    predict, _ = seasonal_naive(task, TINY, 0)
    found = predict([np.asarray([1.0, 5.0, 2.0, 4.0, 3.0, 6.0])])
    np.testing.assert_allclose(found[LEVELS.index(0.5), 0], [3, 6, 3, 6, 3])
    square = np.mean(np.square([1, -1, 1, 2]))
    width = found[LEVELS.index(0.9), 0] - found[LEVELS.index(0.5), 0]
    np.testing.assert_allclose(width, 1.2815515655 * np.sqrt(square * np.asarray([1, 1, 2, 2, 3])))


@pytest.mark.filterwarnings("ignore")  # of other packages
@pytest.mark.parametrize("method", make_methods(), ids=lambda method: method.name)
def test_quantiles_ascend_and_surround_the_series(method) -> None:  # type: ignore[no-untyped-def]
    if not method.is_installed:
        pytest.skip(f"{method.package} is not installed")
    task = wave_task()
    predict, seconds = method.fit(task, TINY, 0)
    found = predict([history for history, _ in task.windows])
    assert found.shape == (len(LEVELS), 2, 6)
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) >= -1e-9).all()
    assert (found[-1] > found[0]).all()
    assert seconds >= 0
    if method.name != "DeepAR":  # six steps are nothing to it
        assert (np.abs(found[LEVELS.index(0.5)] - 10) < 6).all()


def test_packaged_series() -> None:
    pytest.importorskip("statsmodels")
    for task in packaged_tasks():
        assert task.name in PACKAGED
        assert len({len(future) for _, future in task.windows}) == 1
        assert all(np.isfinite(values).all() for values in task.histories)
        shortest = min(len(values) for values in task.histories)
        assert min(len(history) for history, _ in task.windows) >= shortest


def test_co2_begins_after_its_last_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a gap would put the season out of phase before it."""
    rows = []
    for month in range(12 * 1958 + 2, 12 * 2002):
        year, within = divmod(month, 12)
        gap = (year, within + 1) in [(1958, 6), (1964, 2), (1964, 3), (1964, 4)]
        # Two values in a month; March 1964 has no rows at all.
        if (year, within + 1) != (1964, 3):
            for day, offset in (("04", -0.5), ("18", 0.5)):
                value = "" if gap else str(300 + within + offset)
                rows.append([f"{year}{within + 1:02d}{day}", value])
    monkeypatch.setattr(tasks, "_rows", lambda name: rows)
    (task,) = packaged_tasks(["co2"])
    values = np.concatenate(task.windows[-1])
    months = np.arange(12 * 1964 + 4, 12 * 2002)
    np.testing.assert_allclose(values, 300 + months % 12)
