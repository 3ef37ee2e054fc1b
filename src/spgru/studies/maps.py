"""Maps of uncertainty: SP-GRU beside MC-LSTM, for the same frames of a deviating path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from spgru.moments import Moments
from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Line, Panel, Tile, save_frames, save_panels
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.controlled import MODELS, first_of
from spgru.studies.controlled_pictures import SHOWN
from spgru.studies.networks import Networks
from spgru.studies.prediction import predict
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.sequences import Deviation, controlled_pairs
from spgru.studies.statistics import mean, mean_and_range, rank_correlation
from spgru.studies.study import Conclusion, Study, Tables

__all__ = ["STUDY", "map_correlations"]

DEVIATION = Deviation("angle", 30.0)
"""The paper shows maps of a path with deviating angle."""
_OURS, _THEIRS, _BOTH = "SP-GRU with error", "MC-LSTM with error", "SP-GRU with MC-LSTM"
_COUPLES = (_OURS, _THEIRS, _BOTH)
"""Which maps are compared with which."""


def _members(config: StudyConfig) -> list[Member]:
    return members(config, MODELS)


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    scale = config.scale
    pairs = controlled_pairs(config, DEVIATION, scale.sequences)
    results: Tables = {"correlation": []}
    # Networks that were given count once, not once for each seed.
    for seed in dict.fromkeys(member.seed for member in _members(config)):
        predictions = {}
        for run, label in MODELS.items():
            model = networks.load(Member(run, seed))
            predictions[label] = predict(model, pairs.seen, scale.draws)
        ours, theirs = predictions.values()
        rows = map_correlations(ours, theirs, pairs.after)
        results["correlation"] += [{"seed": seed, **row} for row in rows]
        if seed == first_of("", config).seed:
            _pictures(folder, pairs.seen, pairs.after, predictions)
    return results


def map_correlations(sp_gru: Moments, mc_lstm: Moments, target: Tensor) -> list[Row]:
    """Rank correlation over the pixels of each frame, mean over sequences. (T, B, h, w) each.

    Ranks over pixels, since the paper's claim is about where, not about how much.
    """
    rows = []
    for t in range(len(target)):
        found: dict[str, list[float | None]] = {name: [] for name in _COUPLES}
        for b in range(target.shape[1]):
            ours, theirs = sp_gru.var[t, b], mc_lstm.var[t, b]
            errors = [(p.mean[t, b] - target[t, b]).square() for p in (sp_gru, mc_lstm)]
            couples = ((ours, errors[0]), (theirs, errors[1]), (ours, theirs))
            for name, couple in zip(_COUPLES, couples, strict=True):
                found[name].append(rank_correlation(*couple))
        rows += [
            {"frame": len(target) + t + 1, "maps": name, "spearman": _mean_of_known(values)}
            for name, values in found.items()
        ]
    return rows


def _mean_of_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _pictures(
    folder: Path, seen: Tensor, after: Tensor, predictions: dict[str, Moments], sequence: int = 0
) -> None:
    rows: dict[str, list[Tile]] = {}
    for frame in SHOWN:
        t = frame - len(seen) - 1
        rows[f"frame {frame}"] = [Tile("frame", after[t, sequence])]
        for prediction in predictions.values():
            picture = prediction[t, sequence]
            # Each map on its own scale: the paper compares patterns, not amounts.
            relative = picture.std / picture.std.max().clamp(min=1e-9)
            rows[f"frame {frame}"] += [Tile("frame", picture.mean), Tile("uncertainty", relative)]
    columns = ["truth"]
    for label in predictions:
        columns += [f"{label}\nprediction", f"{label}\nuncertainty"]
    title = f"{DEVIATION.label}; uncertainty: standard deviation over its largest value"
    save_frames(folder / "maps.png", columns, rows, title)
    clips = {
        label: Clip(seen[:, sequence], after[:, sequence], prediction[:, sequence])
        for label, prediction in predictions.items()
    }
    save_animation(folder / "maps.gif", clips)


def _by_frame(rows: list[Row], name: str) -> dict[int, list[float]]:
    frames: dict[int, list[float]] = {}
    for row in rows:
        if row["maps"] == name and row["spearman"] is not None:
            frames.setdefault(row["frame"], []).append(row["spearman"])
    return frames


def _draw(results: Tables, folder: Path) -> None:
    lines: dict[str, Line] = {}
    for name in _COUPLES:
        frames = _by_frame(results["correlation"], name)
        if frames:
            bands: Any = zip(*[mean_and_range(values) for values in frames.values()], strict=True)
            lines[name] = Line(list(frames), *bands)
    panel = Panel("Where, pixel by pixel", "frame", "rank correlation", lines, bottom=None)
    save_panels(folder / "correlation.png", [[panel]])


def _conclude(results: Tables) -> Conclusion:
    rows = results["correlation"]
    over_frames = {
        name: [value for values in _by_frame(rows, name).values() for value in values]
        for name in _COUPLES
    }
    means = {name: mean(values) if values else None for name, values in over_frames.items()}
    table_rows = [
        [name, means[name], *([min(values), max(values)] if values else [None, None])]
        for name, values in over_frames.items()
    ]
    alike = bool(over_frames[_BOTH]) and min(over_frames[_BOTH]) > 0.5
    lines = [
        f"Mean rank correlation of the two maps, pixel by pixel: {number(means[_BOTH])}.",
        "The paper says that the two look alike. Correlated above 1/2 for every seed and frame: "
        f"{yes_no(alike)}.",
        "Rank correlation of each map with its own network's squared error: SP-GRU "
        f"{number(means[_OURS])}, MC-LSTM {number(means[_THEIRS])}.",
    ]
    return Conclusion(
        introduction=(f"Both networks see the same sequences ({DEVIATION.label}, trained on 20°)."),
        findings=lines,
        sections=[
            table(["rank correlation over pixels", "mean", "least", "largest"], table_rows),
            figure("maps.png", "The same frames, each map over its largest value"),
            figure("correlation.png", "By frame; the band is the range of all seeds"),
            figure("maps.gif", "What is there, prediction, uncertainty (one scale for both)"),
        ],
    )


STUDY = Study(
    name="maps",
    title="Maps of uncertainty: SP-GRU beside MC-LSTM",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
)
