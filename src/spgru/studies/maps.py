"""Maps of uncertainty: SP-GRU beside MC-LSTM, for the same frames of a deviating path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from spgru.moments import Moments
from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Line, Panel, Tile, save_frames, save_panels
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.calibrated import EXPLANATION, PICTURED
from spgru.studies.controlled import MODELS, first_of
from spgru.studies.controlled_pictures import SHOWN
from spgru.studies.networks import Networks
from spgru.studies.prediction import predict
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.sequences import Deviation, controlled_pairs
from spgru.studies.statistics import correlation, mean, mean_and_range, rank_correlation
from spgru.studies.study import Conclusion, Study, Tables

__all__ = ["STUDY", "map_correlations"]

DEVIATION = Deviation("angle", 30.0)
"""The paper shows maps of a path with deviating angle."""
_AFTER = "calibrated SP-GRU"
_THEIRS = MODELS["controlled_mc_lstm"]
_MEASURES = {"linear": "linear, of standard deviations", "spearman": "of ranks"}
"""The first is what the eye compares: ranks count the black pixels, which are most of them."""


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
            member = Member(run, seed)
            predictions[label] = predict(networks.load(member), pairs.seen, scale.draws)
            calibrated = networks.calibrated(member)
            if calibrated is not None:
                predictions[_AFTER] = predict(calibrated, pairs.seen, scale.draws)
        rows = map_correlations(predictions, pairs.after)
        results["correlation"] += [{"seed": seed, **row} for row in rows]
        if seed == first_of("", config).seed:
            shown = {label: predictions[label] for label in (_AFTER, _THEIRS)}
            _pictures(folder, pairs.seen, pairs.after, shown)
    return results


def map_correlations(predictions: Mapping[str, Moments], target: Tensor) -> list[Row]:
    """Of each map with its network's error, and of ours with theirs, over the pixels of a frame.

    Mean over sequences; (T, B, h, w) each. The paper's claim is about where, not about how much:
    so these are correlations.
    """
    rows = []
    for t in range(len(target)):
        found: dict[str, dict[str, list[float | None]]] = {}
        for b in range(target.shape[1]):
            maps = {label: p.std[t, b] for label, p in predictions.items()}
            couples = {
                f"{label} with error": (maps[label], (p.mean - target)[t, b].abs())
                for label, p in predictions.items()
            }
            couples |= {
                f"{label} with {_THEIRS}": (maps[label], maps[_THEIRS])
                for label in predictions
                if label != _THEIRS
            }
            for name, couple in couples.items():
                values = found.setdefault(name, {measure: [] for measure in _MEASURES})
                values["linear"].append(correlation(*couple))
                values["spearman"].append(rank_correlation(*couple))
        rows += [
            {
                "frame": len(target) + t + 1,
                "maps": name,
                **{measure: _mean_of_known(values[measure]) for measure in _MEASURES},
            }
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


def _by_frame(rows: list[Row], name: str, measure: str) -> dict[int, list[float]]:
    frames: dict[int, list[float]] = {}
    for row in rows:
        if row["maps"] == name and row[measure] is not None:
            frames.setdefault(row["frame"], []).append(row[measure])
    return frames


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["maps"] for row in rows))


def _draw(results: Tables, folder: Path) -> None:
    rows = results["correlation"]
    panels = []
    for measure, label in _MEASURES.items():
        lines: dict[str, Line] = {}
        for name in _names(rows):
            frames = _by_frame(rows, name, measure)
            if frames:
                bands: Any = zip(
                    *[mean_and_range(values) for values in frames.values()], strict=True
                )
                lines[name] = Line(list(frames), *bands)
        panels.append(Panel(label, "frame", "correlation", lines, bottom=None))
    save_panels(folder / "correlation.png", [panels])


def _conclude(results: Tables) -> Conclusion:
    rows = results["correlation"]
    over_frames = {
        (name, measure): [v for values in _by_frame(rows, name, measure).values() for v in values]
        for name in _names(rows)
        for measure in _MEASURES
    }

    def middle(name: str, measure: str) -> str:
        values = over_frames[name, measure]
        return number(mean(values) if values else None)

    table_rows = []
    for name in _names(rows):
        cells = [name]
        for measure in _MEASURES:
            values = over_frames[name, measure]
            band = f" ({number(min(values))} to {number(max(values))})" if values else ""
            cells.append(middle(name, measure) + band)
        table_rows.append(cells)
    ours = [name.removesuffix(" with error") for name in _names(rows) if name.endswith(" error")]
    couples = {label: f"{label} with {_THEIRS}" for label in ours if label != _THEIRS}
    lines = [
        f"The map of {label} with that of {_THEIRS}, pixel by pixel: linear correlation "
        f"{middle(both, 'linear')}, of ranks {middle(both, 'spearman')}."
        for label, both in couples.items()
    ]
    least = [min(over_frames[both, "linear"], default=0) for both in couples.values()]
    lines.append(
        "The paper says that the two look alike. Linear correlation above 1/2 for every seed and "
        f"frame: {yes_no(min(least) > 0.5)}."
    )
    each = [f"{label} {middle(f'{label} with error', 'linear')}" for label in ours]
    lines.append(f"Linear correlation of each map with its own network's error: {', '.join(each)}.")
    header = ["correlation over pixels", *(f"{m}, mean (range)" for m in _MEASURES.values())]
    return Conclusion(
        introduction=(
            f"Both networks see the same sequences ({DEVIATION.label}, trained on 20°). A map is "
            "the standard deviation of the pixels of a frame, an error the absolute one."
        ),
        findings=lines,
        sections=[
            table(header, table_rows),
            figure("maps.png", f"The same frames, each map over its largest value{PICTURED}"),
            figure("correlation.png", "By frame; the band is the range of all seeds"),
            figure(
                "maps.gif", f"What is there, prediction, uncertainty (one scale for both{PICTURED})"
            ),
            EXPLANATION,
        ],
    )


STUDY = Study(
    name="maps",
    title="Maps of uncertainty: SP-GRU beside MC-LSTM",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
    calibrates=True,
)
