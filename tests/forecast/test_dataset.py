"""Forecasts of a Parquet dataset: what one process gives, workers give, killed ones included."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spgru.cli import main
from spgru.forecast import Forecaster, forecast_dataset, partition

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

HORIZON, SERIES = 4, 30
Write = Callable[..., Path]


def table(numbers: range, start: str | None = "2024-01-01", length: int = 40) -> Any:
    """A long table of series of several lengths; some values are missing."""
    parts = []
    for number in numbers:
        count = length + number % 7
        y = np.sin(2 * np.pi * (np.arange(count) + number) / 7) * (1 + number) + 5
        y[3] = np.nan
        when = np.arange(count) if start is None else pandas.date_range(start, periods=count)
        parts.append(pandas.DataFrame({"item": f"s{number:03d}", "time": when, "value": y}))
    return pandas.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forecaster")
    Forecaster(
        HORIZON, 20, 7, steps=3, hidden_size=4, mode="direct", progress=False, device="cpu"
    ).fit(table(range(3), length=60)).save(path)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "series"
    (path / "deep").mkdir(parents=True)
    table(range(12)).to_parquet(path / "a.parquet", row_group_size=50)
    table(range(12, 13)).to_parquet(path / "b.parquet")
    table(range(13, SERIES)).to_parquet(path / "deep" / "c.parquet")
    return path


def written(path: Path) -> Any:
    files = sorted(path.rglob("*.parquet"))
    return pandas.concat([pandas.read_parquet(file) for file in files], ignore_index=True)


def run(*arguments: Any, **options: Any) -> Any:
    return forecast_dataset(*arguments, **{"progress": False, "device": "cpu"} | options)


def test_calm_ends_are_forecast_as_by_predict(tmp_path: Path) -> None:
    """The rest of a history tells how much a series varies."""
    series = table(range(6), length=90)
    series["value"] += np.random.default_rng(0).standard_normal(len(series))
    fitted = Forecaster(
        HORIZON, 20, 7, steps=3, hidden_size=4, mode="direct", progress=False, device="cpu"
    ).fit(series)
    fitted.save(tmp_path / "fitted")
    for number, item in enumerate(series["item"].unique()):
        calm = series.index[series["item"] == item][-25:]
        series.loc[calm, "value"] = 50.0 + number + (1e-3 * np.arange(25) if number % 2 else 0)
    (tmp_path / "calm").mkdir()
    series.to_parquet(tmp_path / "calm" / "a.parquet")
    run(tmp_path / "fitted", tmp_path / "calm", tmp_path / "out")
    found = written(tmp_path / "out")
    np.testing.assert_allclose(found["std"], fitted.predict(series).to_frame()["std"], rtol=1e-5)
    assert found["std"].min() > 0.01


def test_a_dataset_is_forecast_as_its_series_are(
    folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of rows cut series, and memory holds few series at a time."""
    monkeypatch.setattr(partition, "_ROWS", 33)
    monkeypatch.setattr(partition, "_SERIES", 5)
    sizes, real = [], Forecaster.predict

    def predict(self: Any, y: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(y))
        return real(self, y, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Forecaster, "predict", predict)
        report = run(folder, source, tmp_path / "out", quantiles=(0.1, 0.5, 0.9))
    assert sizes == [5, 5, 2, 1, 5, 5, 5, 2]
    assert (report.files, report.series, report.refused) == (3, SERIES, {})
    assert str(report).startswith("30 series of 3 files in ")
    found = written(tmp_path / "out")
    expected = (
        Forecaster.load(folder, "cpu").predict(table(range(SERIES))).to_frame((0.1, 0.5, 0.9))
    )
    assert list(found) == ["item", "step", "time", "mean", "std", "0.1", "0.5", "0.9"]
    assert list(found["step"]) == [1, 2, 3, 4] * SERIES
    assert (found["item"].to_numpy() == expected["item"].to_numpy()).all()
    assert (found["time"].to_numpy() == expected["time"].to_numpy()).all()
    for name in ("mean", "std", "0.1", "0.5", "0.9"):
        # Up to the rounding of a batch.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def test_two_workers_give_the_same_numbers_and_a_killed_one_loses_nothing(
    folder: Path, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    source = tmp_path / "series"
    source.mkdir()
    for number in range(3):
        numbers = range(800 * number, 800 * (number + 1))
        table(numbers, length=30).to_parquet(source / f"{number}.parquet")
    one = run(folder, source, tmp_path / "one")
    killed: list[int] = []

    def kill() -> None:
        """The first worker that has begun to write, in the middle of a file."""
        while not killed:
            for path in (tmp_path / "two").glob(".*.partial"):
                killed.append(int(path.name.split(".")[-2].split("-")[0]))
                os.kill(killed[0], signal.SIGKILL)
                return
            time.sleep(0.002)

    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=50,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = set(client.run(os.getpid).values())
        threading.Thread(target=kill, daemon=True).start()
        two = run(folder, source, tmp_path / "two", client=client)
    assert killed
    assert killed[0] in pids
    assert killed[0] != os.getpid()
    assert one.series == two.series == 2400
    pandas.testing.assert_frame_equal(
        written(tmp_path / "one"), written(tmp_path / "two"), check_exact=True
    )
    assert not list((tmp_path / "two").glob(".*.partial"))


