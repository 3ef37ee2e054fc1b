"""Out of domain: one digit, or three, to a network that has only ever seen two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Tile, new_figure, save_frames
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.calibrated import EXPLANATION, PICTURED
from spgru.studies.networks import Networks
from spgru.studies.prediction import Measured, compare
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.statistics import auroc, ratio_error
from spgru.studies.study import Conclusion, Study, Tables
from spgru.studies.two_digits import PREDICTORS, digits_of

__all__ = ["STUDY", "count_by_bin", "summarise"]

FAMILIAR = 2
NUMBERS = {1: "one digit", 2: "two digits", 3: "three digits"}
EXPECTED_RATIO = 1.5
"""Three digits should have at least this many times the variance of two: 3 / 2, as lit pixels."""
_BINS = 30
"""Of the histogram: narrow enough to show whether the distributions overlap."""


def _members(config: StudyConfig) -> list[Member]:
    return members(config, (), single=PREDICTORS)


@torch.no_grad()
def _measured(model: Any, config: StudyConfig, digits: int) -> Measured:
    parts = []
    for frames in digits_of(config, digits, config.scale.test_sequences):
        seen, after = frames.chunk(2)
        parts.append(compare(model.predict(seen), after))
    return Measured(*[torch.cat(tensors) for tensors in zip(*parts, strict=True)])


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    results: Tables = {"domains": [], "histogram": []}
    clips = {}
    for member in _members(config):
        model, label = networks.load(member), PREDICTORS[member.run]
        calibrated: Any = networks.calibrated(member)
        found, after = (
            {digits: _measured(one, config, digits) for digits in NUMBERS}
            for one in (model, calibrated)
        )
        results["domains"] += [{"model": label, **row} for row in summarise(found, after)]
        results["histogram"] += [{"model": label, **row} for row in _histogram(found)]
        for digits, name in NUMBERS.items():
            seen, future = next(digits_of(config, digits, 1)).chunk(2)
            clip = Clip(seen[:, 0], future[:, 0], calibrated.predict(seen)[:, 0])
            clips[f"{label}\n{name}"] = clip
    _save_maps(folder / "maps.png", clips)
    save_animation(folder / "prediction.gif", clips)
    return results


def summarise(found: dict[int, Measured], after: dict[int, Measured]) -> list[Row]:
    """Every number of digits beside the familiar one.

    Args:
        found: in the plain closed form
        after: calibrated
    """
    per_ink = {digits: (m.variance.sum() / m.ink.sum()).item() for digits, m in found.items()}
    return [
        {
            "digits": digits,
            "variance": measured.variance.mean().item(),
            "ratio": _ratio(found, digits),
            "ratio_error": _ratio_error(found, digits),
            "variance_per_ink": per_ink[digits],
            "ratio_per_ink": per_ink[digits] / per_ink[FAMILIAR],
            "error": measured.error.mean().item(),
            "nats": measured.nats.mean().item(),
            "auroc": _auroc(found, digits),
            "calibrated": after[digits].variance.mean().item(),
            "calibrated_ratio": _ratio(after, digits),
            "calibrated_ratio_error": _ratio_error(after, digits),
            "calibrated_auroc": _auroc(after, digits),
            "sequences": len(measured.variance),
        }
        for digits, measured in found.items()
    ]


def _ratio(found: dict[int, Measured], digits: int) -> float:
    """Variance over that of the familiar number."""
    return (found[digits].variance.mean() / found[FAMILIAR].variance.mean()).item()


def _ratio_error(found: dict[int, Measured], digits: int) -> float | None:
    if digits == FAMILIAR:
        return None
    return ratio_error(found[digits].variance, found[FAMILIAR].variance)


def _auroc(found: dict[int, Measured], digits: int) -> float | None:
    if digits == FAMILIAR:
        return None
    return auroc(found[FAMILIAR].variance, found[digits].variance)


def _histogram(found: dict[int, Measured]) -> list[Row]:
    """Counts of sequences by variance, in bins that all numbers of digits share."""
    every = torch.cat([measured.variance for measured in found.values()])
    low, high = every.min().item(), every.max().item()
    edges = torch.linspace(low, high if high > low else low + 1, _BINS + 1, dtype=torch.float64)
    return [
        {
            "digits": digits,
            "from": edges[k].item(),
            "to": edges[k + 1].item(),
            "sequences": int(count),
        }
        for digits, measured in found.items()
        for k, count in enumerate(count_by_bin(measured.variance, edges))
    ]


def count_by_bin(values: Tensor, edges: Tensor) -> list[int]:
    """Values within each bin; the last bin holds its upper edge."""
    bins = (torch.searchsorted(edges, values, right=True) - 1).clamp(0, len(edges) - 2)
    return torch.bincount(bins, minlength=len(edges) - 1).tolist()


def _save_maps(file: Path, clips: dict[str, Clip]) -> None:
    frames = (0, 4, 9)
    rows = {}
    for name, clip in clips.items():
        mean, std = clip.prediction.mean, clip.prediction.std
        cells = [Tile("frame", clip.seen[-1])]
        for source, kind in ((clip.after, "frame"), (mean, "frame"), (std, "uncertainty")):
            cells += [Tile(kind, source[t]) for t in frames]
        rows[name] = cells
    names = [f"{part} {11 + t}" for part in ("truth", "mean", "uncertainty") for t in frames]
    save_frames(file, ["seen last", *names], rows)


def _draw(results: Tables, folder: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in results["histogram"]))
    drawing = new_figure(5.5 * len(models), 3.2)
    for model, axes in zip(models, drawing.subplots(1, len(models), squeeze=False)[0], strict=True):
        for digits, name in NUMBERS.items():
            rows = [
                row
                for row in results["histogram"]
                if row["model"] == model and row["digits"] == digits
            ]
            edges = [row["from"] for row in rows] + [rows[-1]["to"]]
            axes.stairs([row["sequences"] for row in rows], edges, label=name, fill=True, alpha=0.5)
        axes.set(title=model, xlabel="variance of a frame", ylabel="sequences")
        axes.legend(fontsize="small")
    drawing.savefig(folder / "histogram.png", dpi=110)


def _conclude(results: Tables) -> Conclusion:
    rows = results["domains"]
    # Results of earlier versions have no such column.
    is_calibrated = all("calibrated" in row for row in rows)
    note = PICTURED if is_calibrated else ""
    lines = []
    for row in rows:
        if row["digits"] == FAMILIAR:
            continue
        who = f"{row['model']}, {NUMBERS[row['digits']]}"
        # Results of earlier versions have no error.
        error = row.get("ratio_error")
        of_sequences = "" if error is None else f" ± {number(error, 2)} (one standard error)"
        lines.append(
            f"{who}: {number(row['ratio'])}{of_sequences} times the variance of two digits "
            f"({number(row['ratio_per_ink'])} times per predicted brightness); told from two "
            f"digits by variance alone with AUROC {number(row['auroc'])}."
        )
        if is_calibrated:
            lines.append(
                f"{who}, calibrated: {number(row['calibrated_ratio'])} ± "
                f"{number(row['calibrated_ratio_error'], 2)} times the variance of two digits; "
                f"AUROC {number(row['calibrated_auroc'])}."
            )
        if row["digits"] > FAMILIAR:
            lines.append(
                f"{who}: at least {EXPECTED_RATIO} times the variance: "
                f"{yes_no(row['ratio'] >= EXPECTED_RATIO)}; still higher per predicted "
                f"brightness: {yes_no(row['ratio_per_ink'] > 1)}."
            )
    columns = {
        "model": "model",
        "digits": "digits",
        "variance": "variance",
        "ratio": "over two digits",
        "variance_per_ink": "variance per brightness",
        "ratio_per_ink": "over two digits",
        "auroc": "AUROC",
        "calibrated": "calibrated variance",
        "calibrated_ratio": "over two digits",
        "calibrated_auroc": "AUROC",
        "error": "squared error",
        "nats": "nats per frame",
    }
    if not is_calibrated:
        columns = {name: title for name, title in columns.items() if "calibrated" not in name}
    return Conclusion(
        introduction=(
            "A network trained on two digits is shown one, two and three. More digits mean more "
            "lit pixels, and with them more variance of any kind; variance per predicted "
            "brightness takes that out. The paper says that three digits are recognised by "
            "extremely high variance."
        ),
        findings=lines,
        sections=[
            table(list(columns.values()), [[row[name] for name in columns] for row in rows]),
            *([EXPLANATION] if is_calibrated else []),
            figure("histogram.png", "Test sequences by predicted variance"),
            figure("maps.png", f"One sequence of each{note}"),
            figure("prediction.gif", f"What is there, prediction, uncertainty{note}"),
        ],
    )


STUDY = Study(
    name="out-of-domain",
    title="Out of domain: another number of digits",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
    labels=PREDICTORS,
    calibrates=True,
)
