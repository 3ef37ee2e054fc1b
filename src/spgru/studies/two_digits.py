"""Two digits by the official protocol: cross entropy beside the published table.

The uncertainty of a frame is expected to grow with its distance in time, forwards in prediction
and backwards in reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.data import MovingMNIST
from spgru.functional import sigmoid
from spgru.metrics import cross_entropy_per_frame
from spgru.moments import Moments
from spgru.reporting.markdown import figure, number, table, yes_no
from spgru.reporting.pictures import Line, Panel, Tile, save_frames, save_panels
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.brute_force import brute_force
from spgru.studies.networks import Networks
from spgru.studies.prediction import parameters
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.statistics import growth, rank_correlation, rises
from spgru.studies.study import Conclusion, Study, Tables
from spgru.training.evaluation import evaluation_sets, unseen

__all__ = ["MODELS", "PREDICTORS", "STUDY", "digits_of", "evaluation_set", "score_tasks"]

PREDICTORS = {"two_digits": "SP-GRU", "two_digits_conv": "conv SP-GRU"}
MODELS = {**PREDICTORS, "two_digits_autoencoder": "SP-GRU autoencoder"}
PUBLISHED = {
    "FC-LSTM (Shi et al.)": 483.2,
    "ConvLSTM (Shi et al., on a test set of their own)": 367.1,
    "Composite LSTM (Srivastava et al.)": 341.2,
    "Dynamic filters (De Brabandere et al.)": 285.2,
    "SP-GRU (the paper)": 277.1,
    "Contextual RNN-GAN (Ghosh et al.)": 241.8,
    "Video ladder network (Cricri et al.)": 187.7,
    "Differentiable memory (Patraucean et al.)": 179.8,
}
"""Nats per predicted frame, as published."""
LIMITS = {"constant mean of every pixel": 674.0, "floor of any open-loop predictor": 114.6}
"""Nats per frame of the best constant frame, and those that no predictor can go below."""
PAPER = PUBLISHED["SP-GRU (the paper)"]
_AT_A_TIME = {"cpu": 50, "cuda": 200}
"""Sequences in a batch; 200 of 20 frames are 66 MB."""


def _members(config: StudyConfig) -> list[Member]:
    return members(config, (), single=MODELS)


def digits_of(config: StudyConfig, digits: int, count: int) -> Iterator[Tensor]:
    """`count` test sequences by the official protocol, in batches (20, B, 64, 64)."""
    size, where = _AT_A_TIME[config.torch_device.type], config.torch_device
    return unseen(MovingMNIST, count, size, where, config.mnist, digits=digits)


def evaluation_set(config: StudyConfig) -> tuple[str, Iterator[Tensor]]:
    """Name and batches (20, B, 64, 64) of the sequences that networks are scored on.

    The official file where it is given; else the regenerated test set, or of a user's own digits
    sequences made the same way.
    """
    device, official = config.torch_device, config.official
    count, size = config.scale.test_sequences, _AT_A_TIME[device.type]
    own = config.mnist if official is None else None
    return next(evaluation_sets("two-digits", count, size, device, official, own))


def _answers(model: Any, seen: Tensor, after: Tensor) -> dict[str, tuple[Moments, Tensor]]:
    """Pixels and target of each task that a model solves, nearest in time first."""
    future, reconstruction = model(seen)
    found = {}
    if future is not None:
        found["prediction"] = (sigmoid(future, model.config.rule), after)
    if reconstruction is not None:
        found["reconstruction"] = (sigmoid(reconstruction, model.config.rule), seen.flip(0))
    return found


@torch.no_grad()
def score_tasks(model: Any, batches: Iterator[Tensor]) -> tuple[list[Row], list[Row]]:
    """Scores of each task that a model solves, and variance and error by distance in time.

    Args:
        batches: (2 T, B, height, width), the first half the input
    """
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for frames in batches:
        for task, (pixels, target) in _answers(model, *frames.chunk(2)).items():
            sums = {
                "nats": cross_entropy_per_frame(pixels, target).double(),
                "error": (pixels.mean - target).double().square().sum((-2, -1)),
                "variance": pixels.var.double().sum((-2, -1)),
            }
            for name, values in sums.items():
                parts.setdefault(task, {}).setdefault(name, []).append(values.cpu())
    scores, by_distance = [], []
    for task, lists in parts.items():
        found = {name: torch.cat(values, 1) for name, values in lists.items()}  # (T, N) each
        of_sequence = {name: values.mean(0) for name, values in found.items()}
        row: Row = {"task": task}
        row |= {name: values.mean().item() for name, values in of_sequence.items()}
        row["spearman"] = rank_correlation(of_sequence["variance"], of_sequence["error"])
        row["sequences"] = len(of_sequence["nats"])
        scores.append(row)
        for distance in range(len(found["nats"])):
            means = {name: values[distance].mean().item() for name, values in found.items()}
            by_distance.append({"task": task, "distance": distance + 1, **means})
    return scores, by_distance


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    results: Tables = {"scores": [], "by_distance": [], "audit": [], "audit_by_distance": []}
    clips = {}
    example = next(digits_of(config, 2, 1))
    audited = next(digits_of(config, 2, config.scale.audit_sequences)).chunk(2)[0]
    for member in _members(config):
        model, label = networks.load(member), MODELS[member.run]
        name, batches = evaluation_set(config)
        scores, by_distance = score_tasks(model, batches)
        size = {"parameters": parameters(model), "steps": networks.steps(member)}
        results["scores"] += [{"model": label, "set": name, **size, **row} for row in scores]
        results["by_distance"] += [{"model": label, **row} for row in by_distance]
        audit, frames = _audit(model, audited, config.scale.audit_draws)
        results["audit"].append({"model": label, **audit})
        results["audit_by_distance"] += [{"model": label, **row} for row in frames]
        with torch.no_grad():
            answers = _answers(model, *example.chunk(2))
        for task, (pixels, target) in answers.items():
            _save_task(folder / f"{member.run}_{task}.png", pixels[:, 0], target[:, 0], task)
        # A predictor shows the future, an autoencoder its input in reverse.
        pixels, target = next(iter(answers.values()))
        clips[label] = Clip(example[: len(target), 0], target[:, 0], pixels[:, 0])
    save_animation(folder / "prediction.gif", clips)
    return results


def _audit(model: Any, seen: Tensor, draws: int) -> tuple[Row, list[Row]]:
    """The variance beside that of drawn networks: in all, and by distance in time."""
    found = brute_force(model, seen.unsqueeze(1), draws)
    whole: Row = {
        "closed": found.closed.item(),
        "true": found.true.item(),
        "ratio": found.ratio.item(),
        "ratio_error": found.ratio_error.item(),
        "sequences": seen.shape[1],
        "draws": draws,
    }
    pairs = zip(
        found.closed_by_frame[:, 0].tolist(), found.true_by_frame[:, 0].tolist(), strict=True
    )
    return whole, [
        {"distance": t + 1, "closed": closed, "true": true, "ratio": closed / true}
        for t, (closed, true) in enumerate(pairs)
    ]


def _save_task(file: Path, pixels: Moments, target: Tensor, task: str) -> None:
    """(T, height, width) both"""
    sign, first = ("+", 1) if task == "prediction" else ("-", 0)
    rows = {
        "truth": [Tile("frame", frame) for frame in target],
        "mean": [Tile("frame", frame) for frame in pixels.mean],
        "uncertainty": [Tile("uncertainty", frame) for frame in pixels.std],
    }
    save_frames(file, [f"{sign}{t + first}" for t in range(len(target))], rows)


def _curves(rows: list[Row], column: str) -> dict[str, list[float]]:
    """By model, or "model, task", along the distance in time."""
    curves: dict[str, list[float]] = {}
    for row in rows:
        name = f"{row['model']}, {row['task']}" if "task" in row else str(row["model"])
        curves.setdefault(name, []).append(row[column])
    return curves


def _draw(results: Tables, folder: Path) -> None:
    panels = []
    for rows, column, title in (
        ("by_distance", "variance", "variance of a frame"),
        ("audit_by_distance", "true", "the same by drawn networks"),
        ("by_distance", "error", "squared error of a frame"),
    ):
        lines = {
            name: Line(range(1, len(values) + 1), values, values, values)
            for name, values in _curves(results[rows], column).items()
        }
        panels.append(Panel(title, "distance in time (frames)", column, lines))
    save_panels(folder / "by_distance.png", [panels])


def _conclude(results: Tables) -> Conclusion:
    scores = results["scores"]
    entries: list[list[object]] = [[name, "published", nats] for name, nats in PUBLISHED.items()]
    entries += [[name, "limit", nats] for name, nats in LIMITS.items()]
    lines = []
    for row in scores:
        who = f"{row['model']} (here, {row['task']})"
        if row["task"] == "prediction":
            entries.append([f"**{who}**", "here", row["nats"]])
            lines.append(
                f"{who}: {number(row['nats'], 4)} nats per frame on {row['sequences']} sequences; "
                f"at or below the paper's {PAPER}: {yes_no(row['nats'] <= PAPER)}."
            )
        else:
            lines.append(f"{who}: {number(row['nats'], 4)} nats per frame.")
    for name, values in _curves(results["by_distance"], "variance").items():
        lines.append(
            f"{name}: variance grows with every frame of distance in time: "
            f"{yes_no(rises(values))}; last over first {number(growth(values))}."
        )
    truth = _curves(results["audit_by_distance"], "true")
    for row in results["audit"]:
        lines.append(
            f"{row['model']}: closed form over brute force {number(row['ratio'])} ± "
            f"{number(row['ratio_error'], 1)} ({row['draws']} drawn networks, {row['sequences']} "
            f"sequences); by brute force the variance of the last frame is "
            f"{number(growth(truth[row['model']]))} times that of the first."
        )
    cells = [[name, what, number(nats, 4)] for name, what, nats in sorted(entries, key=_nats)]
    columns = ("model", "task", "nats", "error", "variance", "spearman", "parameters", "steps")
    audited = ("model", "distance", "closed", "true", "ratio")
    pictures = [
        figure(f"{run}_{row['task']}.png", f"{label}, {row['task']}: nearest in time first")
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
            table(["model", "", "nats per frame"], cells),
            "Spearman's is the rank correlation of predicted variance and squared error over the "
            "sequences.",
            table(columns, [[row[name] for name in columns] for row in scores]),
            "Closed form and drawn networks, of the first sequences, by distance in time.",
            table(
                audited, [[row[name] for name in audited] for row in results["audit_by_distance"]]
            ),
            figure("by_distance.png", "Variance and squared error by distance in time"),
            *pictures,
            figure("prediction.gif", "What is there, prediction, uncertainty"),
        ],
    )


def _nats(entry: list[object]) -> Any:
    return entry[2]


STUDY = Study(
    name="two-digits",
    title="Two digits: cross entropy beside the published table",
    members=_members,
    measure=_measure,
    draw=_draw,
    conclude=_conclude,
    divisible=True,
)