def test_two_jobs_may_run_at_once(folder: Path, source: Path, tmp_path: Path) -> None:
    """Dask warns where the port of its HTTP server is taken, and here warnings are errors."""
    pytest.importorskip("distributed")
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # by another job, then
            taken.bind(("", 8787))
            taken.listen()
        assert run(folder, source, tmp_path / "out", workers=1).series == SERIES


def test_a_job_goes_on_and_another_is_refused(folder: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table(range(12, 13)).to_parquet(source / "z.parquet")
    with pytest.raises(ValueError, match=r"1 series lie in several files, .*b\.parquet and .*z\."):
        run(folder, source, out)
    with pytest.raises(ValueError, match="1 series lie in several files"):
        run(folder, source, out)  # results that are there count, too
    (source / "z.parquet").unlink()
    with pytest.raises(ValueError, match="holds forecasts of another job"):
        run(folder, source, out)
    out = tmp_path / "again"
    run(folder, source, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    (out / "b.parquet").unlink()
    (out / ".a.parquet.1-0.partial").touch()
    assert run(folder, source, out).series == SERIES
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert {path for path in after if after[path] != before[path]} == {out / "b.parquet"}
    assert not list(out.glob(".*.partial"))
    with pytest.raises(ValueError, match="holds forecasts of another job"):
        run(folder, source, out, quantiles=(0.5,))
    with pytest.raises(ValueError, match="holds Parquet files of something else"):
        run(folder, source / "a.parquet", source / "deep")


def test_series_that_cannot_be_forecast_are_named(
    folder: Path, source: Path, tmp_path: Path
) -> None:
    short = table(range(91, 92), length=5)
    pandas.concat([table(range(60, 62)), short]).to_parquet(source / "d.parquet")
    short["item"] = "alone"
    short.to_parquet(source / "e.parquet")
    with pytest.raises(ValueError, match=r"d\.parquet: the series 's091' has .* With bad='skip'"):
        run(folder, source, tmp_path / "out")
    report = run(folder, source, tmp_path / "skipped", bad="skip")
    assert report.series == SERIES + 2
    assert set(report.refused) == {"s091", "alone"}
    assert "no forecast of s091: the series 's091' has" in str(report)
    assert run(folder, source, tmp_path / "skipped", bad="skip").refused == report.refused
    assert len(written(tmp_path / "skipped")) == HORIZON * (SERIES + 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.rename(columns={"item": "name"}), "has the columns name, time, value; it nee"),
        (lambda t: t.sort_values("time"), "rows of the series 's000' are not together in"),
        (lambda t: t.assign(item=None), "rows without a name in the column 'item'"),
        (lambda t: t.assign(value="text"), "holds text"),
        (lambda t: t.assign(time=np.arange(len(t))), "has no time index"),
        (
            lambda t: t.assign(time=t["time"].min() + 7 * (t["time"] - t["time"].min())),
            "no two times of y.'s000'. are neighbours in the frequency 'D' of the fit",
        ),
    ],
)
def test_bad_tables_are_refused(folder: Path, tmp_path: Path, change: Any, message: str) -> None:
    change(table(range(3))).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=message):
        run(folder, tmp_path / "x.parquet", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_the_command_forecasts_a_dataset(
    folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    command = ["forecast-dataset", str(folder), str(source), str(tmp_path / "out")]
    with pytest.raises(SystemExit) as caught:
        main([*command, "--device", "cpu"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("30 series of 3 files in ")
    assert len(written(tmp_path / "out")) == HORIZON * SERIES


def test_bad_arguments_are_refused(folder: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="holds no forecaster"):
        run(tmp_path, source, out)
    with pytest.raises(FileNotFoundError, match="is not there; give a Parquet file or a folder"):
        run(folder, tmp_path / "nothing", out)
    with pytest.raises(ValueError, match=r"holds no file named \*\.parquet"):
        run(folder, folder, out)
    with pytest.raises(ValueError, match="lies in the source"):
        run(folder, source, source / "out")
    with pytest.raises(ValueError, match="quantiles must lie between 0 and 1"):
        run(folder, source, out, quantiles=(10,))
    with pytest.raises(ValueError, match="workers must not be negative"):
        run(folder, source, out, workers=-1)
    with pytest.raises(ValueError, match="bad"):
        run(folder, source, out, bad="ignore")


def test_covariates_are_columns_and_the_horizon_is_rows(tmp_path: Path) -> None:
    """Times are numbers here, which count steps."""
    frame = table(range(4), start=None, length=60)
    frame["promo"] = np.random.default_rng(0).random(len(frame))
    fit = dict(list(frame.groupby("item")))
    forecaster = Forecaster(HORIZON, 20, 7, steps=3, hidden_size=4, mode="direct", device="cpu")
    forecaster.fit(
        {name: part["value"].to_numpy()[:-HORIZON] for name, part in fit.items()},
        {name: part[["promo"]].reset_index(drop=True)[:-HORIZON] for name, part in fit.items()},
    )
    forecaster.save(tmp_path / "forecaster")
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="the last 4 rows of the series 's000' have values"):
        run(tmp_path / "forecaster", tmp_path / "x.parquet", tmp_path / "out")
    last = frame.groupby("item").cumcount(ascending=False) < HORIZON
    frame.loc[last, "value"] = np.nan
    frame.to_parquet(tmp_path / "x.parquet")
    run(tmp_path / "forecaster", tmp_path / "x.parquet", tmp_path / "new")
    found = written(tmp_path / "new")
    future = {name: part[["promo"]].reset_index(drop=True)[-HORIZON:] for name, part in fit.items()}
    expected = forecaster.predict(X=future).to_frame()
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5)
    assert list(found["time"]) == list(expected["time"])
    frame.drop(columns="promo").to_parquet(tmp_path / "y.parquet")
    with pytest.raises(ValueError, match="has no column 'promo', a covariate of the forecaster"):
        run(tmp_path / "forecaster", tmp_path / "y.parquet", tmp_path / "out2")


@pytest.mark.parametrize("told", [True, False])
def test_covariates_are_compared_with_those_of_all_fitted_series(
    tmp_path: Path, told: bool
) -> None:
    """Of which only one is loaded; files of earlier versions do not tell their range."""
    frame = table(range(4), start=None, length=60)
    level = frame["item"].map({f"s{number:03d}": 1000.0 * number for number in range(4)})
    frame["promo"] = level + np.random.default_rng(0).random(len(frame))
    parts = dict(list(frame.groupby("item")))
    forecaster = Forecaster(HORIZON, 20, 7, steps=3, hidden_size=4, mode="direct", device="cpu")
    forecaster.fit(
        {name: part["value"].to_numpy() for name, part in parts.items()},
        {name: part[["promo"]].to_numpy() for name, part in parts.items()},
    ).save(tmp_path / "forecaster")
    path = tmp_path / "forecaster" / "forecaster.json"
    config = json.loads(path.read_text())
    low, high = config["covariate_range"]
    assert (low, high) == ([frame["promo"].min()], [frame["promo"].max()])
    if not told:
        del config["covariate_range"]
        path.write_text(json.dumps(config))
    last = frame.groupby("item").cumcount(ascending=False) < HORIZON
    frame.loc[last, "value"] = np.nan
    frame = frame.rename(columns={"promo": "0"})
    frame.to_parquet(tmp_path / "x.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path / "forecaster", tmp_path / "x.parquet", tmp_path / "near")
    frame["0"] *= 1e3
    frame.to_parquet(tmp_path / "x.parquet")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path / "forecaster", tmp_path / "x.parquet", tmp_path / "far")
    assert any("between 0." in str(w.message) for w in caught) == told


def test_a_covariate_may_be_named_value_but_not_like_a_column_of_the_series(tmp_path: Path) -> None:
    frame = table(range(2), start=None, length=60).rename(
        columns={"item": "unique_id", "time": "ds", "value": "y"}
    )
    frame["value"] = np.random.default_rng(0).random(len(frame))
    parts = dict(list(frame.groupby("unique_id")))
    forecaster = Forecaster(HORIZON, 20, 7, steps=3, hidden_size=4, mode="direct", device="cpu")
    forecaster.fit(
        {name: part["y"].to_numpy()[:-HORIZON] for name, part in parts.items()},
        {name: part[["value"]].reset_index(drop=True)[:-HORIZON] for name, part in parts.items()},
    ).save(tmp_path / "forecaster")
    frame.loc[frame.groupby("unique_id").cumcount(ascending=False) < HORIZON, "y"] = np.nan
    frame.to_parquet(tmp_path / "x.parquet")
    run(tmp_path / "forecaster", tmp_path / "x.parquet", tmp_path / "out")
    future = {n: part[["value"]].reset_index(drop=True)[-HORIZON:] for n, part in parts.items()}
    expected = forecaster.predict(X=future).to_frame()
    np.testing.assert_allclose(written(tmp_path / "out")["mean"], expected["mean"], rtol=1e-5)
    table(range(2), start=None).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(
        ValueError, match=r"'value' is a covariate .* rename .* to unique_id, ds, y"
    ):
        run(tmp_path / "forecaster", tmp_path / "y.parquet", tmp_path / "out2")
