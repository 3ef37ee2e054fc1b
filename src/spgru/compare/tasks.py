"""What is forecast: series inside statsmodels, and three tasks with published scores from files."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from spgru.forecast.scaling import Array

__all__ = ["FILES", "PACKAGED", "PUBLISHED", "Task", "packaged_tasks", "read_tasks", "thinned"]

FILES = """
The folder holds, each compressed by gzip: m4_hourly_train.csv.gz and m4_hourly_test.csv.gz
(Hourly-train.csv and Hourly-test.csv of github.com/Mcompetitions/M4-methods), exchange_rate.txt.gz
(github.com/laiguokun/multivariate-time-series-data), ETTh1.csv.gz and ETTh2.csv.gz
(github.com/zhouhaoyi/ETDataset).
"""


@dataclass(frozen=True)
class Task:
    """Histories to learn from, and windows to forecast after they end."""

    name: str
    histories: list[Array]
    windows: list[tuple[Array, Array]]
    """what is known at the time of a forecast, and what follows; all of one horizon"""
    season: int
    frequency: str
    """as pandas writes it; some methods choose lags by it"""

    @property
    def horizon(self) -> int:
        """How many steps ahead every window is forecast."""
        return len(self.windows[0][1])


def _rolling(
    name: str, series: Sequence[Array], horizon: int, season: int, frequency: str, count: int
) -> Task:
    """The last `count` windows of every series, one after the other, all after the histories."""
    windows = []
    for values in series:
        for origin in range(len(values) - count * horizon, len(values), horizon):
            windows.append((values[:origin], values[origin : origin + horizon]))
    histories = [values[: len(values) - count * horizon] for values in series]
    return Task(name, histories, windows, season, frequency)


# -- inside statsmodels ---------------------------------------------------------------------------


def _rows(name: str) -> list[list[str]]:
    found = find_spec("statsmodels")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "the packaged series come with statsmodels, which is not installed; "
            "pip install 'spgru[compare]', or pass --data"
        )
    path = Path(found.origin).parent / "datasets" / name / f"{name}.csv"
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def _el_nino() -> Task:
    """Monthly sea surface temperature, 1950 to 2010."""
    values = np.asarray([float(value) for row in _rows("elnino") for value in row[1:]])
    return _rolling("el_nino", [values], 12, 12, "M", 10)


def _co2() -> Task:
    """Monthly means of carbon dioxide at Mauna Loa, May 1964 to 2001.

    There are months without values before, and a closed gap would shift the season.
    """
    months: dict[int, list[float]] = {}
    for date, value in _rows("co2"):
        if value:
            months.setdefault(12 * int(date[:4]) + int(date[4:6]), []).append(float(value))
    known = sorted(months)
    gaps = [after for before, after in pairwise(known) if after != before + 1]
    first = gaps[-1] if gaps else known[0]
    values = np.asarray([float(np.mean(months[month])) for month in known if month >= first])
    return _rolling("co2", [values], 12, 12, "M", 8)


def _sunspots() -> Task:
    """Yearly number, 1700 to 2008; its cycle of about 11 years is no season of fixed length."""
    values = np.asarray([float(row[1]) for row in _rows("sunspots")])
    return _rolling("sunspots", [values], 8, 1, "Y", 8)


def _macro() -> Task:
    """Quarterly figures of the United States, 1959 to 2009: nine series."""
    table = np.asarray([[float(value) for value in row] for row in _rows("macrodata")])
    return _rolling("macro", list(table[:, 2:11].T), 8, 4, "Q", 2)


PACKAGED: dict[str, Callable[[], Task]] = {
    "el_nino": _el_nino,
    "co2": _co2,
    "sunspots": _sunspots,
    "macro": _macro,
}


def packaged_tasks(names: Sequence[str] = tuple(PACKAGED)) -> list[Task]:
    """Tasks that need no download, only statsmodels."""
    return [PACKAGED[name]() for name in names]


# -- from files -----------------------------------------------------------------------------------


def _lines(path: Path) -> list[list[str]]:
    try:
        with gzip.open(path, "rt", newline="") as file:
            return list(csv.reader(file))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist. {' '.join(FILES.split())}") from None


def _m4(folder: Path) -> Task:
    train, test = (
        [
            np.asarray([float(value) for value in row[1:] if value not in ("", "NA")])
            for row in _lines(folder / f"m4_hourly_{part}.csv.gz")[1:]
        ]
        for part in ("train", "test")
    )
    return Task("m4_hourly", train, list(zip(train, test, strict=True)), 24, "h")


def _exchange(folder: Path) -> Task:
    values = np.asarray(_lines(folder / "exchange_rate.txt.gz"), dtype=np.float64)
    return _rolling("exchange_rate", list(values.T), 30, 5, "B", 1)


def _etth(folder: Path) -> Task:
    series: list[Array] = []
    for name in ("ETTh1", "ETTh2"):
        rows = _lines(folder / f"{name}.csv.gz")[1:]
        series += list(np.asarray([[float(value) for value in row[1:]] for row in rows]).T)
    return _rolling("etth", series, 24, 24, "h", 1)


PUBLISHED: dict[str, Callable[[Path], Task]] = {
    "m4_hourly": _m4,
    "exchange_rate": _exchange,
    "etth": _etth,
}


def read_tasks(folder: Path, names: Sequence[str] = tuple(PUBLISHED)) -> list[Task]:
    """Tasks with published scores: the last window of every series in these files."""
    return [PUBLISHED[name](folder) for name in names]


def thinned(task: Task, most: int) -> Task:
    """At most so many series, spread over the task, and their windows."""
    count = len(task.histories)
    each = len(task.windows) // count
    kept = range(0, count, -(-count // most))
    windows = [task.windows[each * number + k] for number in kept for k in range(each)]
    return replace(task, histories=[task.histories[number] for number in kept], windows=windows)
