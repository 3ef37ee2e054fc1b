"""Training of the baselines, by the windows, the loop and the calibration that ours has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spgru.compare.method import Budget, Predict
from spgru.compare.networks import PlainDirect
from spgru.compare.scores import LEVELS
from spgru.compare.tasks import Task
from spgru.forecast.forecast import Forecast
from spgru.forecast.judging import choose_windows, fit_intervals
from spgru.forecast.network import Anchor
from spgru.forecast.prediction import run
from spgru.forecast.scaling import Array
from spgru.forecast.settings import Settings, choose_sizes
from spgru.forecast.training import TrainingOptions, choose_anchor, train
from spgru.forecast.windows import Numbers, Split, Windows

__all__ = ["Prepared", "Workshop", "prepare"]

_LEVEL = 0.8


@dataclass(frozen=True)
class Prepared:
    """A task as networks see it."""

    task: Task
    windows: Windows
    split: Split
    drawn: tuple[Numbers, Numbers]
    """windows of the training"""
    anchor: Anchor
    squares: Tensor


def windows_of(series: Sequence[Array], context: int, horizon: int, season: int) -> Windows:
    return Windows(
        series, None, None, context, horizon, season, positive=False, device=torch.device("cpu")
    )


def prepare(task: Task, seed: int) -> Prepared:
    """Windows, their division and the plain forecast, as `Forecaster` chooses them."""
    lengths = [len(values) for values in task.histories]
    settings = Settings(task.horizon, season=task.season)
    context, season = choose_sizes(settings, lengths, task.season)
    windows = windows_of(task.histories, context, task.horizon, season)
    split, drawn = choose_windows(windows, lengths, seed)
    return Prepared(task, windows, split, drawn, *choose_anchor(windows, *drawn))


def trained(prepared: Prepared, budget: Budget, seed: int, dropout: float = 0.0) -> PlainDirect:
    """A plain network, trained with the options that a `Forecaster` has by default."""
    windows, defaults = prepared.windows, Settings(prepared.task.horizon)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PlainDirect(
            windows.horizon, windows.context, budget.hidden_size, prepared.anchor, dropout
        )
        network.start_noise_(prepared.squares)
        options = TrainingOptions(
            budget.steps, budget.batch_size, defaults.lr, defaults.patience, defaults.loss,
            kl_weight=0.0, seed=seed, progress=False,
        )  # fmt: skip
        anything: Any = network  # the loop names the networks of ours
        train(anything, windows, prepared.split, options)
    return network


def forecasting(network: nn.Module, prepared: Prepared, seed: int) -> Predict:
    """Fit the variance to the windows of validation, as ours, and answer histories."""
    fit_intervals(network, prepared.windows, prepared.split.validation, _LEVEL, seed)
    context, season = prepared.windows.context, prepared.windows.season
    anything: Any = network

    def predict(histories: Sequence[Array]) -> Array:
        windows = windows_of(histories, context, prepared.task.horizon, season)
        numbers = np.arange(len(histories))
        origins = np.asarray([len(values) for values in histories], np.int64)
        found = run(anything, windows, numbers, origins, parts=False)
        forecast = Forecast(
            found.mean, found.var, found.scaling, list(numbers), None, False, None, list(histories)
        )
        return forecast.quantile(LEVELS)

    return predict


class Workshop:
    """Trains every plain network once: ensembles share their members with the plain head."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Budget, int], tuple[Prepared, PlainDirect, float]] = {}

    def plain(self, task: Task, budget: Budget, seed: int) -> tuple[Prepared, PlainDirect, float]:
        """The network of this seed, and the seconds that its training took."""
        key = task.name, budget, seed
        if key not in self._kept:
            start = time.perf_counter()
            prepared = prepare(task, seed)
            network = trained(prepared, budget, seed)
            self._kept[key] = prepared, network, time.perf_counter() - start
        return self._kept[key]


def timed(work: Callable[[], Predict]) -> tuple[Predict, float]:
    start = time.perf_counter()
    predict = work()
    return predict, time.perf_counter() - start
