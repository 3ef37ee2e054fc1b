"""The arguments of a `Forecaster`, and what of them the series decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from spgru.checks import check_choice
from spgru.forecast.network import Cell
from spgru.forecast.training import Loss

__all__ = ["Mode", "Settings", "check_history", "choose_sizes", "least_history"]

Mode = Literal["auto", "direct", "fed-back"]
_HOURS = 24
"""A season of so many steps is a day, and days differ by their place in the week: two weeks of them
are read, where they are no more than half of the series."""
_LONGEST = 400
"""Of a context that is chosen automatically."""


@dataclass(frozen=True)
class Settings:
    """The arguments of a `Forecaster`, checked."""

    horizon: int
    context: int | None = None
    season: int | None = None
    hidden_size: int = 32
    num_layers: int = 1
    cell: Cell = "gru"
    mode: Mode = "auto"
    positive: bool = False
    calendar: bool = True
    steps: int = 1000
    batch_size: int = 64
    lr: float = 3e-3
    patience: int = 12
    loss: Loss = "crps"
    kl_weight: float = 0.01
    calibrate: bool = True
    level: float | None = 0.8
    seed: int = 0
    device: str = "auto"
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("horizon", "hidden_size", "num_layers", "steps", "batch_size", "patience"):
            _check_count(name, getattr(self, name))
        for name in ("context", "season"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        check_choice("cell", self.cell, get_args(Cell))
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("loss", self.loss, get_args(Loss))
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.kl_weight < 0:
            raise ValueError(f"kl_weight must not be negative, got {self.kl_weight}")
        if self.level is not None and not 0 < self.level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {self.level}")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def least_history(context: int, season: int) -> int:
    """Values without which there is no forecast; the rest of a context may be missing."""
    return min(context, max(season + 1, context // 2))


def choose_sizes(settings: Settings, lengths: Sequence[int], season: int) -> tuple[int, int]:
    """Context and season that the series allow."""
    horizon, longest = settings.horizon, max(lengths)
    if settings.season is None and longest < 3 * season + 2 * horizon:
        season = 1  # a usual season that the data cannot show
    if settings.context is not None:
        context = settings.context
        if context <= season:
            raise ValueError(
                f"context is {context} and season {season}; a context must be longer than a season"
            )
    else:
        seasons = 7 * season
        if season >= _HOURS:
            seasons = max(seasons, min(2 * 7 * season + season, longest // 2))
        context = min(max(seasons, 4 * horizon, 16), max(_LONGEST, 2 * season))
        # Room for some windows of the training, besides one of validation.
        context = max(min(context, longest - 3 * horizon), season + 1)
    needed = least_history(context, season) + 2 * horizon
    if longest < needed:
        raise ValueError(
            f"the longest series has {longest} values, and {needed} are needed: "
            f"{least_history(context, season)} to read and {2 * horizon} to forecast, in "
            "training and in validation; use a smaller horizon, context or season, or more data"
        )
    return context, season


def check_history(values: Any, name: Any, least: int, context: int) -> None:
    if len(values) < least:
        raise ValueError(
            f"the series {name!r} has {len(values)} values, and a forecast needs {least} (the "
            f"context is {context}); pass a longer history"
        )
    seen = int((~np.isnan(values[-context:])).sum())
    if seen < 2:
        raise ValueError(
            f"the series {name!r} has {seen} observed values among its last {context}; a forecast "
            "needs at least 2"
        )
