"""Average ranks over tasks, and forecast times in units of ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spgru.compare.methods import OURS
from spgru.reporting.tables import Row

__all__ = ["Standing", "ranked", "standings"]


class Standing(NamedTuple):
    """Ranks from 1, the best, averaged over the tasks that all of the methods did."""

    method: str
    crps: float
    mase: float
    coverage: float
    """by the distance from 0.8"""
    time: float | None
    """of a forecast over that of ours, geometric mean"""


def ranked(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Methods that never failed, and tasks that all of them did."""
    failed = {row["method"] for row in rows if row["reason"]}
    methods = [m for m in dict.fromkeys(row["method"] for row in rows) if m not in failed]
    done = {(row["task"], row["method"]) for row in rows}
    tasks = [
        task
        for task in dict.fromkeys(row["task"] for row in rows)
        if all((task, method) in done for method in methods)
    ]
    return methods, tasks


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Methods by their CRPS rank. One that failed at a task is left out; so is a task without
    ours."""
    fine = [row for row in rows if not row["reason"]]
    methods, tasks = ranked(rows)
    if not tasks:
        return []

    def mean(task: str, method: str, key: Callable[[Row], float]) -> float:
        return statistics.fmean(
            key(row) for row in fine if (row["task"], row["method"]) == (task, method)
        )

    def rank(method: str, key: Callable[[Row], float]) -> float:
        places = []
        for task in tasks:
            values = [mean(task, other, key) for other in methods]
            own = mean(task, method, key)
            # Equal values share their places.
            places.append(sum(v < own for v in values) + (1 + sum(v == own for v in values)) / 2)
        return statistics.fmean(places)

    def ratio(method: str) -> float | None:
        if OURS not in methods:
            return None
        logs = [math.log(mean(t, method, _seconds) / mean(t, OURS, _seconds)) for t in tasks]
        return math.exp(statistics.fmean(logs))

    found = [
        Standing(
            method,
            rank(method, lambda row: row["crps"]),
            rank(method, lambda row: row["mase"]),
            rank(method, lambda row: abs(row["coverage"] - 0.8)),
            ratio(method),
        )
        for method in methods
    ]
    return sorted(found, key=lambda one: one.crps)


def _seconds(row: Row) -> float:
    return float(max(row["forecast_s"], 1e-9))
