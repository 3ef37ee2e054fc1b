"""Predictions of any network, and how far they are from the truth."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.metrics import cross_entropy_per_frame
from spgru.models import VideoModel
from spgru.moments import Moments, cat

__all__ = ["Measured", "compare", "parameters", "predict"]

_AT_A_TIME = {"cpu": 5, "cuda": 20}
"""Sequences in a batch. On a CPU 5 fit its caches and take half the time; 20 with 50 draws are
160 MB of input."""


@torch.no_grad()
def predict(model: Any, seen: Tensor, draws: int) -> Moments:
    """Pixels of the frames after `seen`, (T, B, height, width) both.

    Args:
        draws: of a model that samples; the same ones at every call
    """
    options: dict[str, Any] = {}
    if not isinstance(model, VideoModel):
        generator = torch.Generator(seen.device).manual_seed(0)
        options = {"draws": draws, "generator": generator}
    parts: list[Moments] = [
        model.predict(part, **options)
        for part in torch.split(seen, _AT_A_TIME[seen.device.type], 1)
    ]
    return cat(parts, 1)


class Measured(NamedTuple):
    """Of every sequence, mean over its frames, (B,) in float64 on the CPU."""

    variance: Tensor
    """predicted, summed over the pixels of a frame"""
    error: Tensor
    """true squared error of the mean, summed likewise"""
    nats: Tensor
    """cross entropy of the mean per frame"""
    ink: Tensor
    """predicted brightness, summed likewise"""


def compare(prediction: Moments, target: Tensor) -> Measured:
    """(T, B, height, width) both."""
    error = (prediction.mean.double() - target).square()
    nats = cross_entropy_per_frame(prediction, target).double()
    ink, variance = prediction.mean.double(), prediction.var.double()
    sums = [part.sum((-2, -1)) for part in (variance, error, ink)]
    summed = [part.mean(0).cpu() for part in (*sums[:2], nats, sums[2])]
    return Measured(*summed)


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
