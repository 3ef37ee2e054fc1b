"""Tables of a comparison, and what they say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spgru.compare.methods import OURS
from spgru.compare.ranks import Standing, ranked, standings
from spgru.reporting.markdown import bullets, number, table
from spgru.reporting.tables import Row
from spgru.runtime.storage import write_whole

__all__ = ["summary", "write"]

_HEADER = [
    "method", "CRPS", "least to largest", "WQL", "MASE", "80 % covers", "width", "training, s",
    "forecast, ms", "MB",
]  # fmt: skip
_ORIGIN = ("command", "commit", "hardware", "python", "torch")


def write(document: dict[str, Any], folder: Path, page: Path | None = None) -> list[Path]:
    """Files compare.json and compare.md.

    Args:
        document: what `measure` returned, or what compare.json holds
        page: where else to write the Markdown
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(document).encode()
    write_whole(folder / "compare.json", (json.dumps(document, indent=1) + "\n").encode())
    written = [folder / "compare.json", folder / "compare.md"]
    written += [page] if page is not None else []
    for path in written[1:]:
        write_whole(path, text)
    return written


def summary(document: dict[str, Any]) -> str:
    """What to print: ranks, and what they say."""
    found = standings(document["rows"])
    return "\n\n".join([_ranks(found), bullets(verdict(found))])


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    found, budget = standings(document["rows"]), document["budget"]
    origin = [[name, document[name]] for name in _ORIGIN]
    origin += [[name, value] for name, value in document["versions"].items()]
    parts = [
        "# Forecasts beside those of others",
        "Made by `spgru compare` (last section). All methods learn from the same histories and "
        f"forecast the same windows; networks have one recurrent layer of {budget['hidden_size']} "
        f"units and {budget['steps']} training steps of {budget['batch_size']} windows, seeds "
        f"{', '.join(map(str, document['seeds']))}. Networks of ours and of torch.nn share "
        "windows, plain forecast, loss (CRPS), early stopping and the calibration of their 80 % "
        "interval; DeepAR, AutoETS and seasonal naive come as they are.",
        bullets(_explanations(budget)),
        "## Ranks",
        f"Mean rank over {', '.join(ranked(document['rows'])[1]) or 'no task'}: by CRPS, by MASE "
        "and by the distance of the coverage from 0.8, each of means over seeds; forecast time in "
        "units of ours, geometric mean over tasks.",
        _ranks(found),
        bullets(verdict(found)),
        "## Tasks",
        _tasks(document),
    ]
    for task in document["tasks"]:
        rows = [row for row in document["rows"] if row["task"] == task["name"]]
        parts.append(f"### {task['name']}")
        parts.append(_scores(rows) if rows else "Not measured: the run ended before.")
        if rows:
            parts += [bullets(failed)] if (failed := _failures(rows)) else []
    if document["absent"]:
        lines = [
            f"{name}: {package} is not installed" for name, package in document["absent"].items()
        ]
        parts += ["## Left out", bullets(lines)]
    parts += ["## Where it comes from", table(["", ""], origin)]
    return "\n\n".join(parts) + "\n"


def _explanations(budget: dict[str, Any]) -> list[str]:
    return [
        "**ours**: `spgru.forecast.Forecaster`, direct; one pass, no sampling.",
        "**Gaussian head**: `nn.GRU` with mean and log variance, the twin of ours with certain "
        "weights.",
        f"**MC dropout**: the same with dropout 0.1 of the encoder's inputs and last state, "
        f"{budget['draws']} masks in one batch.",
        f"**deep ensemble**: {budget['members']} Gaussian heads, each with all the steps.",
        "**Laplace**: laplace-torch on the last layer of a Gaussian head, diagonal, prior by "
        "marginal likelihood, closed-form predictive.",
        f"**DeepAR**: GluonTS's, its own lags, time features, Student's t and learning rate, "
        f"{budget['samples']} sampled paths, no validation.",
        "**AutoETS**: statsforecast's, fitted to every history when a forecast is asked for, so "
        "that its training counts as forecast; it reads the last 30 seasons, at least 300 values.",
        "**seasonal naive**: the last season, with Gaussian intervals from the differences "
        "between seasons.",
        "CRPS, MASE and width are in units of the mean |seasonal difference| of the history; CRPS "
        "by the midpoint rule over 100 quantiles. MB are of tensors alive at once in a forecast "
        "of all windows, - where a method uses none.",
    ]


def _tasks(document: dict[str, Any]) -> str:
    names = ("name", "series", "values", "windows", "horizon", "season")
    return table(names, [[task[name] for name in names] for task in document["tasks"]])


def _scores(rows: Sequence[Row]) -> str:
    """Means over seeds, by CRPS."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        runs = [row for row in rows if row["method"] == method and not row["reason"]]
        if not runs:
            continue
        mean = {
            key: statistics.fmean(run[key] for run in runs)
            for key in ("crps", "wql", "mase", "coverage", "width", "fit_s", "forecast_s")
        }
        crps = [run["crps"] for run in runs]
        extent = f"{number(min(crps), 4)} to {number(max(crps), 4)}" if len(runs) > 1 else "-"
        size = None if runs[0]["bytes"] is None else max(run["bytes"] for run in runs) / 1e6
        lines.append(
            [
                method, number(mean["crps"], 4), extent, number(mean["wql"], 4),
                number(mean["mase"], 4), number(mean["coverage"]), mean["width"],
                mean["fit_s"], 1e3 * mean["forecast_s"], size,
            ]
        )  # fmt: skip
    return table(_HEADER, sorted(lines, key=lambda line: float(str(line[1]))))


def _failures(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row['method']}, seed {row['seed']}: {row['reason']}" for row in rows if row["reason"]
    ]


def _ranks(found: Sequence[Standing]) -> str:
    header = ["method", "CRPS rank", "MASE rank", "coverage rank", "forecast time / ours"]
    return table(header, [[number(x) for x in standing] for standing in found])


def verdict(found: Sequence[Standing]) -> list[str]:
    """Who has a better CRPS rank than ours, at no more forecast time or at more, and by what."""
    ours = next((one for one in found if one.method == OURS), None)
    if ours is None or len(found) < 2:
        return ["There is nothing to compare ours with."]
    if ours.time is None:
        return ["No task was done by all methods, so there are no ranks."]
    better = [one for one in found if one.crps < ours.crps]
    equal = [one for one in better if one.time is not None and one.time <= 1]
    lines = []
    if not equal:
        lines.append("No method with a better average CRPS rank forecasts as fast as ours.")
    for one in better:
        cost = "in no more time" if one in equal else f"in {number(one.time)} times the time"
        why = []
        if one.mase < ours.mase:
            why.append("its medians are better")
        if one.coverage < ours.coverage:
            why.append("its intervals cover nearer to 0.8")
        lines.append(
            f"**{one.method}** has a better average CRPS rank, {number(one.crps)} to "
            f"{number(ours.crps)}, {cost}: "
            + (" and ".join(why) or "neither its medians nor its coverage are better by rank")
            + "."
        )
    if not better:
        lines = [f"No method has a better average CRPS rank than ours, {number(ours.crps)}."]
    for one in found:
        if one.crps == ours.crps and one is not ours:
            lines.append(f"**{one.method}** has the same, in {number(one.time)} times the time.")
    lines.append(
        "Ranks say nothing of how far apart methods are: compare their CRPS with its range over "
        "the seeds. Few steps are fewer to a method that learns slowly, as DeepAR does."
    )
    return lines
