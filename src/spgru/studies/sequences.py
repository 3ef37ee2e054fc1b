"""Test sequences of the controlled path: the familiar one, and those that deviate from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.data import MovingMNIST
from spgru.data.mnist import DIGIT
from spgru.studies.runs import StudyConfig
from spgru.training.evaluation import CONTROLLED_SETS, TEST_SEED

__all__ = [
    "AXES",
    "DEVIATIONS",
    "FAMILIAR",
    "Deviation",
    "Pairs",
    "controlled_pairs",
    "path",
]

AXES = {
    "angle": "angle in degrees",
    "speed": "share of 36 pixels per frame",
    "noise": "b of Unif(0, b)",
}
"""Labels for figures."""


class Deviation(NamedTuple):
    """One thing about the path changed."""

    kind: str
    """`"angle"`, `"speed"` or `"noise"`"""
    value: float

    @property
    def is_familiar(self) -> bool:
        return self.value == CONTROLLED_SETS[self.kind][0]

    @property
    def label(self) -> str:
        if self.kind == "speed":
            return f"speed {100 * self.value:g} %"
        return f"{self.kind} {self.value:g}{'°' if self.kind == 'angle' else ''}"


DEVIATIONS = [
    Deviation(kind, value) for kind, values in CONTROLLED_SETS.items() for value in values
]
"""The first of each kind is the path of training."""
FAMILIAR = DEVIATIONS[0]
"""The path of training, whichever kind it stands under."""


class Pairs(NamedTuple):
    """Sequences cut in two."""

    seen: Tensor
    """(10, B, 64, 64), noise included"""
    after: Tensor
    """(10, B, 64, 64), always clean: noise is on what the network sees, not on what comes"""
    visible: Tensor
    """(20,): share of the digits' brightness that is on the canvas"""


def _data(config: StudyConfig, count: int, **changed: Any) -> MovingMNIST:
    options: dict[str, Any] = {"split": "test", "seed": TEST_SEED, "directory": config.mnist}
    return MovingMNIST.controlled(count, device=config.torch_device, **changed, **options)


def controlled_pairs(config: StudyConfig, deviation: Deviation, count: int) -> Pairs:
    """The first `count` test sequences with that deviation; the digits are always the same."""
    data = _data(config, count, **{deviation.kind: deviation.value})
    clean = data if deviation.kind != "noise" else _data(config, count)
    digits = torch.from_numpy(clean.layout(0).digits[:, 0]).to(clean.device)
    whole = clean.images[digits].double().sum() / 255
    frames = clean.batch(0)
    visible = frames.double().sum((1, 2, 3)) / whole
    half = len(frames) // 2
    return Pairs(data.batch(0)[:half], frames[half:], visible.cpu())


def path(config: StudyConfig, deviation: Deviation) -> NDArray[np.float64]:
    """The middle of the digit in every frame, (20, 2), (y, x) in pixels."""
    corners = _data(config, 1, **{deviation.kind: deviation.value}).layout(0).corners
    return corners[:, 0, 0].astype(np.float64) + DIGIT / 2
