"""Predictions of the familiar path without a network: every network should do better."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgru.data import MovingMNIST
from spgru.moments import Moments, certain
from spgru.reporting.tables import Row
from spgru.studies.prediction import compare
from spgru.studies.runs import StudyConfig
from spgru.studies.sequences import Pairs
from spgru.studies.study import Tables

__all__ = ["least_error", "measure_guesses", "simple_guesses"]

_TRAINING_SEQUENCES = 500
"""Whose mean is a guess: 500 leave a standard error of 1 / sqrt(500), 4 %, of the
standard deviation between digits."""


def simple_guesses(seen: Tensor, training: Tensor) -> dict[str, Moments]:
    """Guesses of the frames that follow, each (T, B, height, width).

    Args:
        seen: (S, B, height, width)
        training: (T, N, height, width), frames to predict of training sequences
    """
    shape = (len(training), *seen.shape[1:])
    return {
        "mean of the training digits at the right place": certain(
            training.mean(1, keepdim=True).expand(shape)
        ),
        "last seen frame again": certain(seen[-1:].expand(shape)),
    }


def measure_guesses(config: StudyConfig, familiar: Pairs) -> list[Row]:
    """Error of each guess on test sequences of the familiar path."""
    options: dict[str, Any] = {"device": config.torch_device, "directory": config.mnist}
    frames = MovingMNIST.controlled(_TRAINING_SEQUENCES, **options).batch(0)
    guesses = simple_guesses(familiar.seen, frames[len(familiar.seen) :])
    rows = []
    for name, guess in guesses.items():
        found = compare(guess, familiar.after)
        means = {"error": found.error.mean().item(), "nats": found.nats.mean().item()}
        rows.append({"guess": name, **means})
    return rows


def least_error(results: Tables) -> float:
    """Squared error of the best guess: a network above it has not learned to predict."""
    return min(float(row["error"]) for row in results["guesses"])
