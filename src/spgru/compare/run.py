"""Fit, forecast, judge: task by task, method by method, seed by seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from spgru.compare.method import Budget, Method, Predict
from spgru.compare.methods import make_methods
from spgru.compare.scores import score
from spgru.compare.tasks import Task
from spgru.forecast.scaling import Array
from spgru.reporting.tables import Row
from spgru.runtime.memory import peak_bytes
from spgru.runtime.provenance import provenance

__all__ = ["CompareConfig", "described", "measure"]

_PACKAGES = ("gluonts", "laplace-torch", "statsforecast", "statsmodels", "numpy")
_REPEATS = 3
"""Timed forecasts, of which the quickest counts; one alone where it takes seconds."""
_SLOW = 2.0
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class CompareConfig:
    """What to compare and how.

    Args:
        methods: names, None for all
    """

    tasks: Sequence[Task]
    seeds: Sequence[int]
    budget: Budget
    methods: Sequence[str] | None = None
    threads: int = 1


def measure(
    config: CompareConfig,
    command: str = "",
    say: Callable[[str], None] = print,
    known: Sequence[Row] = (),
    keep: Callable[[dict[str, Any]], object] = lambda document: None,
) -> dict[str, Any]:
    """Everything a report is made of: where it comes from, and a row for each run.

    Args:
        command: what was typed, for the record
        say: called with a line for each run
        known: rows of an earlier run with the same tasks and budget, which are not measured again
        keep: called with what is known after each run
    """
    methods = _chosen(config.methods)
    absent = [method for method in methods if not method.is_installed]
    for method in absent:
        say(f"{method.name} is left out: {method.package} is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    document: dict[str, Any] = {
        "command": command,
        **provenance(_CPU),
        "versions": _versions(),
        "budget": asdict(config.budget),
        "threads": config.threads,
        "seeds": list(config.seeds),
        "tasks": [described(task) for task in config.tasks],
        "absent": {method.name: method.package for method in absent},
        "rows": list(known),
    }
    done = {(row["task"], row["method"], row["seed"]) for row in known}
    try:
        for task in config.tasks:
            for method in methods:
                for seed in config.seeds if method.is_random else config.seeds[:1]:
                    if method.is_installed and (task.name, method.name, seed) not in done:
                        row = _measured(task, method, config.budget, seed)
                        document["rows"].append(row)
                        say(_line(row))
                        keep(document)
    finally:
        torch.set_num_threads(threads)
    return document


def _chosen(names: Sequence[str] | None) -> list[Method]:
    methods = make_methods()
    if names is None:
        return methods
    possible = {method.name: method for method in methods}
    for name in names:
        if name not in possible:
            raise ValueError(f"there is no method {name!r}; there are {', '.join(possible)}")
    return [method for name, method in possible.items() if name in names]


def described(task: Task) -> Row:
    lengths = [len(values) for values in task.histories]
    return {
        "name": task.name, "series": len(lengths), "values": sum(lengths),
        "windows": len(task.windows), "horizon": task.horizon, "season": task.season,
    }  # fmt: skip


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _measured(task: Task, method: Method, budget: Budget, seed: int) -> Row:
    row: Row = {"task": task.name, "method": method.name, "seed": seed, "reason": ""}
    try:
        predict, fitting = method.fit(task, budget, seed)
        histories = [history for history, _ in task.windows]
        quantiles, forecasting = _timed(predict, histories)
        row |= score(quantiles, task)._asdict()
        row |= {"fit_s": fitting, "forecast_s": forecasting, "bytes": _bytes(predict, histories)}
    except Exception as error:  # listed, and the others are still measured
        row["reason"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return row


def _timed(predict: Predict, histories: Sequence[Array]) -> tuple[Array, float]:
    """The forecast, and the least of its times."""
    least = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        found = predict(histories)
        least = min(least, time.perf_counter() - start)
        if least > _SLOW:
            break
    return found, least


def _bytes(predict: Predict, histories: Sequence[Array]) -> int | None:
    """Most bytes of tensors at once; None for what uses none."""
    return peak_bytes(lambda: predict(histories), _CPU) or None


def _line(row: Row) -> str:
    start = f"{row['task']}, {row['method']}, seed {row['seed']}:"
    if row["reason"]:
        return f"{start} failed, {row['reason']}"
    return (
        f"{start} CRPS {row['crps']:.4f}, MASE {row['mase']:.4f}, WQL {row['wql']:.5f}, "
        f"80 % covers {row['coverage']:.3f}; {row['fit_s']:.1f} s, {row['forecast_s']:.3f} s"
    )
