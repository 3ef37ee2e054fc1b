"""Figures: times of each case, and how they grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spgru.reporting.pictures import new_figure
from spgru.reporting.tables import Row

__all__ = ["save_growth", "save_times"]

_SIZES = {"T": "steps", "B": "batch", "H": "hidden"}
_COLOURS = {"ours": "tab:blue", "plain": "tab:grey", "sampling": "tab:red", "peer": "tab:orange"}


def _timed(document: dict[str, Any]) -> list[Row]:
    return [row for row in document["rows"] if row["status"] == "timed"]


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))


def save_times(document: dict[str, Any], folder: Path) -> list[Path]:
    """times.png: a panel for each case and mode."""
    rows = [row for row in _timed(document) if not row["grows"]]
    names = ("batch", "steps", "inputs", "hidden", "dtype")
    cases = _unique(tuple(row[name] for name in names) for row in rows)
    modes = _unique(row["mode"] for row in rows)
    if not rows:
        return []
    figure = new_figure(7 * len(modes), 0.5 + 3.2 * len(cases))
    panels = figure.subplots(len(cases), len(modes), squeeze=False)
    for line, case in zip(panels, cases, strict=True):
        for panel, mode in zip(line, modes, strict=True):
            here = [
                row
                for row in rows
                if row["mode"] == mode and tuple(row[name] for name in names) == case
            ]
            _bars(panel, here, f"{','.join(map(str, case[:4]))} {case[4]}, {mode}")
    path = folder / "times.png"
    figure.savefig(path, dpi=100)
    return [path]


def _bars(panel: Any, rows: Sequence[Row], title: str) -> None:
    ordered = sorted(rows, key=lambda row: -float(row["seconds"]))
    panel.barh(
        [row["contender"] for row in ordered],
        [1e3 * row["seconds"] for row in ordered],
        color=[_COLOURS[row["kind"]] for row in ordered],
    )
    panel.set(title=title, xlabel="ms, median", xscale="log")


def save_growth(document: dict[str, Any], folder: Path) -> list[Path]:
    """growth.png: time over T, B and H."""
    rows = [row for row in _timed(document) if row["grows"]]
    if not rows:
        return []
    series, modes = _unique(row["grows"] for row in rows), _unique(row["mode"] for row in rows)
    figure = new_figure(4.5 * len(series), 0.5 + 3.5 * len(modes))
    panels = figure.subplots(len(modes), len(series), squeeze=False)
    for line, mode in zip(panels, modes, strict=True):
        for panel, name in zip(line, series, strict=True):
            here = [row for row in rows if row["mode"] == mode and row["grows"] == name]
            for contender in _unique(row["contender"] for row in here):
                its = [row for row in here if row["contender"] == contender]
                sizes = [row[_SIZES[name]] for row in its]
                panel.plot(sizes, [1e3 * row["seconds"] for row in its], "o-", label=contender)
            panel.set(title=mode, xlabel=name, ylabel="ms", xscale="log", yscale="log")
    panels[0][0].legend(fontsize="small")
    path = folder / "growth.png"
    figure.savefig(path, dpi=100)
    return [path]
