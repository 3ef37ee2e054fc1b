"""The logs of the trainings beside a report, and their plot: loss over steps and over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spgru.reporting.pictures import new_figure
from spgru.runtime.storage import write_whole
from spgru.studies.networks import Networks
from spgru.studies.runs import Member
from spgru.training.progress import METRICS, parse_metrics

__all__ = ["LOGS", "PLOT", "Curve", "draw_logs", "keep_logs", "training_curve"]

LOGS = "training"
"""Folder of the logs, one file for each network."""
PLOT = "training.png"


def keep_logs(networks: Networks, members: list[Member], folder: Path) -> None:
    """Copy the log of every network that has one: exported weights come without."""
    for member in members:
        log = networks.source(member) / METRICS
        if log.is_file():
            (folder / LOGS).mkdir(parents=True, exist_ok=True)
            write_whole(folder / LOGS / f"{member.name}.jsonl", log.read_bytes())


class Curve(NamedTuple):
    """The loss along a training, and scores on digits that it does not use."""

    steps: list[int]
    minutes: list[float]
    """of training alone, without validation, checkpoints and pictures"""
    loss: list[float]
    """the data term in nats per frame, mean since the point before"""
    tested_steps: list[int]
    tested_minutes: list[float]
    tested: list[float]
    """cross entropy in nats per frame"""


def training_curve(rows: list[dict[str, Any]], batch_size: int) -> Curve:
    """What a log says.

    Args:
        rows: of the log, oldest first
        batch_size: sequences in a step, to tell time by
    """
    curve = Curve([], [], [], [], [], [])
    step, minutes = 0, 0.0
    for row in rows:
        if "nll" in row:
            sequences = (row["step"] - step) * batch_size
            minutes += sequences / max(row["sequences_per_second"], 1e-9) / 60
            step = row["step"]
            curve.steps.append(step)
            curve.minutes.append(minutes)
            curve.loss.append(row["nll"])
        if row.get("test_cross_entropy") is not None:
            curve.tested_steps.append(row["step"])
            curve.tested_minutes.append(minutes)
            curve.tested.append(row["test_cross_entropy"])
    return curve


def draw_logs(folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Draw all logs in one figure.

    Args:
        folder: of a report
        configs: how each network was trained, by its name

    Returns:
        whether there were logs to draw
    """
    curves = {}
    for name, config in configs.items():
        # Logs of one network were once kept under the name of its run, without the seed.
        for stem in (name, name.rpartition("-")[0]):
            path = folder / LOGS / f"{stem}.jsonl"
            if path.is_file():
                rows = parse_metrics(path.read_text(encoding="utf-8"))
                curves[name] = training_curve(rows, config["batch_size"])
                break
    drawn = {name: curve for name, curve in curves.items() if curve.steps}
    if not drawn:
        return False
    figure = new_figure(10, 3.5)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for name, curve in drawn.items():
        for axes, x, tested_x in (
            (by_step, curve.steps, curve.tested_steps),
            (by_time, curve.minutes, curve.tested_minutes),
        ):
            (line,) = axes.plot(x, curve.loss, label=name)
            axes.plot(tested_x, curve.tested, "o", color=line.get_color())
    by_step.set(xlabel="steps", ylabel="nats per frame", title="loss; dots: unseen digits")
    by_time.set(xlabel="minutes of training", title="the same over time")
    # The paper's divergence may be negative.
    if all(value > 0 for curve in drawn.values() for value in (*curve.loss, *curve.tested)):
        _use_logarithms(by_step)
    by_step.legend(fontsize="small")
    figure.savefig(folder / PLOT, dpi=110)
    return True


def _use_logarithms(axes: Any) -> None:
    """A logarithmic y axis with plain numbers."""
    from matplotlib.ticker import ScalarFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
