from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spgru
from spgru import Moments
from spgru.forecast import Forecast, Forecaster
from spgru.forecast.network import Anchor, Direct, FedBack
from spgru.forecast.scaling import Scaling

HORIZON, SEASON = 6, 12
SMALL = {
    "season": SEASON, "context": 36, "steps": 30, "hidden_size": 6, "progress": False,
    "mode": "direct",
}  # fmt: skip


def wave(count: int, seed: int = 0, noise: float = 0.3, phase: float = 0.0) -> Any:
    random = np.random.default_rng(seed).standard_normal(count)
    return 10 + 2 * np.sin(2 * np.pi * (np.arange(count) + phase) / SEASON) + noise * random


def same(a: Forecast, b: Forecast) -> None:
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.var, b.var)


@pytest.fixture(scope="module")
def one() -> Forecaster:
    return Forecaster(HORIZON, **SMALL).fit(wave(300))


# -- the networks ---------------------------------------------------------------------------------


def _inputs(features: int = 0, batch: int = 3, context: int = 20, horizon: int = 7) -> Any:
    torch.manual_seed(0)
    return (
        torch.randn(batch, context), torch.ones(batch, context), torch.randn(batch, 2),
        torch.randn(batch, context + horizon, features),
    )  # fmt: skip


def _network(kind: Any, lag: int, rate: float, features: int = 0) -> Any:
    return kind(
        horizon=7, context=20, season=5, features=features, hidden_size=4, num_layers=1,
        cell="gru", anchor=Anchor(lag, rate),
    )  # fmt: skip


@pytest.mark.parametrize("features", [0, 2])
@pytest.mark.parametrize("kind", [Direct, FedBack])
def test_a_network_starts_at_the_plain_forecast(kind: Any, features: int) -> None:
    inputs = _inputs(features)
    values = inputs[0]
    last = _network(kind, 1, 1.0, features)(*inputs).mean
    torch.testing.assert_close(last, values[:, -1:].expand(-1, 7))
    season = _network(kind, 5, 1.0, features)(*inputs).mean
    torch.testing.assert_close(season, values[:, [15, 16, 17, 18, 19, 15, 16]])


def test_smoothing_weights_past_seasons() -> None:
    values = torch.randn(2, 22, dtype=torch.float64)
    found = Anchor(5, 0.25)(values, 7)
    weights = torch.tensor([0.75**j for j in range(4)], dtype=torch.float64)
    for k in range(7):
        past = torch.stack([values[:, 17 + k % 5 - 5 * j] for j in range(4)], 1)
        torch.testing.assert_close(found[:, k], past @ weights / weights.sum())


def test_reading_back_is_the_step_ahead_repeated() -> None:
    """With certain weights and no noise to speak of, a loop of single steps gives the same."""
    inputs = _inputs(features=2)
    network = _network(FedBack, 5, 1.0, 2)
    torch.nn.init.normal_(network.head.weight, std=0.3)
    values, seen, roughness, known = inputs
    with torch.no_grad(), spgru.nn.contexts.at_mean(network):
        expected = network(*inputs).mean
        for k in range(7):
            after = network.one_step(values, seen, roughness, known[:, : 20 + k + 1]).mean
            values = torch.cat([values, after[:, -1:]], 1)
            seen = torch.cat([seen, torch.ones(3, 1)], 1)
    torch.testing.assert_close(values[:, 20:], expected, rtol=1e-5, atol=1e-5)


# -- one series, many series ----------------------------------------------------------------------


def test_a_noisy_sine_is_forecast_and_intervals_hold() -> None:
    """The best forecast has errors of the noise alone; that of the last season, 1.41 times that.

    Measured: 1.15 times.
    """
    y = wave(1500)
    known = 900
    found = Forecaster(HORIZON, **SMALL | {"steps": 150}).fit(y[:known])
    origins = range(known, 1500 - HORIZON, 5)
    future = np.stack([y[n : n + HORIZON] for n in origins])
    forecast = found.predict([y[:n] for n in origins])
    error = np.sqrt(np.mean((forecast.mean - future) ** 2))
    assert error < 1.25 * 0.3
    low, high = forecast.interval(0.8)
    assert 0.7 < np.mean((low <= future) & (future <= high)) < 0.9


