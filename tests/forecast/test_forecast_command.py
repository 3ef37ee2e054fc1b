"""`spgru forecast`: a CSV file in, a CSV file and a picture out."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spgru.cli import main
from spgru.forecast.tables import read_column

pandas = pytest.importorskip("pandas")
pytest.importorskip("typer")

QUICK = ["--column", "y", "--horizon", "4", "--steps", "3", "--mode", "direct", "--device", "cpu"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["forecast", *map(str, arguments)])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def table(tmp_path: Path) -> Path:
    time = pandas.date_range("2024-01-01", periods=120, freq="h")
    y = np.sin(np.arange(120) / 4) + 0.1 * np.random.default_rng(0).standard_normal(120)
    y[17] = np.nan
    path = tmp_path / "data.csv"
    pandas.DataFrame({"when": time, "y": y, "name": "a"}).to_csv(path, index=False)
    return path


def test_quantiles_and_a_picture_are_written(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert run(table, *QUICK, "--time", "when", "--level", "0.9") == 0
    assert f"wrote {tmp_path / 'data_forecast.csv'}" in capsys.readouterr().out
    found = pandas.read_csv(tmp_path / "data_forecast.csv")
    assert list(found["time"]) == [f"2024-01-06 0{hour}:00:00" for hour in range(4)]
    quantiles = found.drop(columns=["time", "mean", "std"])
    assert [float(name) for name in quantiles] == sorted({*np.arange(1, 10) / 10, 0.05, 0.95})
    assert (np.diff(quantiles.to_numpy(), axis=1) > 0).all()
    assert (tmp_path / "data_forecast.png").stat().st_size > 1000
    assert run(table, *QUICK, "--time", "when") == 1
    assert "exists" in capsys.readouterr().err
    assert run(table, *QUICK, "--overwrite", "--output", tmp_path / "other") == 0
    assert list(pandas.read_csv(tmp_path / "other.csv")["time"]) == [120, 121, 122, 123]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "z"], "has no column 'z'; it has when, y, name"),
        (["--column", "name"], "name holds 'a' in row 1"),
        (["--time", "name"], "name holds 'a' in row 1"),
        (["--time", "clock"], "has no column 'clock'"),
        (["--level", "1"], "level must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_used_is_named(
    table: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(table, *QUICK, *options) == 1
    assert message in capsys.readouterr().err


def test_files_that_are_no_tables_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, binary = tmp_path / "empty.csv", tmp_path / "binary.csv"
    empty.touch()
    binary.write_bytes(bytes(range(128, 256)))
    for path, message in (
        (empty, "is empty"), (binary, "cannot be read"), (tmp_path / "gone.csv", "cannot be read"),
    ):  # fmt: skip
        assert run(path, *QUICK) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["2020-01-01,5,7"], "row 1 of the table has 3 fields and the header has 2"),
        (["2020-01-01,5", "", "2020-01-02,5,"], "row 2 of the table has 3 fields"),
        (["2020-01-01,5", "2020-01-02"], "row 2 of the table has 1 fields"),
    ],
)
def test_rows_with_other_fields_than_the_header_are_refused(rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_column(io.StringIO("\n".join(["day,visitors", *rows])), "visitors", "day")


def test_quotes_blank_lines_and_compressed_files(tmp_path: Path) -> None:
    text = '\ufeff"day, UTC",visitors\r\n2020-01-01,5\r\n \r\n"2020-01-02",\r\n2020-01-03,7\r\n'
    for name, opened in (("a.csv", open), ("a.csv.gz", gzip.open)):
        with opened(tmp_path / name, "wb") as file:
            file.write(text.encode())
        found = read_column(tmp_path / name, "visitors", "day, UTC")
        np.testing.assert_array_equal(found, [5, np.nan, 7])
        assert str(found.index[-1].date()) == "2020-01-03"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('y\n1\n""\n3\n', [1, None, 3]),
        ("y\n1\n\n3\n", [1, None, 3]),
        ("\ny\r\n\r\n1\r\n \r\n\r\n3", [None, 1, None, None, 3]),
        ("y\n1\n3\n\n\n", [1, 3]),
        ('y\n1\n3\n""\n', [1, 3, None]),
        ("y,z\n1,\n\n,2\n3,\n", [1, None, 3]),
    ],
)
def test_empty_lines_of_a_single_column_are_missing_values(
    text: str, values: list[float | None]
) -> None:
    found = read_column(io.StringIO(text), "y")
    np.testing.assert_array_equal(found, np.array(values, float))


def read_times(cells: list[str]) -> Any:
    rows = [f"{cell},{number}" for number, cell in enumerate(cells)]
    return read_column(io.StringIO("\n".join(["t,y", *rows])), "y", "t").index


@pytest.mark.parametrize(
    ("form", "freq"),
    [
        ("%Y", "YS"), ("%Y%m", "MS"), ("%Y%m%d", "D"), ("%Y%m%d%H", "h"), ("%Y%m%d%H%M", "15min"),
        ("%Y%m%d%H%M%S", "s"),
    ],
)  # fmt: skip
def test_dates_written_as_numbers(form: str, freq: str) -> None:
    times = pandas.date_range("1990-12-01" if freq != "YS" else "1900", periods=40, freq=freq)
    assert read_times([time.strftime(form) for time in times]).equals(times)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_since_1970_are_utc(unit: str) -> None:
    times = pandas.date_range("2020-09-13 12:00", periods=40, freq="h", tz="UTC")
    assert read_times([str(time) for time in times.as_unit(unit).asi8]).equals(times)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1", "2", "3"], "t of the table holds numbers such as 1, which may be anything"),
        (["20210101", "20210132"], "holds numbers such as 20210101"),
        (["2021", "20210102"], "holds numbers such as 2021"),
        (["2021.5", "2022.5"], "holds numbers such as 2021.5"),
        (["-1e30", "2022"], "holds numbers such as -1e.30"),
        (["2021", "", "2023"], "t holds nothing in row 2 of the table, which is no time"),
        (["2021-01-01", "", "2021-01-03"], "t holds nothing in row 2 of the table"),
        (["True", "False"], "t holds 'True' in row 1"),
        (["05/03/24 10:00", "05/03/24 11:00"], "t of the table holds '05/03/24 10:00', a year of"),
        (["24-01-05", "24-01-06"], "holds '24-01-05', a year of two digits; write times as 2024-"),
        (["10:00", "11:00"], "holds '10:00', a time of day without a date"),
        (
            ["2021-01-01 00:00+01:00", "2021-01-01 01:00"],
            "t holds '2021-01-01 01:00' in row 2 of the table, which is no time with an offset",
        ),
    ],
)
def test_what_is_no_time_is_refused(cells: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_times(cells)


def test_offsets_over_a_change_of_the_clock_become_utc() -> None:
    local = pandas.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")
    found = read_times([time.isoformat() for time in local])
    assert found.equals(local.tz_convert("UTC"))
    one = read_times([time.isoformat() for time in local[:20]])
    assert one[0].isoformat() == "2024-03-30T00:00:00+01:00"


def test_a_name_that_two_columns_have_is_refused() -> None:
    text = "t,y,y,z,z\n2021-01-01,1,2,3,4\n2021-01-02,1,2,3,4\n"
    for column, time in (("y", "t"), ("t", "z")):
        with pytest.raises(ValueError, match=r"several columns named '[yz]'; rename them"):
            read_column(io.StringIO(text), column, time)
    assert len(read_column(io.StringIO(text.replace("y,y", "y,x")), "y", "t")) == 2


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%d-%m-%Y"])
def test_dates_that_begin_with_day_or_month(form: str) -> None:
    times = pandas.date_range("2024-02-01", periods=40, freq="D")
    assert read_times([time.strftime(form) for time in times]).equals(times)
    with pytest.raises(ValueError, match="which may begin with the day or with the month"):
        read_times([time.strftime(form) for time in times[:12]])
