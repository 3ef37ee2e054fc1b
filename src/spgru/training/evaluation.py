"""How well a model predicts: cross entropy, errors, similarity, variance, with standard errors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from spgru.calibration import is_calibrated, uncalibrated
from spgru.data import MovingMNIST, MovingMNISTTest
from spgru.data.render import unit_interval
from spgru.metrics import cross_entropy_per_frame, similarity_per_frame, spearman
from spgru.models import Autoencoder
from spgru.moments import Moments
from spgru.training.config import DataConfig

__all__ = [
    "CONTROLLED_SETS",
    "SEQUENCES",
    "TEST_SEED",
    "Score",
    "evaluation_sets",
    "make_data",
    "measure_frames",
    "score",
    "seeded",
    "standard_error",
    "unseen",
]

CONTROLLED_SETS: dict[str, tuple[float, ...]] = {
    "angle": (20.0, 25.0, 30.0, 35.0),
    "speed": (0.05, 0.055, 0.06, 0.065),
    "noise": (0.0, 0.2, 0.4, 0.6),
}
"""The controlled study: values of each property of the path; the first is that of training."""

SEQUENCES = {"two-digits": 10_000, "controlled": 100}
"""How many there are in each test set of a kind, unless asked for fewer."""

TEST_SEED = 2020
"""Fixed, so that every model is scored on the same sequences."""


def make_data(config: DataConfig, batch_size: int, **options: Any) -> MovingMNIST:
    """The endless stream that `config` describes.

    Args:
        options: `seed`, `split`, `device`, `rank`, `world_size` of `spgru.data.MovingMNIST`
    """
    given = {"angle": config.angle, "speed": config.speed}
    options |= {name: value for name, value in given.items() if value is not None}
    options |= {"noise": config.noise, "digits": config.digits, "directory": config.directory}
    make = MovingMNIST.controlled if config.path == "controlled" else MovingMNIST
    return make(batch_size, **options)


@dataclass(frozen=True)
class Score:
    """Means over sequences and frames."""

    MEASURES: ClassVar[tuple[str, ...]] = (
        "cross_entropy", "squared_error", "absolute_error", "similarity", "plain_similarity",
        "variance", "closed_variance",
    )  # fmt: skip
    """those that every frame of every sequence has"""

    cross_entropy: float
    """of the mean, in nats per frame"""
    squared_error: float
    """of the mean, summed over the pixels of a frame"""
    absolute_error: float
    """likewise"""
    similarity: float
    """structural, of the mean, as in published tables: see `spgru.metrics.similarity_per_frame`"""
    plain_similarity: float
    """with the range that frames have, 1"""
    variance: float
    """predicted, summed over the pixels of a frame; calibrated, if the model is"""
    closed_variance: float
    """of the plain closed form: the same, if the model is not calibrated"""
    correlation: float
    """Spearman's, of a sequence's variance with its squared error; NaN if one is constant"""
    sequences: int
    standard_errors: dict[str, float] = field(default_factory=dict)
    """of each measure, over the sequences; NaN for one sequence"""
    by_frame: dict[str, list[float]] = field(default_factory=dict)
    """each measure of each frame, nearest in time first"""
    by_frame_errors: dict[str, list[float]] = field(default_factory=dict)
    """their standard errors"""

    def single_numbers(self) -> dict[str, float]:
        """What is no list and no mapping, for a log."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, dict)}


def standard_error(values: Tensor) -> Tensor:
    """Of the mean over the last dimension, whose entries are independent. (*, N) -> (*)"""
    count = values.shape[-1]
    if count < 2:
        return torch.full(values.shape[:-1], math.nan, dtype=torch.float64)
    return values.double().std(-1) / math.sqrt(count)


def measure_frames(pixels: Moments, target: Tensor) -> dict[str, Tensor]:
    """Every measure of `Score.MEASURES` but the last, (T, B) in float64 each.

    Args:
        pixels: (T, B, height, width)
        target: (T, B, height, width)
    """
    error = (pixels.mean - target).double()
    return {
        "cross_entropy": cross_entropy_per_frame(pixels, target).double(),
        "squared_error": error.square().sum((-2, -1)),
        "absolute_error": error.abs().sum((-2, -1)),
        "similarity": similarity_per_frame(pixels, target, data_range=2.0),
        "plain_similarity": similarity_per_frame(pixels, target, data_range=1.0),
        "variance": pixels.var.double().sum((-2, -1)),
    }


