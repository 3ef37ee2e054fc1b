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
from spgru.moments import Moments
from spgru.reporting.pictures import Tile, save_frames
from spgru.reporting.tables import Row
from spgru.studies.animation import Clip, save_animation
from spgru.studies.brute_force import brute_force
from spgru.studies.networks import Networks
from spgru.studies.prediction import parameters
from spgru.studies.runs import Member, StudyConfig, members
from spgru.studies.statistics import rank_correlation
from spgru.studies.study import Study, Tables
from spgru.studies.two_digits_report import MODELS, PREDICTORS, conclude, draw
from spgru.training.evaluation import evaluation_sets, measure_frames, standard_error, unseen

__all__ = ["MODELS", "PREDICTORS", "STUDY", "digits_of", "evaluation_set", "score_tasks"]

_COLUMNS = {"cross_entropy": "nats", "squared_error": "error"}
"""Names of measures in the tables, where they differ from those of `spgru.training.Score`."""
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
def score_tasks(
    model: Any, batches: Iterator[Tensor], calibrated: Any = None
) -> tuple[list[Row], list[Row]]:
    """Scores of each task that a model solves, and the same by distance in time.

    Beside each measure stands its standard error over the sequences.

    Args:
        model: in the plain closed form
        batches: (2 T, B, height, width), the first half the input
        calibrated: the same model with its calibration, for one measure more of the task that
            calibration is about, the first; None if there is none
    """
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for frames in batches:
        seen, after = frames.chunk(2)
        answers = _answers(model, seen, after)
        for task, (pixels, target) in answers.items():
            found = measure_frames(pixels, target)
            if calibrated is not None and task == next(iter(answers)):
                found["calibrated"] = calibrated.predict(seen).var.double().sum((-2, -1))
            for name, values in found.items():
                column = _COLUMNS.get(name, name)
                parts.setdefault(task, {}).setdefault(column, []).append(values.cpu())
    scores, by_distance = [], []
    for task, lists in parts.items():
        found = {name: torch.cat(values, 1) for name, values in lists.items()}  # (T, N) each
        of_sequence = {name: values.mean(0) for name, values in found.items()}
        row: Row = {"task": task}
        for name, values in of_sequence.items():
            row[name] = values.mean().item()
            row[f"{name}_standard_error"] = standard_error(values).item()
        row["spearman"] = rank_correlation(of_sequence["variance"], of_sequence["error"])
        row["sequences"] = len(of_sequence["nats"])
        scores.append(row)
        for distance in range(len(found["nats"])):
            entry: Row = {"task": task, "distance": distance + 1}
            for name, values in found.items():
                entry[name] = values[distance].mean().item()
                entry[f"{name}_standard_error"] = standard_error(values[distance]).item()
            by_distance.append(entry)
    return scores, by_distance


def _measure(config: StudyConfig, networks: Networks, folder: Path) -> Tables:
    results: Tables = {"scores": [], "by_distance": [], "audit": [], "audit_by_distance": []}
    clips = {}
    example = next(digits_of(config, 2, 1))
    audited = next(digits_of(config, 2, config.scale.audit_sequences)).chunk(2)[0]
    for member in _members(config):
        model, label = networks.load(member), MODELS[member.run]
        name, batches = evaluation_set(config)
        calibrated = networks.calibrated(member)
        scores, by_distance = score_tasks(model, batches, calibrated)
        size = {"parameters": parameters(model), "steps": networks.steps(member)}
        results["scores"] += [{"model": label, "set": name, **size, **row} for row in scores]
        results["by_distance"] += [{"model": label, **row} for row in by_distance]
        audit, frames = _audit(calibrated, audited, config.scale.audit_draws)
        results["audit"].append({"model": label, **audit})
        results["audit_by_distance"] += [{"model": label, **row} for row in frames]
        answers = _shown(model, calibrated, *example.chunk(2))
        for task, (pixels, target) in answers.items():
            _save_task(folder / f"{member.run}_{task}.png", pixels[:, 0], target[:, 0], task)
        # A predictor shows the future, an autoencoder its input in reverse.
        pixels, target = next(iter(answers.values()))
        clips[label] = Clip(example[: len(target), 0], target[:, 0], pixels[:, 0])
    save_animation(folder / "prediction.gif", clips)
    return results


@torch.no_grad()
def _shown(
    model: Any, calibrated: Any, seen: Tensor, after: Tensor
) -> dict[str, tuple[Moments, Tensor]]:
    """For pictures: the answers, calibrated where calibration is about them."""
    answers = _answers(model, seen, after)
    first, (_, target) = next(iter(answers.items()))
    return {**answers, first: (calibrated.predict(seen), target)}


def _audit(model: Any, seen: Tensor, draws: int) -> tuple[Row, list[Row]]:
    """The variance, before and after calibration, beside that of drawn networks.

    In all, and by distance in time.
    """
    found = brute_force(model, seen.unsqueeze(1), draws)
    whole: Row = {
        "closed": found.closed.item(),
        "calibrated": found.calibrated.item(),
        "true": found.true.item(),
        "ratio": found.ratio.item(),
        "ratio_error": found.ratio_error.item(),
        "calibrated_ratio": found.calibrated_ratio.item(),
        "calibrated_ratio_error": found.calibrated_ratio_error.item(),
        "sequences": seen.shape[1],
        "draws": draws,
    }
    by_frame = (found.closed_by_frame, found.calibrated_by_frame, found.true_by_frame)
    columns = [values[:, 0].tolist() for values in by_frame]
    return whole, [
        {
            "distance": t + 1,
            "closed": closed,
            "calibrated": calibrated,
            "true": true,
            "ratio": closed / true,
            "calibrated_ratio": calibrated / true,
        }
        for t, (closed, calibrated, true) in enumerate(zip(*columns, strict=True))
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


STUDY = Study(
    name="two-digits",
    title="Two digits: cross entropy beside the published table",
    members=_members,
    measure=_measure,
    draw=draw,
    conclude=conclude,
    labels=MODELS,
    calibrates=True,
)