def test_many_series_of_different_units_share_a_network() -> None:
    many = {f"s{k}": 10.0**k * wave(200 + 10 * k, seed=k, phase=k) for k in range(5)}
    found = Forecaster(HORIZON, **SMALL).fit(many)
    forecast = found.predict()
    assert forecast.mean.shape == (5, HORIZON)
    for k, name in enumerate(many):
        truth = 10 + 2 * np.sin(2 * np.pi * (200 + 10 * k + np.arange(HORIZON) + k) / SEASON)
        np.testing.assert_allclose(forecast.mean[k] / 10.0**k, truth, atol=1.0)
        # One of them alone is forecast as among the others, up to the rounding of a batch.
        np.testing.assert_allclose(found.predict(many[name]).mean, forecast.mean[k], rtol=1e-5)


def test_auto_trains_both_and_keeps_the_better() -> None:
    found = Forecaster(HORIZON, **SMALL | {"mode": "auto", "steps": 5}).fit(wave(200))
    assert set(found.records) == {"direct", "fed-back"}
    assert found.mode in found.records


@pytest.mark.parametrize("options", [{"cell": "lstm"}, {"num_layers": 2}, {"loss": "nll"}])
@pytest.mark.parametrize("mode", ["direct", "fed-back"])
def test_options(mode: str, options: dict[str, Any]) -> None:
    found = Forecaster(HORIZON, **SMALL | {"mode": mode, "steps": 3} | options).fit(wave(200))
    assert np.isfinite(found.predict().quantile(0.9)).all()


def test_the_seed_decides_and_nothing_else_does(one: Forecaster) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    same(Forecaster(HORIZON, **SMALL).fit(wave(300)).predict(), one.predict())
    assert torch.equal(torch.get_rng_state(), before)
    other = Forecaster(HORIZON, **SMALL | {"seed": 1}).fit(wave(300)).predict()
    assert not np.array_equal(other.std, one.predict().std)


def test_training_stops_early() -> None:
    """Noise has nothing to learn."""
    y = np.random.default_rng(0).standard_normal(200)
    options = SMALL | {"steps": 200, "patience": 2, "season": 1, "lr": 0.03}
    record = Forecaster(HORIZON, **options).fit(y).records["direct"]
    assert record.stopped_early
    assert record.steps[-1] < 200
    assert record.best_score == min(record.scores)


# -- going on -------------------------------------------------------------------------------------


def test_an_update_is_a_longer_history() -> None:
    found = Forecaster(HORIZON, **SMALL).fit(wave(300)[:250])
    expected = found.predict(wave(300))
    found.update(wave(300)[250:251])
    found.update(wave(300)[251:])
    same(found.predict(), expected)


def test_an_update_of_many_series() -> None:
    many = {name: wave(200, seed) for seed, name in enumerate("abc")}
    found = Forecaster(HORIZON, **SMALL).fit({k: v[:180] for k, v in many.items()})
    expected = found.predict(many)
    with pytest.raises(ValueError, match="takes new values of all"):
        found.update({"a": [1.0]})
    found.update({k: many[k][180:] for k in "cab"})
    same(found.predict(), expected)


def test_an_update_with_times() -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-01-01", periods=200, freq="h", tz="Europe/Berlin")
    y = pandas.Series(wave(200), index=index)
    found = Forecaster(HORIZON, **SMALL).fit(y[:150])
    with pytest.raises(ValueError, match="it is known until 2024-01-07 05:00"):
        found.update(y[149:160])
    with pytest.raises(ValueError, match="no time of frequency 'h'"):
        found.update(y[150:152].set_axis(index[150:152] + pandas.Timedelta(minutes=5)))
    found.update(y[150:151])
    found.update(y[153:])  # two values are missing
    gap = y.copy()
    gap.iloc[[151, 152]] = np.nan
    same(found.predict(), found.predict(gap))
    assert found.predict().index[0] == index[-1] + pandas.Timedelta(hours=1)


