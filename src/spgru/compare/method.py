"""A method: from a task to something that turns histories into quantiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from spgru.compare.tasks import Task
from spgru.forecast.scaling import Array

__all__ = ["Budget", "Fit", "Method", "Predict"]

Predict = Callable[[Sequence[Array]], Array]
"""From W histories to quantiles at `LEVELS`, (L, W, H)"""


@dataclass(frozen=True)
class Budget:
    """What every network may use."""

    steps: int
    """of a training, for each member of an ensemble"""
    hidden_size: int
    batch_size: int = 64
    members: int = 5
    """of an ensemble"""
    draws: int = 50
    """of dropout masks"""
    samples: int = 100
    """of a forecast by sampling"""


Fit = Callable[[Task, Budget, int], tuple[Predict, float]]
"""From a task, a budget and a seed to the forecasting function, and the seconds of the training"""


@dataclass(frozen=True)
class Method:
    name: str
    fit: Fit
    package: str | None = None
    """that it needs besides ours"""
    is_random: bool = True
    """whether a seed changes anything"""

    @property
    def is_installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None
