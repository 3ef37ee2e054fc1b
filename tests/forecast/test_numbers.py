"""An index of whole numbers is kept, checked, and counted on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spgru.forecast import Forecaster, forecast_dataset

pandas = pytest.importorskip("pandas")

COUNT, HORIZON = 60, 3


def wave(count: int = COUNT) -> Any:
    return 5 + np.sin(np.arange(count)) + 0.1 * np.random.default_rng(0).standard_normal(count)


def series(start: int = 0, count: int = COUNT, step: int = 1) -> Any:
    index = range(start, start + step * count, step)
    return pandas.Series(wave(count), pandas.Index(list(index)), name="y")


def covariate(start: int, count: int) -> Any:
    return pandas.DataFrame({"x": wave(count)}, range(start, start + count))


def fitted(*data: Any) -> Forecaster:
    options: Any = {"steps": 2, "hidden_size": 2, "mode": "direct", "progress": False}
    return Forecaster(HORIZON, 12, **options, device="cpu").fit(*data)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (series(), [60, 61, 62]),
        (series(1900), [1960, 1961, 1962]),
        (series(1900, step=5), [2200, 2205, 2210]),
        (series(1900).set_axis(np.arange(1900.0, 1960.0)), [1960, 1961, 1962]),
        (series(-3).set_axis(pandas.RangeIndex(-3, 57)), [57, 58, 59]),
        (wave(), [60, 61, 62]),
        (series().set_axis(0.5 * np.arange(60)), [60, 61, 62]),  # fractions count as no index
    ],
)
def test_forecasts_count_on(y: Any, expected: list[int]) -> None:
    found = fitted(y).predict()
    assert found.to_frame()["time"].tolist() == expected
    assert found.index is None or found.index.tolist() == expected
    lines = found.plot().axes[0].get_lines()
    assert lines[-1].get_xdata().tolist() == expected


def test_long_tables_count_on_for_each_series() -> None:
    long = pandas.DataFrame({"unique_id": "a", "ds": range(1, 61), "y": wave()})
    both = pandas.concat([long, long.assign(unique_id="b", ds=long["ds"] + 100)])
    found = fitted(both).predict()
    assert found.to_frame()["time"].tolist() == [61, 62, 63, 161, 162, 163]
    assert found.of(1).index.tolist() == [161, 162, 163]


def test_updates_go_on_from_the_last_number() -> None:
    found = fitted(series())
    for start in (0, 50, 59):
        with pytest.raises(ValueError, match=f"starts at {start}, and it is known until 59"):
            found.update(series(start, 9))
    with pytest.raises(ValueError, match="index rises by 1 and by 2"):
        found.update(series(60, 9, step=2))
    with pytest.raises(ValueError, match="starts at 100000, far more steps after its end"):
        found.update(series(100000, 9))
    with pytest.raises(ValueError, match="only one of y and the known series has a time index"):
        found.update(series(60).set_axis(pandas.date_range("2024", periods=60)))
    found.update(series(60, 1)).update(series(63, 20))  # two values are missing
    gap = np.concatenate([wave(), wave(1), [np.nan] * 2, wave(20)])
    assert found.predict().index[0] == 83
    np.testing.assert_array_equal(found.predict().mean, found.predict(gap).mean)
    found.update(wave(5))  # an array has no index, and goes by order
    assert found.predict().index[0] == 88


def test_a_single_number_has_the_step_of_the_fit() -> None:
    found = fitted(series(1900, step=5)).update(series(2200, 1))
    assert found.predict().index.tolist() == [2205, 2210, 2215]
    with pytest.raises(ValueError, match="no multiple of 5 after 2200"):
        found.update(series(2206, 1))


def test_histories_of_another_step_are_refused() -> None:
    assert fitted(series()).predict(series(500)).index[0] == 560
    with pytest.raises(ValueError, match="index rises by 1 and by 2"):
        fitted(series()).predict(series(step=2))
    with pytest.raises(ValueError, match="index rises by 1 and by 2"):
        fitted([series(), series(step=2)])


def test_covariates_are_found_by_number() -> None:
    y = series(100)
    with pytest.raises(ValueError, match=r"X has no row for 100; number .* from 100 to 159"):
        fitted(y, covariate(0, COUNT))
    with pytest.raises(ValueError, match="X has no index of whole numbers"):
        fitted(y, covariate(0, COUNT).set_axis(0.5 * np.arange(COUNT)))
    X = covariate(90, 90)  # noqa: N806
    found = fitted(y, X)
    expected = found.predict(X=X)
    np.testing.assert_array_equal(expected.mean, found.predict(X=X.loc[160:162]).mean)
    np.testing.assert_array_equal(expected.mean, found.predict(y, X).mean)
    for wrong in (X.loc[100:102], X.loc[159:161], X.loc[160:162].reset_index(drop=True)):
        with pytest.raises(ValueError, match=r"X has no row for 16\d"):
            found.predict(X=wrong)
    with pytest.raises(ValueError, match="X has no row for 160"):
        found.update(series(160, 2), X.loc[161:162])
    assert found.update(series(160, 2), X).predict(X=X).index[0] == 162


def test_saved_and_loaded(tmp_path: Path) -> None:
    fitted(series(1900)).save(tmp_path)
    assert Forecaster.load(tmp_path).predict().index.tolist() == [1960, 1961, 1962]
    path = tmp_path / "forecaster.json"
    config = json.loads(path.read_text())
    del config["numbers"]  # as in files of earlier versions
    path.write_text(json.dumps(config))
    old = Forecaster.load(tmp_path)
    assert old.update(series(7, 2)).predict().to_frame()["time"].tolist() == [62, 63, 64]


def test_datasets_count_on(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    fitted(series()).save(tmp_path / "forecaster")
    table = pandas.DataFrame({"item": "a", "time": range(1, 41), "value": wave(40)})
    for name, kind in (("whole", int), ("fractions", lambda time: time / 2)):
        table.assign(time=table["time"].map(kind)).to_parquet(tmp_path / f"{name}.parquet")
        forecast_dataset(
            tmp_path / "forecaster", tmp_path / f"{name}.parquet", tmp_path / name, progress=False
        )
    for name, start in (("whole", 41), ("fractions", 40)):
        found = pandas.read_parquet(tmp_path / name / f"{name}.parquet")
        assert found["time"].tolist() == [start, start + 1, start + 2]