def test_saved_and_loaded(tmp_path: Path, one: Forecaster) -> None:
    one.save(tmp_path / "one")
    again = Forecaster.load(tmp_path / "one")
    same(again.predict(), one.predict())
    assert again.settings == one.settings
    assert again.records["direct"].scores == one.records["direct"].scores
    assert one.report is not None
    assert str(again.report) == str(one.report)
    with pytest.raises(FileNotFoundError, match="holds no forecaster"):
        Forecaster.load(tmp_path)
    (tmp_path / "one" / "forecaster.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        Forecaster.load(tmp_path / "one")


def test_saved_with_times_and_covariates(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-03-28", periods=206, freq="h", tz="Europe/Berlin")
    known = pandas.DataFrame({"a": wave(206, 1), "b": wave(206, 2)}, index=index)
    y = pandas.DataFrame({"x": wave(200), "y": wave(200, 3)}, index=index[:200])
    found = Forecaster(HORIZON, **SMALL).fit(y, known)
    found.save(tmp_path)
    again = Forecaster.load(tmp_path)
    same(again.predict(X=known), found.predict(X=known))
    assert again.predict(X=known).index[1].equals(index[200:])


def test_names_of_series_are_saved(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    days = [pandas.Timestamp("2024-03-31 12:00", tz=zone) for zone in (None, "Europe/Berlin")]
    names = ["a", 1, 2.5, None, np.int64(7), np.str_("b"), ("north", np.int32(3)), ((1, "x"), 2)]
    names += [*days, ("at", days[1])]
    found = Forecaster(HORIZON, **SMALL | {"steps": 1}).fit({name: wave(100) for name in names})
    found.save(tmp_path)
    again = Forecaster.load(tmp_path).predict().names
    assert again == names
    assert str(again[9].tz) == "Europe/Berlin"
    strange = frozenset("ab")
    with pytest.raises(TypeError, match="of type frozenset, and only text, numbers, pandas Timest"):
        Forecaster(HORIZON, **SMALL | {"steps": 1}).fit({("x", strange): wave(100)}).save(tmp_path)


# -- covariates -----------------------------------------------------------------------------------


def _with_effect(count: int) -> tuple[Any, Any]:
    known = np.random.default_rng(7).standard_normal((count + HORIZON, 1))
    return wave(count, noise=0.1) + 2 * known[:count, 0], known


@pytest.mark.parametrize("mode", ["direct", "fed-back"])
def test_covariates_are_used_and_their_uncertainty_counts(mode: str) -> None:
    y, known = _with_effect(400)
    options = SMALL | {"mode": mode, "steps": 250, "lr": 0.01, "hidden_size": 12}
    found = Forecaster(HORIZON, **options).fit(y, known[:400])
    later = known[400:]
    low, high = (found.predict(X=later + shift).mean for shift in (-0.5, 0.5))
    # The effect is 2; a short training finds most of it at the first step.
    assert 1.0 < (high - low)[0] < 3.0
    certain = found.predict(X=later)
    mean = torch.from_numpy(later)
    uncertain = found.predict(X=Moments(mean, torch.full_like(mean, 0.25)), parts=True)
    assert (uncertain.var[0] - certain.var[0]) > 0.2
    assert uncertain.parts["inputs"][0] > 0.2
    # Forecasts from drawn covariates: a first order against all orders, within its 10 % of error.
    draws = later + 0.5 * np.random.default_rng(3).standard_normal((800, HORIZON, 1))
    drawn = found.predict([y] * 800, [np.concatenate([known[:400], part]) for part in draws])
    np.testing.assert_allclose(uncertain.parts["inputs"], drawn.mean.var(0), rtol=0.3)
    sure = found.predict(X=Moments(mean, torch.zeros_like(mean)), parts=True)
    np.testing.assert_allclose(sure.var, certain.var, rtol=1e-4)
    np.testing.assert_allclose(sure.parts["inputs"], 0, atol=1e-6)


def test_covariates_of_a_history_and_of_the_horizon_alone_are_the_same() -> None:
    y, known = _with_effect(200)
    found = Forecaster(HORIZON, **SMALL).fit(y, known)
    expected = found.predict(y, known)
    same(found.predict(X=known[200:]), expected)
    shorter = Forecaster(HORIZON, **SMALL).fit(y, known)
    with pytest.raises(ValueError, match="X is missing"):
        shorter.update([1.0])
    longer = np.concatenate([known[:200], known[:4]])
    shorter.update(wave(3), longer[200:203])
    expected = shorter.predict(
        np.concatenate([y, wave(3)]), np.concatenate([longer[:203], known[:6]])
    )
    same(shorter.predict(X=known[:6]), expected)


# -- what a forecast says -------------------------------------------------------------------------


def test_quantiles_are_those_of_the_moments_and_rise(one: Forecaster) -> None:
    forecast = one.predict()
    found = forecast.quantile(np.arange(1, 10) / 10)
    assert found.shape == (9, HORIZON)
    assert (np.diff(found, axis=0) > 0).all()
    np.testing.assert_allclose(found[4], forecast.mean)
    np.testing.assert_allclose((found[8] - found[0]) / forecast.std, 2 * 1.2815515655446004)
    low, high = forecast.interval(0.8)
    np.testing.assert_allclose([low, high], found[[0, 8]])
    for q in (0.0, 1.0, 90.0):
        with pytest.raises(ValueError, match="q must lie between 0 and 1"):
            forecast.quantile(q)


def test_parts_add_up(one: Forecaster) -> None:
    forecast = one.predict()
    assert set(forecast.parts) == {"weights", "inputs", "noise"}
    np.testing.assert_allclose(sum(forecast.parts.values()), forecast.var, rtol=1e-6)
    assert all((part >= 0).all() for part in forecast.parts.values())
    assert (forecast.parts["weights"] > 0).all()
    np.testing.assert_array_equal(forecast.parts["inputs"], 0)
    with pytest.raises(ValueError, match=r"predict\(parts=True\)"):
        _ = one.predict(parts=False).parts


def test_tensors_of_any_precision_are_read(one: Forecaster) -> None:
    y = torch.randn(80).bfloat16().requires_grad_()
    found = [one.predict(values).mean for values in (y, y.detach().double().numpy(), [*y.tolist()])]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert one.predict(y).quantile(np.array(0.1)).shape == found[0].shape


def test_positive_data_stays_positive() -> None:
    """Moments of the log-normal, against draws of it."""
    y = np.exp(wave(300) / 2 - 6 + 0.5 * np.random.default_rng(1).standard_normal(300))
    y[10] = 0.0
    forecast = Forecaster(HORIZON, **SMALL | {"positive": True}).fit(y).predict()
    assert (forecast.quantile(0.001) >= 0).all()
    assert (forecast.mean > forecast.median).all()
    draws = np.random.default_rng(2).standard_normal((400_000, 1))
    values = forecast.scaling.unscaled(forecast.z_mean + draws * np.sqrt(forecast.z_var))
    assert np.mean(values == 0) < 0.05  # what is cut off at 0 is no large part
    error = 5 * values.std(0) / np.sqrt(len(draws)) + 0.02 * forecast.mean
    assert (np.abs(values.mean(0) - forecast.mean) < error).all()
    np.testing.assert_allclose(values.var(0), forecast.var, rtol=0.1)


def test_moments_of_positive_data_are_those_of_what_is_cut_off_at_0() -> None:
    """Against the integral over quantiles; never negative, never below the median."""
    spread = np.array([1e-7, 1e-3, 0.3, 1.5])[:, None]
    mean = spread * np.array([-3.0, -0.5, 0.0, 0.5, 3.0, 12.0])
    scaling = Scaling(np.zeros((4, 1)), np.ones((4, 1)), np.full((4, 1), 7.0))
    found, var = scaling.moments(mean, np.broadcast_to(spread**2, mean.shape))
    nodes = np.linspace(-9, 12, 200_001)
    density = np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi) * (nodes[1] - nodes[0])
    for row, column in np.ndindex(mean.shape):
        values = 7 * np.maximum(np.expm1(mean[row, column] + spread[row] * nodes), 0)
        first = density @ values
        np.testing.assert_allclose(found[row, column], first, rtol=1e-6)
        np.testing.assert_allclose(var[row, column], density @ (values - first) ** 2, rtol=1e-5)
    assert (found >= scaling.unscaled(mean)).all()


def test_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.period_range("2010-01", periods=120, freq="M")
    wide = pandas.DataFrame({"a": wave(120), "b": wave(120, 1)}, index=index)
    found = Forecaster(HORIZON, **SMALL).fit(wide)
    table = found.predict().to_frame(quantiles=(0.1, 0.9))
    assert list(table.columns) == ["item", "time", "mean", "std", "0.1", "0.9"]
    assert len(table) == 2 * HORIZON
    assert table["time"][0] == pandas.Period("2020-01", "M")
    long = wide.set_axis(index.to_timestamp()).rename_axis("time").reset_index()
    long = long.melt("time", var_name="item")
    same(Forecaster(HORIZON, **SMALL, calendar=False).fit(long).predict(),
         Forecaster(HORIZON, **SMALL, calendar=False).fit(wide).predict())  # fmt: skip


def test_a_table_of_series_whose_names_are_tuples() -> None:
    pytest.importorskip("pandas")
    names = [("north", 1), ("south", 2)]
    y = {name: np.sin(np.arange(60) + k) for k, name in enumerate(names)}
    fitted = Forecaster(3, 12, 6, mode="direct", hidden_size=2, steps=1, progress=False).fit(y)
    assert list(fitted.predict().to_frame()["item"]) == [names[0]] * 3 + [names[1]] * 3


def test_a_table_without_times(one: Forecaster) -> None:
    pytest.importorskip("pandas")
    assert one.predict().to_frame()["time"].tolist() == list(range(300, 306))
    assert one.predict().index is None


def test_a_plot(one: Forecaster, tmp_path: Path) -> None:
    figure = one.predict().plot(levels=(0.5, 0.9))
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["observed", "90% interval", "50% interval", "median"]
    figure.savefig(tmp_path / "forecast.png")
    with pytest.raises(ValueError, match="series is 1"):
        one.predict().plot(series=1)


def test_repr(one: Forecaster) -> None:
    assert repr(Forecaster(3, season=4)) == "Forecaster(horizon=3, season=4)"
    assert repr(one.predict()) == "Forecast(1 series, 6 steps)"


def test_moments_take_the_names_that_fit_knew() -> None:
    """They have none of their own: columns go by order."""
    pandas = pytest.importorskip("pandas")
    y, x = wave(120), np.random.default_rng(0).standard_normal((126, 2))
    table = pandas.DataFrame(x, columns=["a", "b"])
    found = Forecaster(HORIZON, **SMALL | {"steps": 3}).fit(y, table[:120])
    certain = Moments(torch.tensor(x[120:]), torch.zeros(HORIZON, 2, dtype=torch.float64))
    expected = found.predict(X=table[120:].reset_index(drop=True))
    np.testing.assert_allclose(found.predict(X=certain).mean, expected.mean, rtol=1e-6)
    with pytest.raises(ValueError, match=r"X has columns \['0'\], the forecaster was fitted with"):
        found.predict(X=certain[:, :1])
