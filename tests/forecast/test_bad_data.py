"""Bad data gets a sentence that says what to do, or is handled as documented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from spgru import Moments
from spgru.forecast import Forecaster

HORIZON, SEASON = 4, 6


def wave(count: int = 120) -> Any:
    noise = np.random.default_rng(0).standard_normal(count)
    return 5 + np.sin(2 * np.pi * np.arange(count) / SEASON) + 0.1 * noise


def forecaster(**options: Any) -> Forecaster:
    given = {
        "season": SEASON, "context": 18, "steps": 3, "hidden_size": 4, "mode": "direct",
        "progress": False,
    } | options  # fmt: skip
    return Forecaster(HORIZON, **given)


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return forecaster().fit(wave())


@pytest.fixture(scope="module")
def with_covariates() -> Forecaster:
    return forecaster().fit(wave(), np.random.default_rng(1).standard_normal((120, 2)))


def changed(place: int, value: Any, dtype: Any = float) -> Any:
    values = wave().astype(dtype)
    values[place] = value
    return values


# -- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        pytest.param(None, TypeError, "y is None", id="nothing"),
        pytest.param("data.csv", TypeError, "y is text; read the file", id="a path"),
        pytest.param([], ValueError, "no series", id="no series"),
        pytest.param(np.empty(0), ValueError, "y is empty", id="empty"),
        pytest.param(3.0, TypeError, "y is float; pass an array", id="a number"),
        pytest.param(wave().reshape(2, -1), ValueError, "which dimension is time", id="2-D"),
        pytest.param([wave(), wave().reshape(2, -1)], ValueError, "y.1. has shape", id="2-D in it"),
        pytest.param(changed(7, np.inf), ValueError, "infinite at 7", id="infinite"),
        pytest.param(np.full(120, np.nan), ValueError, "NaN throughout", id="all missing"),
        pytest.param([wave(), np.full(9, np.nan)], ValueError, "y.1. is NaN", id="one missing"),
        pytest.param(changed(7, 1e200), ValueError, "squares overflow", id="beyond squares"),
        pytest.param(changed(7, "n/a", object), TypeError, "text .'n/a' at 7", id="text"),
        pytest.param(["1", "2", "3"], TypeError, "holds text", id="numbers as text"),
        pytest.param(wave() + 0j, TypeError, "complex", id="complex"),
        pytest.param(
            np.arange(120).astype("datetime64[D]"), TypeError, "holds times", id="times as values"
        ),
        pytest.param(changed(7, [1, 2], object), TypeError, "holds list at 7", id="objects"),
        pytest.param(changed(7, 10**400, object), ValueError, r"beyond 1e\+100 at 7", id="whole"),
        pytest.param({1.0, 2.0}, TypeError, "y is set; pass an array", id="no order"),
        pytest.param([wave(), []], ValueError, "y.1. is empty", id="one empty"),
        pytest.param([1.0, 2.0], ValueError, "has 2 values, and 17 are needed", id="two values"),
        pytest.param(wave(16), ValueError, "17 are needed", id="too short for the context"),
        pytest.param([wave(9)] * 5, ValueError, "longest series has 9", id="all too short"),
        pytest.param(
            np.concatenate([wave(), np.full(60, np.nan)]), ValueError, "end of the series",
            id="nothing at the end",
        ),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(y: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        forecaster().fit(y)


def test_negative_values_of_positive_data_are_refused() -> None:
    with pytest.raises(ValueError, match=r"negative values \(smallest -1\) and positive=True"):
        forecaster(positive=True).fit(changed(7, -1.0))


@pytest.mark.parametrize(
    ("history", "words"),
    [
        pytest.param(wave(5), "has 5 values, and a forecast needs 9", id="too short"),
        pytest.param(
            np.concatenate([wave(60), np.full(17, np.nan)]), "1 observed values among its last 18",
            id="nothing observed lately",
        ),
    ],
)  # fmt: skip
def test_histories_that_are_refused(fitted: Forecaster, history: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted.predict(history)


def test_unfitted_is_refused() -> None:
    with pytest.raises(RuntimeError, match="call fit first"):
        forecaster().predict()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"season": 0}, ValueError, "season must be at least 1"),
        ({"context": 6}, ValueError, "longer than a season"),
        ({"steps": 2.5}, TypeError, "steps must be a whole number"),
        ({"lr": -1.0}, ValueError, "lr must be positive"),
        ({"level": 80.0}, ValueError, "level must lie between 0 and 1"),
        ({"mode": "both"}, ValueError, "mode"),
        ({"cell": "rnn"}, ValueError, "cell"),
        ({"device": "tpu"}, ValueError, "device is 'tpu'"),
    ],
)
def test_arguments_that_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        forecaster(**options).fit(wave())


# -- covariates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "words"),
    [
        pytest.param(np.zeros((119, 1)), "119 rows and 120 or 124 are needed", id="rows"),
        pytest.param(np.full((120, 1), np.nan), "nan in row 0, column 0", id="missing values"),
        pytest.param(np.zeros((120, 2, 2)), "pass .time, covariates.", id="3-D"),
        pytest.param(
            Moments(torch.zeros(120, 1), -torch.ones(120, 1)), "negative entries", id="variance"
        ),
        pytest.param(
            Moments(torch.zeros(120, 1), torch.full((120, 1), torch.inf)),
            "X.var is inf",
            id="unknown",
        ),
        pytest.param(np.zeros((120, 0)), "no columns; pass X=None", id="no columns"),
        pytest.param(np.full((120, 1), 1e200), "X has values beyond 1e.100", id="huge"),
    ],
)
def test_covariates_that_are_refused(X: Any, words: str) -> None:  # noqa: N803
    with pytest.raises(ValueError, match=words):
        forecaster().fit(wave(), X)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        pytest.param(None, "X is missing: .* the covariates .'0', '1'.", id="missing"),
        pytest.param(np.zeros((3, 2)), "3 rows and 4 are needed", id="rows"),
        pytest.param(np.zeros((4, 3)), "the forecaster was fitted with", id="columns"),
    ],
)
def test_covariates_of_the_horizon_that_are_refused(
    with_covariates: Forecaster, X: Any, words: str  # noqa: N803
) -> None:  # fmt: skip
    with pytest.raises(ValueError, match=words):
        with_covariates.predict(X=X)


def test_covariates_that_were_not_fitted_are_refused(fitted: Forecaster) -> None:
    with pytest.raises(ValueError, match="fitted without covariates"):
        fitted.predict(X=np.zeros((4, 1)))
    with pytest.raises(TypeError, match="several series; pass a list"):
        forecaster().fit([wave(), wave()], np.zeros((120, 1)))
    with pytest.raises(ValueError, match="covariates of 1 series, and there are 2"):
        forecaster().fit([wave(), wave()], [np.zeros((120, 1))])


def test_an_update_that_is_refused(fitted: Forecaster) -> None:
    with pytest.raises(ValueError, match="y is infinite at 0"):
        fitted.update([np.inf])
    with pytest.raises(TypeError, match=r"y holds text .'x' at 0"):
        fitted.update(["x"])
    two = forecaster().fit({"a": wave(), "b": wave()})
    with pytest.raises(ValueError, match=r"series \['a'\], and those known are \['a', 'b'\]"):
        two.update({"a": [1.0]})


# -- what is handled ------------------------------------------------------------------------------


def same_as_floats(y: Any) -> Any:
    return forecaster().fit(y).predict().mean


def test_numbers_of_other_types_are_numbers() -> None:
    whole = np.round(10 * wave()).astype(int)
    expected = same_as_floats(whole.astype(float))
    for y in (whole, whole.tolist(), torch.tensor(whole), whole.astype(object)):
        np.testing.assert_array_equal(same_as_floats(y), expected)


def test_none_is_a_missing_value() -> None:
    gap, none = changed(100, np.nan), changed(100, None, object)
    np.testing.assert_array_equal(same_as_floats(gap), same_as_floats(none))


def test_masked_entries_are_missing_values() -> None:
    """Whatever stands behind the mask."""
    masked = np.ma.masked_array(changed(100, -999.0), np.arange(120) == 100)
    expected = same_as_floats(changed(100, np.nan))
    for y in (masked, [masked], masked.astype(object)):
        np.testing.assert_array_equal(np.ravel(same_as_floats(y)), expected)


def test_a_covariate_that_was_constant_is_ignored() -> None:
    fit = forecaster().fit(wave(), np.full((120, 1), 3.0))
    expected = fit.predict(X=np.full((4, 1), 3.0))
    with pytest.warns(UserWarning, match="'0' is 7, and so far it was between 3 and 3"):
        found = fit.predict(X=np.full((4, 1), 7.0))
    np.testing.assert_array_equal(found.mean, expected.mean)


def test_covariates_of_another_unit_are_noticed(with_covariates: Forecaster) -> None:
    with_covariates.predict(X=np.full((4, 2), 9.0))  # beyond all that was seen, not far
    with pytest.warns(UserWarning, match=r"'1' is 1000, and so far .* check its unit"):
        with_covariates.predict(X=np.array([[0.0, 1000.0]] * 4))
    with pytest.warns(UserWarning, match="'0' is -1000"):
        with_covariates.predict(wave(), np.array([[0.0, 0.0]] * 123 + [[-1000.0, 0.0]]))


def test_missing_values_hardly_move_a_forecast(fitted: Forecaster) -> None:
    """They are filled by the season before, which is what they are here."""
    clean = 5 + np.sin(2 * np.pi * np.arange(60) / SEASON)
    gaps = clean.copy()
    gaps[[45, 50, 51, 58, 59]] = np.nan
    whole, holed = fitted.predict(clean), fitted.predict(gaps)
    np.testing.assert_allclose(holed.mean, whole.mean, atol=0.2)
    assert np.isfinite(holed.var).all()


def test_a_history_shorter_than_the_context_counts_as_missing_before(fitted: Forecaster) -> None:
    short, padded = wave(12), np.concatenate([np.full(6, np.nan), wave(12)])
    np.testing.assert_array_equal(fitted.predict(short).mean, fitted.predict(padded).mean)


@pytest.mark.parametrize("level", [0.0, 1e-30, -3.5, 7e9, 1e90])
def test_a_constant_history_goes_on(fitted: Forecaster, level: float) -> None:
    found = fitted.predict(np.full(60, level))
    scale = abs(level) or 1.0
    np.testing.assert_allclose(found.mean, level, atol=1e-3 * scale)
    assert (found.std < 0.01 * scale).all()
    assert (found.std > 0).all()


def test_constant_series_can_be_fitted() -> None:
    found = forecaster().fit(np.full(120, 3.0)).predict()
    np.testing.assert_allclose(found.mean, 3.0, rtol=1e-3)


@pytest.mark.parametrize(("scale", "shift"), [(1e90, 0.0), (1e-90, 0.0), (1.0, 1e6), (1e9, -1e12)])
def test_units_do_not_matter(fitted: Forecaster, scale: float, shift: float) -> None:
    """Huge and tiny values, and those far from 0: the forecast is that of the usual unit."""
    plain, other = fitted.predict(wave(60)), fitted.predict(scale * wave(60) + shift)
    np.testing.assert_allclose((other.mean - shift) / scale, plain.mean, rtol=1e-4)
    np.testing.assert_allclose(other.std / scale, plain.std, rtol=1e-3)


def test_an_outlier_leaves_a_finite_forecast() -> None:
    found = forecaster().fit(changed(50, 1e12)).predict()
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.var).all()
    np.testing.assert_allclose(found.mean, 5, atol=2.0)


def test_short_series_among_longer_ones_are_forecast() -> None:
    found = forecaster().fit([wave(), wave(9)]).predict()
    assert found.mean.shape == (2, HORIZON)
    assert np.isfinite(found.mean).all()


# -- pandas ---------------------------------------------------------------------------------------


def series(count: int = 120, freq: str = "h", zone: str | None = None) -> Any:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-03-28", periods=count, freq=freq, tz=zone)
    return pandas.Series(wave(count), index=index, name="y")


def _without_order(y: Any) -> Any:
    return y.iloc[[1, 0, *range(2, len(y))]]


def _with_duplicate(y: Any) -> Any:
    return y.iloc[[0, 0, *range(1, len(y))]]


def _without_time(y: Any) -> Any:
    index = y.index.to_series()
    index.iloc[3] = None
    return y.set_axis(index)


def _with_text_index(y: Any) -> Any:
    return y.set_axis(y.index.astype(str))


def _irregular(y: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    steps = np.cumsum(np.random.default_rng(0).integers(1, 10**7, len(y)))
    return y.set_axis(pandas.to_datetime(steps, unit="s"))


def _with_text(y: Any) -> Any:
    y = y.astype(object)
    y.iloc[5] = "closed"
    return y


def _gapped_numbers(y: Any) -> Any:
    return y.reset_index(drop=True).drop([3, 4])


def _reversed(y: Any) -> Any:
    return y.reset_index(drop=True).iloc[::-1]


def _with_levels(y: Any) -> Any:
    return y.to_frame().assign(item="a").set_index("item", append=True)["y"]


def _with_a_wrong_year(y: Any) -> Any:
    return y.set_axis(y.index[:1].map(lambda t: t.replace(year=1700)).append(y.index[1:]))


def _with_a_wrong_period(y: Any) -> Any:
    return _with_a_wrong_year(y).to_period("s")


def _of_text(y: Any) -> Any:
    return y.astype("string")


def _of_categories(y: Any) -> Any:
    return y.round().astype(str).astype("category")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_order, "not sorted; call .sort_index"),
        (_with_duplicate, "several values at 2024-03-28"),
        (_without_time, "missing time"),
        (_with_text_index, "pandas.to_datetime"),
        (_irregular, "have no frequency"),
        (_with_text, "text .'closed' at 5"),
        (_gapped_numbers, "numbers with gaps"),
        (_reversed, "not sorted"),
        (_with_levels, "index of several levels; pass a long table"),
        (_with_a_wrong_year, "between 1700-03-28 00:00:00 and 2024-03-28 01:00:00 far more times"),
        (_with_a_wrong_period, "correct a time that is wrong"),
        (_of_text, "y holds text"),
        (_of_categories, "y holds text"),
    ],
)
def test_pandas_series_that_are_refused(change: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        forecaster().fit(change(series()))


def test_tables_that_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    y = series()
    with pytest.raises(ValueError, match="several columns named 'y'"):
        forecaster().fit(pandas.concat([y, y], axis=1))
    with pytest.raises(ValueError, match="not the columns of a long table"):
        forecaster().fit(y.rename_axis("time").reset_index())
    with pytest.raises(ValueError, match="frequencies 'h' and 'D'"):
        forecaster().fit([series(), series(freq="D")])
    with pytest.raises(ValueError, match="zones None and Europe/Berlin"):
        forecaster().fit([series(), series(zone="Europe/Berlin")])
    with pytest.raises(ValueError, match="some have none"):
        forecaster().fit([series(), wave()])
    with pytest.raises(ValueError, match="empty table"):
        forecaster().fit(pandas.DataFrame(index=y.index))


def test_long_tables_that_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    y = series()
    names = ["a"] * 120 + ["b"] * 120
    table = pandas.DataFrame({"item": names, "time": [*y.index] * 2, "value": [*y.values] * 2})
    with pytest.raises(ValueError, match="no 'item' in row 5; say which series"):
        forecaster().fit(table.assign(item=[*names[:5], None, *names[6:]]))
    with pytest.raises(ValueError, match=r"y\['b'\] has several values at 2024-03-28"):
        forecaster().fit(pandas.concat([table, table.iloc[120:121]]))
    with pytest.raises(ValueError, match=r"index of y\['a'\] is not sorted"):
        forecaster().fit(table.iloc[[1, 0, *range(2, 240)]])
    with pytest.raises(ValueError, match=r"y\['a'\] has a missing time"):
        forecaster().fit(table.assign(time=[None, *table["time"].iloc[1:]]))
    with pytest.raises(TypeError, match=r"y\['b'\] holds text .'shut' at 2"):
        forecaster().fit(table.assign(value=[*table["value"].iloc[:122], "shut", *[0] * 117]))


def test_updates_with_times_that_are_refused() -> None:
    y = series()
    fit = forecaster().fit(y)
    later = series(5)
    for when, zone, words in (
        ("2024-03-28", None, "an update takes what came later"),
        ("2024-12-01 00:30", None, "no time of frequency 'h'"),
        ("2024-12-01", "UTC", "zones None and UTC"),
        ("2200-01-01", None, "far more times of the series 'y' are missing than there are"),
    ):
        shifted = later.index + (np.datetime64(when) - later.index[0])
        with pytest.raises(ValueError, match=words):
            fit.update(later.set_axis(shifted if zone is None else shifted.tz_localize(zone)))
    with pytest.raises(ValueError, match="points of time and periods"):
        fit.update(later.set_axis(later.index.shift(999)).to_period())
    assert fit.predict().index[0] == y.index[-1] + y.index.freq  # nothing was taken


def test_numbers_of_pandas_types_are_numbers() -> None:
    y = series().round(1)
    expected = same_as_floats(y)
    for kind in ("Float64", "category", object):
        np.testing.assert_array_equal(same_as_floats(y.astype(kind)), expected)
    whole = (10 * y).round().astype("Int64")
    missing = whole.where(np.arange(120) != 100)
    np.testing.assert_array_equal(same_as_floats(missing), same_as_floats(missing.astype(float)))


def test_an_index_of_equally_spaced_numbers_is_none() -> None:
    y = series()
    for index in (np.arange(120), 0.1 * np.arange(120), np.arange(50, 290, 2)):
        np.testing.assert_array_equal(same_as_floats(y.set_axis(index)), same_as_floats(wave()))


def test_a_row_of_covariates_needs_no_frequency() -> None:
    """As a table from a file has none, and one row cannot tell it."""
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"a": wave(124)}, index=series(124).index)  # noqa: N806
    fit = Forecaster(1, 18, 6, steps=1, hidden_size=2, mode="direct", progress=False).fit(
        series(), X
    )
    row = X.iloc[120:121].set_axis(pandas.DatetimeIndex([X.index[120]]))
    np.testing.assert_array_equal(fit.predict(X=row).mean, fit.predict(X=X).mean)


def test_tables_of_covariates_that_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    y = series()
    X = pandas.DataFrame({"a": np.arange(124.0)}, index=series(124).index)  # noqa: N806
    with pytest.raises(ValueError, match="no row for 2024-03-28 03:00"):
        forecaster().fit(y, X.drop(X.index[3]))
    with pytest.raises(ValueError, match="zone Europe/Berlin, the series of None"):
        forecaster().fit(y, X.tz_localize("Europe/Berlin", nonexistent="shift_forward").iloc[:20])
    with pytest.raises(ValueError, match="only the series have a time index"):
        forecaster().fit(y, X.reset_index(drop=True))
    with pytest.raises(ValueError, match="several columns named 'a'"):
        forecaster().fit(y, pandas.concat([X, X], axis=1))
    with pytest.raises(ValueError, match="no columns"):
        forecaster().fit(y, X[[]])
    with pytest.raises(ValueError, match="X has several values at 2024-03-28"):
        forecaster().fit(y, X.iloc[[0, 0, *range(1, 124)]])
    with pytest.raises(ValueError, match="index of X is not sorted"):
        forecaster().fit(y, X.iloc[::-1])
    with pytest.raises(TypeError, match=r"X\['a'\] holds text"):
        forecaster().fit(y, X.astype(str).astype(object))
    fit = forecaster().fit(y, X)
    with pytest.raises(
        ValueError, match=r"columns \['b'\], the forecaster was fitted with \['a'\]"
    ):
        fit.predict(X=X.rename(columns={"a": "b"}))
    with pytest.raises(ValueError, match="no row for 2024-04-02 03:00"):
        fit.predict(X=X.iloc[:-1])


def test_gaps_in_times_are_missing_values() -> None:
    y = series()
    gaps = y.copy()
    gaps.iloc[[30, 31, 90]] = np.nan
    expected = forecaster().fit(gaps).predict()
    found = forecaster().fit(gaps.dropna()).predict()
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert found.index.equals(expected.index)


def test_a_time_zone_is_kept_over_a_change_of_the_clock() -> None:
    y = series(zone="Europe/Berlin")  # summer time begins on 2024-03-31
    found = forecaster().fit(y).predict()
    assert str(found.index.tz) == "Europe/Berlin"
    hours = (found.index - y.index[-1]).total_seconds() / 3600
    np.testing.assert_array_equal(hours, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="zones Europe/Berlin and None"):
        forecaster().fit(y).predict(series())


@pytest.mark.parametrize("known", [True, False], ids=["freq", "no freq"])
def test_another_frequency_than_that_of_the_fit_is_refused(known: bool) -> None:
    """Midnights are hours, too; a day's values are no hour's."""
    pandas = pytest.importorskip("pandas")
    hourly, count = forecaster().fit(series()), 60
    words = "of the frequency 'D' and not of 'h'" if known else "neighbours in the frequency 'h'"
    for use in (hourly.predict, hourly.update):
        days = pandas.date_range("2024-04-10", periods=count, freq="D")
        days = days if known else pandas.DatetimeIndex(list(days))
        with pytest.raises(ValueError, match=words):
            use(pandas.Series(wave(count), days))
    weekdays = pandas.date_range("2024-04-10", periods=count, freq="B")
    with pytest.raises(ValueError, match="of the frequency 'B' and not of 'D'"):
        forecaster().fit(series(freq="D")).predict(pandas.Series(wave(count), weekdays))


def test_one_frequency_has_several_names() -> None:
    pandas = pytest.importorskip("pandas")
    weekly = forecaster().fit(series(freq="W-WED"))
    later = series(60, "W-WED").index
    for index in (pandas.date_range(later[0], periods=60, freq="7D"), list(later)):
        found = weekly.predict(pandas.Series(wave(60), pandas.DatetimeIndex(index)))
        assert found.index[0] == later[-1] + pandas.Timedelta(days=7)
    one = series(freq="W-WED")
    together = forecaster().fit([one, one.drop(one.index[7])]).predict()  # which has no freq
    assert together.index[0].equals(together.index[1])
    with pytest.raises(ValueError, match="frequencies 'D' and 'B'"):
        forecaster().fit([series(freq="D"), series(freq="B")])
    # Some times may be missing, all of them in between may not.
    gaps = pandas.Series(wave(60), later).iloc[[*range(0, 40, 2), *range(40, 60)]]
    assert np.isfinite(weekly.predict(gaps).mean).all()


def test_columns_of_a_long_table_that_are_not_used_are_named() -> None:
    long = series().rename("value").rename_axis("time").reset_index().assign(item="a", price=3.0)
    with pytest.warns(UserWarning, match="y has columns that are not used: price; pass as X"):
        forecaster().fit(long)


def test_series_too_short_beside_what_validation_takes() -> None:
    """As long as the error says is long enough, and one less is not."""
    options: Any = {
        "context": 100, "steps": 1, "hidden_size": 2, "mode": "direct", "progress": False,
        "device": "cpu",
    }  # fmt: skip
    with pytest.raises(ValueError, match="has 55 values, and 63 are needed: 50 to read"):
        Forecaster(1, **options).fit(np.arange(55.0))
    with pytest.raises(ValueError, match="has 62 values, and 63 are needed"):
        Forecaster(1, **options).fit(np.arange(62.0))
    assert Forecaster(1, **options).fit(np.arange(63.0)).predict().mean.shape == (1,)
