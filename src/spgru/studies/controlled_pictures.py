"""Pictures of the controlled study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spgru.data.trajectories import CANVAS
from spgru.models import VideoModel
from spgru.reporting.pictures import Line, Panel, Tile, new_figure, save_frames, save_panels
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.controlled_report import curve, seeds_of
from spgru.studies.runs import StudyConfig
from spgru.studies.sequences import AXES, DEVIATIONS, FAMILIAR, Deviation, Pairs, path
from spgru.studies.statistics import mean_and_range
from spgru.studies.study import Tables
from spgru.training.evaluation import CONTROLLED_SETS

__all__ = ["SHOWN", "save_curves", "save_pictures"]

SHOWN = (11, 15, 20)
"""Frames of the pictures, the first being 1."""
_MARGIN = 16
"""Pixels shown around the canvas: the middle of a digit that is just outside is 14 away."""
_FARTHEST = [Deviation(kind, values[-1]) for kind, values in CONTROLLED_SETS.items()]


def save_pictures(
    folder: Path, config: StudyConfig, model: VideoModel, pairs: dict[Deviation, Pairs]
) -> None:
    """The first test sequence of every deviation, the paths, and the animation."""
    clips = {}
    for deviation, pair in pairs.items():
        prediction = model.predict(pair.seen[:, :1])[:, 0]
        clips[deviation] = Clip(pair.seen[:, 0], pair.after[:, 0], prediction)
    for kind in CONTROLLED_SETS:
        _save_deviation(folder / f"{kind}.png", {d: c for d, c in clips.items() if d.kind == kind})
    chosen = {"familiar": clips[FAMILIAR], **{d.label: clips[d] for d in _FARTHEST}}
    save_animation(folder / "prediction.gif", chosen)
    _save_trajectories(folder / "trajectories.png", config)


def _save_deviation(file: Path, clips: dict[Deviation, Clip]) -> None:
    kinds = {"truth": "frame", "prediction": "frame", "uncertainty": "uncertainty"}
    rows = {}
    for deviation, clip in clips.items():
        first = len(clip.seen) + 1
        sources = (clip.after, clip.prediction.mean, clip.prediction.std)
        rows[deviation.label] = [
            Tile(kind, source[frame - first])
            for kind, source in zip(kinds.values(), sources, strict=True)
            for frame in SHOWN
        ]
    save_frames(file, [f"{name} {frame}" for name in kinds for frame in SHOWN], rows)


def _save_trajectories(file: Path, config: StudyConfig) -> None:
    """The middle of the digit: triangles where it is seen, circles where it is to be predicted."""
    by_kind = {kind: [d for d in DEVIATIONS if d.kind == kind] for kind in CONTROLLED_SETS}
    # Speeds share one line, so each has a panel of its own.
    panels = [by_kind["angle"], *[[deviation] for deviation in by_kind["speed"]]]
    figure = new_figure(3 * len(panels), 3.6)
    for deviations, axes in zip(panels, figure.subplots(1, len(panels)), strict=True):
        for deviation in deviations:
            y, x = path(config, deviation).T
            half = len(x) // 2
            (line,) = axes.plot(x[:half], y[:half], "^", markersize=3, label=deviation.label)
            axes.plot(x[half:], y[half:], "o", color=line.get_color(), markersize=3)
        axes.add_patch(_canvas())
        low, high = -_MARGIN, CANVAS + _MARGIN
        axes.set(xlim=(low, high), ylim=(high, low), aspect="equal")
        axes.legend(fontsize="small", loc="lower left")
    figure.suptitle("Middle of the digit: triangles seen, circles to be predicted", fontsize=10)
    figure.savefig(file, dpi=110)


def _canvas() -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((0, 0), CANVAS, CANVAS, fill=False, linewidth=0.8)


def save_curves(results: Tables, folder: Path) -> None:
    """Variances over the familiar one, since amounts of the two models do not compare."""
    curves = results["curves"]
    panels = [
        [
            Panel(kind, AXES[kind], "variance over familiar", _lines(curves, kind, True), None)
            for kind in CONTROLLED_SETS
        ],
        [
            Panel(kind, AXES[kind], "squared error", _lines(curves, kind, False))
            for kind in CONTROLLED_SETS
        ],
    ]
    save_panels(folder / "curves.png", panels)


def _lines(curves: list[Row], kind: str, relative: bool) -> dict[str, Line]:
    """Of every model: variance over that of the familiar path, or squared error as it is."""
    lines = {}
    for label in dict.fromkeys(row["model"] for row in curves):
        of_seeds = []
        for seed in seeds_of(curves, label):
            values = curve(curves, label, seed, kind, "variance" if relative else "error")
            unit = values[0] if relative and values[0] else 1.0
            of_seeds.append([value / unit for value in values])
        bands = [mean_and_range(values) for values in zip(*of_seeds, strict=True)]
        lines[label] = Line(CONTROLLED_SETS[kind], *zip(*bands, strict=True))
    return lines
