"""How true the variance of the controlled study is, before and after calibration."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spgru.reporting.markdown import number, table
from spgru.reporting.tables import Row
from spgru.studies.brute_force import brute_force
from spgru.studies.calibrated import EXPLANATION
from spgru.studies.sequences import FAMILIAR, Deviation
from spgru.studies.statistics import mean, mean_and_range
from spgru.studies.study import Tables
from spgru.training.evaluation import CONTROLLED_SETS

__all__ = ["audit_finding", "audit_sections", "measure_audit"]

_MEASURED_BY_FRAME = ("closed", "calibrated", "true", "true_error")
_MEASURED = (
    *_MEASURED_BY_FRAME, "ratio", "ratio_error", "calibrated_ratio", "calibrated_ratio_error",
)  # fmt: skip
"""Columns of the tables, fields of `BruteForce`."""
_COLUMNS = {"ratio": "closed", "calibrated_ratio": "calibrated"}
"""Ratios to the truth; results of earlier versions have the first alone."""


def measure_audit(
    model: Any, sets: dict[Deviation, Tensor], draws: int
) -> tuple[list[Row], list[Row]]:
    """Closed form, plain and calibrated, against drawn weights: by deviation, and by frame too.

    Args:
        model: with its calibration
        sets: sequences of every deviation, as many of each
    """
    found = brute_force(model, torch.stack(list(sets.values()), 1), draws)
    rows: list[Row] = []
    by_frame: list[Row] = []
    steps = len(found.true_by_frame)
    for k, deviation in enumerate(sets):
        of_set: Row = deviation._asdict()
        row = {name: getattr(found, name)[k].item() for name in _MEASURED}
        rows.append({**of_set, **row})
        for t in range(steps):
            amounts = {
                name: getattr(found, f"{name}_by_frame")[t, k].item() for name in _MEASURED_BY_FRAME
            }
            true = amounts["true"] or math.nan
            ratios = {
                "ratio": amounts["closed"] / true,
                "calibrated_ratio": amounts["calibrated"] / true,
            }
            by_frame.append({**of_set, "frame": steps + t + 1, **amounts, **ratios})
    return rows, by_frame


def _is_calibrated(rows: list[Row]) -> bool:
    return all("calibrated_ratio" in row for row in rows)


def _range(rows: list[Row], column: str) -> str:
    values = [row[column] for row in rows]
    return f"{number(min(values))} to {number(max(values))}"


def audit_finding(rows: list[Row]) -> str:
    after = f"; calibrated {_range(rows, 'calibrated_ratio')}" if _is_calibrated(rows) else ""
    return f"Closed form over brute force: {_range(rows, 'ratio')}{after}."


def audit_sections(results: Tables) -> list[str]:
    """Text and tables of the report."""
    rows = results["audit"]
    text = (
        "Closed form over brute force: the variance of the same pixels over networks with "
        "drawn weights (± one standard error). Below 1 the closed form is too sure."
    )
    if not _is_calibrated(rows):
        return [text, _by_deviation(rows, ["ratio"])]
    return [
        f"{text} {EXPLANATION}",
        _by_deviation(rows, list(_COLUMNS)),
        "The same ratios by frame, mean (and range) over seeds.",
        _by_frame(results["audit_by_frame"]),
    ]


def _by_deviation(rows: list[Row], ratios: list[str]) -> str:
    seeds = sorted({row["seed"] for row in rows})
    amounts = {"closed": "closed form", "calibrated": "calibrated", "true": "brute force"}
    if len(ratios) == 1:
        del amounts["calibrated"]
    lines = []
    for kind, value in dict.fromkeys((row["kind"], row["value"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["value"]) == (kind, value)]
        by_seed = {row["seed"]: row for row in own}
        cells = [
            f"{number(by_seed[seed][ratio])} ± {number(by_seed[seed][f'{ratio}_error'], 2)}"
            for seed in seeds
            for ratio in ratios
        ]
        lines.append([kind, value, *[mean([row[name] for row in own]) for name in amounts], *cells])
    names = {"ratio": "ratio"} if len(ratios) == 1 else _COLUMNS
    header = ["deviation", "value", *amounts.values()]
    header += [f"{names[ratio]}, seed {seed}" for seed in seeds for ratio in ratios]
    return table(header, lines)


def _by_frame(rows: list[Row]) -> str:
    """Of the familiar path and the farthest deviation of each kind."""
    shown = {"familiar": FAMILIAR}
    for kind, values in CONTROLLED_SETS.items():
        farthest = Deviation(kind, values[-1])
        shown[farthest.label] = farthest
    lines = []
    for frame in dict.fromkeys(row["frame"] for row in rows):
        cells: list[object] = [frame]
        for deviation in shown.values():
            place = (frame, *deviation)
            own = [r for r in rows if (r["frame"], r["kind"], r["value"]) == place]
            cells += [_over_seeds([row[ratio] for row in own]) for ratio in _COLUMNS]
        lines.append(cells)
    return table(["frame", *[f"{name}: {c}" for name in shown for c in _COLUMNS.values()]], lines)


def _over_seeds(values: list[float]) -> str:
    middle, low, high = mean_and_range(values)
    return f"{number(middle)} ({number(low)} to {number(high)})" if low < high else number(middle)
