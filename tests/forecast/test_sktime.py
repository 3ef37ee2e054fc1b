"""The adapter to sktime: its own checks are green, and forecasts are those of `Forecaster`."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest

from spgru.forecast import Forecaster

pandas = pytest.importorskip("pandas")
pytest.importorskip("sktime")

HORIZON, COUNT = 4, 90
TINY: dict[str, Any] = {
    "season": 6, "context": 18, "steps": 3, "hidden_size": 4, "mode": "direct", "progress": False,
    "device": "cpu",
}  # fmt: skip
STEPS = list(range(1, HORIZON + 1))


def adapter(**options: Any) -> Any:
    from spgru.forecast.sktime import SpgruForecaster

    return SpgruForecaster(**(TINY | options))


def wave(seed: int = 0, count: int = COUNT) -> Any:
    noise = np.random.default_rng(seed).standard_normal(count)
    return 9 + seed + np.sin(2 * np.pi * np.arange(count) / 6) + 0.2 * noise


def series(kind: str, count: int = COUNT, seed: int = 0) -> Any:
    index = {
        "range": pandas.RangeIndex(count),
        "numbers": pandas.Index(np.arange(7, 7 + count)),
        "times": pandas.date_range("2024-01-01", periods=count, freq="h"),
        "periods": pandas.period_range("2015-03", periods=count, freq="M"),
    }[kind]
    return pandas.Series(wave(seed, count), index, name="y")


def panel(lengths: tuple[int, ...] = (COUNT, COUNT - 5)) -> Any:
    parts = {f"series {n}": series("times", count, n).to_frame() for n, count in enumerate(lengths)}
    return pandas.concat(parts, names=["item", "time"])


@pytest.mark.brute
@pytest.mark.filterwarnings("ignore")  # of sktime's tests, about data that they make
def test_checks_of_sktime_are_green(full: bool) -> None:
    """All of them; at full size for every setting that `get_test_params` names, else the first."""
    from sktime.utils.estimator_checks import check_estimator

    from spgru.forecast.sktime import SpgruForecaster

    first = SpgruForecaster(**SpgruForecaster.get_test_params()[0])
    results = check_estimator(SpgruForecaster if full else first, verbose=False)
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}
    assert len(results) > 400


@pytest.mark.parametrize("kind", ["range", "numbers", "times", "periods"])
@pytest.mark.parametrize("positive", [False, True])
def test_forecasts_are_those_of_the_forecaster(kind: str, positive: bool) -> None:
    y = series(kind)
    forecaster = adapter(positive=positive).fit(y, fh=STEPS)
    expected = Forecaster(HORIZON, **(TINY | {"positive": positive})).fit(y).predict()
    mean = forecaster.predict()
    np.testing.assert_array_equal(mean, expected.mean)
    if expected.index is not None:
        assert mean.index.equals(expected.index)
    np.testing.assert_array_equal(forecaster.predict_var()["y"], expected.var)
    quantiles = forecaster.predict_quantiles(alpha=[0.01, 0.37])
    np.testing.assert_array_equal(quantiles["y"].T, expected.quantile([0.01, 0.37]))
    interval = forecaster.predict_interval(coverage=0.8)["y", 0.8]
    low, high = expected.interval(0.8)
    np.testing.assert_allclose(interval["lower"], low, rtol=1e-12)
    np.testing.assert_allclose(interval["upper"], high, rtol=1e-12)


def test_horizons_with_gaps_and_absolute_ones() -> None:
    from sktime.forecasting.base import ForecastingHorizon

    y = series("times")
    whole = adapter().fit(y, fh=STEPS).predict()
    some = adapter().fit(y, fh=[2, 4]).predict()
    pandas.testing.assert_series_equal(some, whole.iloc[[1, 3]], check_freq=False)
    times = ForecastingHorizon(whole.index[[1, 3]], is_relative=False)
    pandas.testing.assert_series_equal(adapter().fit(y, fh=times).predict(), some, check_freq=False)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [(range(0, 2 * COUNT, 2), "from 0 to 2"), ([*range(50), *range(52, COUNT + 2)], "49 to 52")],
)
def test_whole_numbers_that_do_not_rise_by_one_are_refused(numbers: Any, message: str) -> None:
    y = pandas.Series(wave(), pandas.Index(numbers), name="y")
    with pytest.raises(ValueError, match=rf"the index of y goes .*{message}; .* must rise by 1"):
        adapter().fit(y, fh=STEPS)
    y = series("range")
    forecaster = adapter().fit(y[:-9], fh=STEPS).update(y[-7:])
    with pytest.raises(ValueError, match="the index of y goes from 80 to 83"):
        forecaster.predict()


def test_in_sample_is_refused() -> None:
    from sktime.forecasting.base import ForecastingHorizon

    y = series("times")
    with pytest.raises(NotImplementedError, match="can not perform in-sample"):
        adapter().fit(y, fh=[-1, 1])
    # A horizon that new values have reached.
    times = ForecastingHorizon(y.index[[-3, -1]], is_relative=False)
    forecaster = adapter().fit(y[:-4], fh=times)
    assert list(forecaster.predict().index) == list(y.index[[-3, -1]])
    with pytest.raises(NotImplementedError, match="in-sample"):
        forecaster.update(y[-4:-2]).predict()


def test_an_update_goes_on_from_new_values_with_the_same_weights() -> None:
    y = series("times")
    forecaster = adapter().fit(y[:-10], fh=STEPS)
    weights = [w.clone() for w in forecaster.forecaster_.network.parameters()]
    # Values may come twice, and the later ones count.
    wrong = y[-10:-5].copy()
    wrong.iloc[-2:] = 0.0
    forecaster.update(wrong).update(y[-7:], update_params=False)
    expected = Forecaster(HORIZON, **TINY).fit(y[:-10]).update(y[-10:]).predict()
    pandas.testing.assert_index_equal(forecaster.predict().index, expected.index)
    np.testing.assert_array_equal(forecaster.predict(), expected.mean)
    after = forecaster.forecaster_.network.parameters()
    assert all((a == b).all() for a, b in zip(weights, after, strict=True))


def test_forecasts_of_the_past_do_not_see_the_future() -> None:
    from sktime.split import ExpandingWindowSplitter

    y = series("times")
    forecaster = adapter().fit(y, fh=[1])
    cv = ExpandingWindowSplitter(fh=[1], initial_window=60, step_length=20)
    found = forecaster.update_predict(y, cv)
    assert list(found.index) == list(y.index[[60, 80]])
    changed = y.copy()
    changed.iloc[60:] += 100
    network = forecaster.forecaster_
    np.testing.assert_array_equal(found.iloc[0], network.predict(changed[:60]).mean[0])


def test_covariates() -> None:
    y = series("numbers")
    X = pandas.DataFrame(  # noqa: N806
        {"a": np.sin(np.arange(COUNT + HORIZON)), "b": 1.0}, np.arange(7, 7 + COUNT + HORIZON)
    )
    forecaster = adapter().fit(y, X.iloc[:COUNT], fh=[1, HORIZON])
    expected = Forecaster(HORIZON, **TINY).fit(y, X).predict(X=X.iloc[COUNT:]).mean[[0, -1]]
    np.testing.assert_array_equal(forecaster.predict(X=X.iloc[COUNT:]), expected)
    np.testing.assert_array_equal(forecaster.predict(X=X), expected)
    with pytest.raises(ValueError, match="X has no row for 7; number its rows"):
        adapter().fit(y, X.iloc[1:COUNT], fh=[1, HORIZON])
    with pytest.raises(ValueError, match="X has no row for 98; covariates must be known"):
        forecaster.predict(X=X.drop(98).iloc[COUNT:])
    with pytest.raises(ValueError, match=r"X is missing: .* the covariates .'a', 'b'."):
        forecaster.predict()
    with pytest.raises(ValueError, match=r"columns .* fitted with"):
        forecaster.predict(X=X.iloc[COUNT:].rename(columns={"a": "c"}))
    with pytest.raises(ValueError, match="fitted without covariates"):
        adapter().fit(y, fh=[1]).predict(X=X.iloc[COUNT:])
    updated = adapter().fit(y[:-9], X.iloc[: COUNT - 9], fh=[1, HORIZON])
    updated.update(y[-9:], X.iloc[COUNT - 9 : COUNT])
    known = Forecaster(HORIZON, **TINY).fit(y[:-9], X[: COUNT - 9]).predict(y, X).mean[[0, -1]]
    np.testing.assert_array_equal(updated.predict(X=X.iloc[COUNT:]), known)


def test_series_of_a_panel_share_a_network_and_end_when_they_end() -> None:
    y = panel()
    forecaster = adapter().fit(y, fh=[1, 3])
    parts = [y.loc[name, "y"].asfreq("h") for name in ("series 0", "series 1")]
    expected = Forecaster(3, **TINY).fit(parts).predict()
    found = forecaster.predict()
    np.testing.assert_array_equal(found["y"], expected.mean[:, [0, 2]].reshape(-1))
    times = [(f"series {n}", expected.index[n][step]) for n in range(2) for step in (0, 2)]
    assert list(found.index) == times
    assert found.index.names == ["item", "time"]
    quantiles = forecaster.predict_quantiles(alpha=[0.1, 0.9])
    np.testing.assert_array_equal(
        quantiles["y"], expected.quantile([0.1, 0.9])[:, :, [0, 2]].reshape(2, -1).T
    )


def test_series_of_a_panel_have_covariates_of_their_own() -> None:
    y, names = panel((COUNT, COUNT)), ("series 0", "series 1")
    times = series("times", COUNT + HORIZON).index
    parts = [pandas.DataFrame({"a": np.sin(n + np.arange(len(times)))}, times) for n in range(2)]
    X = pandas.concat(dict(zip(names, parts, strict=True)), names=["item", "time"])  # noqa: N806
    forecaster = adapter().fit(y, X[X.index.isin(y.index)], fh=STEPS)
    histories = [y.loc[name, "y"].asfreq("h") for name in names]
    expected = Forecaster(HORIZON, **TINY).fit(histories, parts).predict(X=parts).mean
    np.testing.assert_array_equal(forecaster.predict(X=X)["y"], expected.reshape(-1))
    with pytest.raises(TypeError, match="X and y must have the same scitype"):
        adapter().fit(y, parts[0][:COUNT], fh=STEPS)
    with pytest.raises(ValueError, match=r"no covariates for the series \(\('series 1',\), 'y'\)"):
        adapter().fit(y, X.loc[["series 0"]], fh=STEPS)
    with pytest.raises(ValueError, match=r"index of X has levels .* in fit \['item', 'time'\]"):
        forecaster.predict(X=parts[0])
    with pytest.raises(ValueError, match=r"X.*series 1.* has no row for 2024-01-04 18:00"):
        forecaster.predict(X=X.loc[["series 0"]])


def test_columns_share_a_network() -> None:
    y = pandas.DataFrame({"a": wave(0), "b": 100 * wave(1)}, series("times").index)
    forecaster = adapter().fit(y, fh=STEPS)
    expected = Forecaster(HORIZON, **TINY).fit(y).predict()
    np.testing.assert_array_equal(forecaster.predict(), expected.mean.T)
    quantiles = forecaster.predict_quantiles(alpha=[0.1, 0.9])
    np.testing.assert_array_equal(quantiles["b"].T, expected.quantile([0.1, 0.9])[:, 1])


def test_missing_values() -> None:
    y = series("times")
    y.iloc[[40, 70]] = np.nan
    expected = Forecaster(HORIZON, **TINY).fit(y).predict()
    np.testing.assert_array_equal(adapter().fit(y, fh=STEPS).predict(), expected.mean)


def test_a_distribution_only_where_it_is_gaussian() -> None:
    y = series("times")
    forecaster = adapter().fit(y, fh=STEPS)
    found = forecaster.predict_proba()
    np.testing.assert_allclose(
        found.quantile([0.9])["y"].to_numpy().T, [forecaster.predict_quantiles(alpha=0.9)["y", 0.9]]
    )
    with pytest.raises(NotImplementedError, match="call predict_quantiles"):
        adapter(positive=True).fit(y, fh=STEPS).predict_proba()
    with pytest.raises(NotImplementedError, match="covariance of different steps"):
        forecaster.predict_var(cov=True)


def test_it_has_the_arguments_of_the_forecaster() -> None:
    from spgru.forecast.sktime import SpgruForecaster

    arguments = dict(inspect.signature(Forecaster).parameters)
    del arguments["horizon"]
    own = inspect.signature(SpgruForecaster).parameters
    assert list(own) == list(arguments)
    assert [p.default for p in own.values()] == [p.default for p in arguments.values()]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spgru.forecast.sktime", raising=False)
    monkeypatch.setitem(sys.modules, "sktime.datatypes", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'spgru\[sktime\]'"):
        import spgru.forecast.sktime  # noqa: F401
