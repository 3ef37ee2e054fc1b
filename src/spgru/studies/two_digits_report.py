"""The report of two digits: from its numbers to figures and sentences."""

from __future__ import annotations

from pathlib import Path

from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Line, Panel, save_panels
from spgru.reporting.tables import Row
from spgru.studies.calibrated import EXPLANATION, PICTURED
from spgru.studies.published import PAPER, VideoScore, nats_table, video_table
from spgru.studies.statistics import growth, rises
from spgru.studies.study import Conclusion, Tables

__all__ = ["MODELS", "PREDICTORS", "conclude", "draw"]

PREDICTORS = {"two_digits": "SP-GRU", "two_digits_conv": "conv SP-GRU"}
MODELS = {**PREDICTORS, "two_digits_autoencoder": "SP-GRU autoencoder"}
"""Names of networks in the report, by run."""
_MEASURES = {
    "nats": "nats",
    "error": "squared error",
    "absolute_error": "absolute error",
    "similarity": "similarity",
    "plain_similarity": "similarity, range 1",
    "variance": "variance",
    "calibrated": "calibrated variance",
}
"""Columns with a standard error, and what the report calls them."""


def _measures(rows: list[Row], before: tuple[str, ...], after: tuple[str, ...] = ()) -> str:
    """A table of all measures between other columns."""
    # Results of earlier versions are not calibrated.
    measures = {k: name for k, name in _MEASURES.items() if k != "calibrated" or _has(rows, k)}
    cells = [
        [
            *(row[name] for name in before),
            *(_with_error(row, name) for name in measures),
            *(row[name] for name in after),
        ]
        for row in rows
    ]
    return table([*before, *measures.values(), *after], cells)


def _has(rows: list[Row], column: str) -> bool:
    return any(row.get(column) is not None for row in rows)


def _with_error(row: Row, name: str) -> str:
    """ "186 ± 0.5"; results of earlier versions have no error, and not every measure."""
    value, error = row.get(name), row.get(f"{name}_standard_error")
    shown = number(value, 4)
    return shown if error is None else f"{shown} ± {number(error, 2)}"


def _beside_video(scores: list[Row]) -> list[str]:
    """Predictions among those of networks for video, where their measures were taken."""
    ours = [
        VideoScore(
            f"{row['model']} (here)",
            # Half of the parameters are variances.
            row["parameters"] / 2e6,
            row["error"],
            row["absolute_error"],
            row["similarity"],
        )
        for row in scores
        if row["task"] == "prediction" and "similarity" in row
    ]
    if not ours:
        return []
    return [
        "Squared and absolute error are sums over the pixels of a frame. The published networks "
        "(OpenSTL, official test set) give no uncertainty; of ours the means of the weights are "
        "counted, and there are as many variances. Structural similarity is with a range of 2, as "
        "published; with the range that frames have, 1, it is less.",
        video_table(ours),
    ]


def _curves(rows: list[Row], column: str) -> dict[str, list[float]]:
    """By model, or "model, task", along the distance in time; without those that lack it."""
    curves: dict[str, list[float]] = {}
    for row in rows:
        if row.get(column) is None:
            continue
        name = f"{row['model']}, {row['task']}" if "task" in row else str(row["model"])
        curves.setdefault(name, []).append(row[column])
    return curves


def draw(results: Tables, folder: Path) -> None:
    panels = []
    for rows, column, title in (
        ("by_distance", "variance", "variance of a frame"),
        ("by_distance", "calibrated", "the same, calibrated"),
        ("audit_by_distance", "true", "the same by drawn networks"),
        ("by_distance", "error", "squared error of a frame"),
    ):
        if not _has(results[rows], column):
            continue
        lines = {
            name: Line(range(1, len(values) + 1), values, values, values)
            for name, values in _curves(results[rows], column).items()
        }
        panels.append(Panel(title, "distance in time (frames)", column, lines))
    save_panels(folder / "by_distance.png", [panels])


def _calibrated(row: Row, frames: list[Row]) -> str:
    """ ", calibrated 1.01 ± 0.02, by frame 0.9 to 1.1", where it was measured."""
    if row.get("calibrated_ratio") is None:
        return ""
    ratios = [frame["calibrated_ratio"] for frame in frames if frame["model"] == row["model"]]
    return (
        f", calibrated {number(row['calibrated_ratio'])} ± "
        f"{number(row['calibrated_ratio_error'], 1)}, by frame {number(min(ratios))} to "
        f"{number(max(ratios))}"
    )


def conclude(results: Tables) -> Conclusion:
    scores = results["scores"]
    ours: dict[str, dict[str, float]] = {"prediction": {}, "reconstruction": {}}
    lines = []
    for row in scores:
        who = f"{row['model']} (here, {row['task']})"
        ours[row["task"]][who] = row["nats"]
        if row["task"] == "prediction":
            lines.append(
                f"{who}: {_with_error(row, 'nats')} nats per frame on {row['sequences']} sequences;"
                f" at or below the paper's {PAPER}: {yes_no(row['nats'] <= PAPER)}."
            )
        else:
            lines.append(f"{who}: {_with_error(row, 'nats')} nats per frame.")
    for column, what in (("variance", "variance"), ("calibrated", "calibrated variance")):
        for name, values in _curves(results["by_distance"], column).items():
            lines.append(
                f"{name}: {what} grows with every frame of distance in time: "
                f"{yes_no(rises(values))}; last over first {number(growth(values))}."
            )
    truth = _curves(results["audit_by_distance"], "true")
    for row in results["audit"]:
        lines.append(
            f"{row['model']}: closed form over brute force {number(row['ratio'])} ± "
            f"{number(row['ratio_error'], 1)}{_calibrated(row, results['audit_by_distance'])} "
            f"({row['draws']} drawn networks, {row['sequences']} "
            f"sequences); by brute force the variance of the last frame is "
            f"{number(growth(truth[row['model']]))} times that of the first."
        )
    frames = results["audit_by_distance"]
    audited = ["model", "distance", "closed", "calibrated", "true", "ratio", "calibrated_ratio"]
    is_calibrated = _has(frames, "calibrated")
    note = PICTURED if is_calibrated else ""
    if not is_calibrated:
        audited = [name for name in audited if "calibrated" not in name]
    pictures = [
        figure(
            f"{run}_{row['task']}.png",
            f"{label}, {row['task']}: nearest in time first"
            + (note if row.get("calibrated") is not None else ""),
        )
        for run, label in MODELS.items()
        for row in scores
        if row["model"] == label
    ]
    return Conclusion(
        introduction=(
            f"Cross entropy of the predicted mean in nats per frame. Test set: {scores[0]['set']}. "
            "A regenerated one follows the official protocol."
        ),
        findings=lines,
        sections=[
            nats_table(ours["prediction"], ours["reconstruction"]),
            *_beside_video(scores),
            "Standard errors are over the sequences. Spearman's is the rank correlation of "
            "predicted variance and squared error over the sequences.",
            _measures(scores, ("model", "task"), ("spearman", "parameters", "steps")),
            "The same by distance in time, in frames.",
            _measures(results["by_distance"], ("model", "task", "distance")),
            "Closed form and drawn networks, of the first sequences, by distance in time."
            + (f" {EXPLANATION}" if is_calibrated else ""),
            table(
                [name.replace("_", " ") for name in audited],
                [[row.get(name) for name in audited] for row in frames],
            ),
            figure("by_distance.png", "Variance and squared error by distance in time"),
            *pictures,
            figure("prediction.gif", f"What is there, prediction, uncertainty{note}"),
        ],
    )