@torch.no_grad()
def score(model: Any, batches: Iterable[Tensor]) -> Score:
    """Score a model on sequences (2 T, B, height, width), the first half its input.

    An autoencoder is scored on the first half in reverse, everything else on the second.
    """
    parts: list[dict[str, Tensor]] = []
    options: dict[str, Any] = {}
    for frames in batches:
        seen, target = frames.chunk(2)
        options = options or seeded(model, frames.device)
        if isinstance(model, Autoencoder):
            target = seen.flip(0)
        found = measure_frames(model.predict(seen, **options), target)
        found["closed_variance"] = found["variance"]
        if is_calibrated(model):
            with uncalibrated(model):
                found["closed_variance"] = model.predict(seen).var.double().sum((-2, -1))
        parts.append({name: values.cpu() for name, values in found.items()})
    # (T, N) each
    measured = {name: torch.cat([part[name] for part in parts], 1) for name in Score.MEASURES}
    of_sequence = {name: values.mean(0) for name, values in measured.items()}
    count = len(of_sequence["variance"])
    correlation = (
        spearman(of_sequence["variance"], of_sequence["squared_error"]).item()
        if count > 1
        else math.nan
    )
    return Score(
        **{name: values.mean().item() for name, values in of_sequence.items()},
        correlation=correlation,
        sequences=count,
        standard_errors={name: standard_error(v).item() for name, v in of_sequence.items()},
        by_frame={name: values.mean(1).tolist() for name, values in measured.items()},
        by_frame_errors={name: standard_error(v).tolist() for name, v in measured.items()},
    )


def seeded(model: Any, device: torch.device | str) -> dict[str, Any]:
    """What `predict` takes besides, so that a network that samples gives the same every time."""
    if "generator" not in inspect.signature(model.predict).parameters:
        return {}
    return {"generator": torch.Generator(device).manual_seed(0)}


def evaluation_sets(
    kind: str,
    sequences: int | None,
    batch_size: int,
    device: torch.device,
    official: str | Path | None = None,
    directory: str | Path | None = None,
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """Names and batches (20, B, 64, 64) of test sequences that every model is asked about.

    Args:
        kind: `"two-digits"`, the test set of the official protocol, or `"controlled"`, unseen
            digits on the path of the controlled study with one thing changed, see `CONTROLLED_SETS`
        sequences: of each; None for those of `SEQUENCES`
        official: path of the official file, in place of the regenerated set
        directory: folder with your own MNIST files, of which the sequences are then made
    """
    if kind == "two-digits" and directory is not None:
        if official is not None:
            raise ValueError(
                "the official file has digits of its own; leave out yours, or the file"
            )
        yield (
            "two digits, of your own",
            unseen(
                MovingMNIST, sequences or SEQUENCES[kind], batch_size, device, directory, digits=2
            ),
        )
        return
    if kind == "two-digits":
        test = MovingMNISTTest(official)
        yield (
            f"two digits, {test.source}",
            _two_digits(test, sequences or len(test), batch_size, device),
        )
        return
    if official is not None:
        raise ValueError("the official file is of two digits; leave it out for controlled paths")
    for changed, values in CONTROLLED_SETS.items():
        for value in values:
            yield (
                f"{changed} {value:g}",
                unseen(
                    MovingMNIST.controlled,
                    sequences or SEQUENCES[kind],
                    batch_size,
                    device,
                    directory,
                    **{changed: value},
                ),
            )


def _two_digits(
    test: MovingMNISTTest, sequences: int, batch_size: int, device: torch.device
) -> Iterator[Tensor]:
    if sequences > len(test):
        raise ValueError(f"sequences is {sequences}, but the test set has {len(test)}")
    for start in range(0, sequences, batch_size):
        frames = test.sequences(start, min(start + batch_size, sequences), device)
        yield unit_interval(frames, torch.float32)


def unseen(
    make: Callable[..., MovingMNIST],
    sequences: int,
    batch_size: int,
    device: torch.device,
    directory: str | Path | None,
    **options: Any,
) -> Iterator[Tensor]:
    """Batches (20, B, 64, 64) of digits that training never shows.

    Args:
        make: `MovingMNIST` or its `controlled`, called with `options`
        directory: folder with your own MNIST files; None for the packaged ones
        options: with `noise` it is on the first half, which a model sees, and not on what follows
    """
    size = min(batch_size, sequences)
    same = {"split": "test", "seed": TEST_SEED, "device": device, "directory": directory}
    seen = make(size, **same, **options)
    clean = make(size, **same, **{**options, "noise": 0.0}) if options.get("noise") else None
    for start in range(0, sequences, size):
        frames = next(seen)
        if clean is not None:
            half = len(frames) // 2
            frames = torch.cat([frames[:half], next(clean)[half:]])
        yield frames[:, : sequences - start]
