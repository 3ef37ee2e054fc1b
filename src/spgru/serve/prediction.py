"""Predictions of the packaged networks, as a worker computes them."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spgru.calibration import uncalibrated
from spgru.calibration.state import is_calibrated
from spgru.moments import Moments
from spgru.nn.contexts import frozen
from spgru.serve.limits import HALF, SIZE
from spgru.serve.networks import NETWORKS
from spgru.serve.scene import Scene, draw, pixels_of
from spgru.serve.sequence import read_sequence
from spgru.training import load_model

__all__ = ["VARIANCES", "Asked", "Clip", "Predicted", "Upload", "load", "predict"]

VARIANCES = ("calibrated", "plain")


@dataclass(frozen=True)
class Upload:
    """A .npy file, and which of its sequences."""

    data: bytes
    which: int


@dataclass(frozen=True)
class Asked:
    """A sequence, and what to compute of it."""

    source: Scene | Upload
    networks: tuple[str, ...]
    variance: str
    """one of `VARIANCES`, for networks in closed form"""
    draws: int
    """for the others"""


@dataclass(frozen=True)
class Predicted:
    """What one network says."""

    network: str
    pixels: Moments
    """(HALF, 64, 64)"""
    milliseconds: float
    """of the pass, or of all draws"""


@dataclass(frozen=True)
class Clip:
    """A sequence with its predictions."""

    seen: Tensor
    """(HALF, 64, 64)"""
    after: Tensor | None
    """likewise, where it is known"""
    count: int
    """sequences in the file; 1 for a described one"""
    images: tuple[bytes, ...]
    """28 x 28 bytes of every digit of a described sequence"""
    predictions: tuple[Predicted, ...]


def predict(asked: Asked) -> Clip:
    """The sequence, and what each network predicts."""
    source = asked.source
    after: Tensor | None
    images: tuple[bytes, ...] = ()
    if isinstance(source, Scene):
        seen, after = draw(source)
        count = 1
        images = tuple(pixels_of(mover).tobytes() for mover in source.movers)
    else:
        found = read_sequence(source.data, source.which)
        seen, after, count = found.seen, found.after, found.count
    predictions = tuple(_predict(name, seen, asked) for name in asked.networks)
    return Clip(seen, after, count, images, predictions)


def _predict(name: str, seen: Tensor, asked: Asked) -> Predicted:
    model, frames = load(name), seen.unsqueeze(1)
    options: dict[str, Any] = {}
    plain: Any = nullcontext()
    if NETWORKS[name].kind == "draws":
        # The same masks every time: what changes on the page is what the user changed.
        options = {"draws": asked.draws, "generator": torch.Generator().manual_seed(0)}
    elif asked.variance == "plain" and is_calibrated(model):
        plain = uncalibrated(model)
    with torch.no_grad(), plain:
        start = time.perf_counter()
        pixels: Moments = model.predict(frames, **options)
        seconds = time.perf_counter() - start
    return Predicted(name, Moments(pixels.mean[:, 0], pixels.var[:, 0]), 1e3 * seconds)


_prepared = ExitStack()
"""Weights stay prepared as long as the process lives."""


@cache
def load(name: str) -> Any:
    """A network, ready for its first prediction."""
    model = load_model(name).model
    if NETWORKS[name].kind == "closed-form":
        _prepared.enter_context(frozen(model))
    if not NETWORKS[name].slow:
        model.predict(torch.zeros(HALF, 1, SIZE, SIZE))  # the first pass prepares the weights
    return model
