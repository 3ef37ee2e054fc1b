"""`train`: from a configuration to trained weights, in one go or in pieces."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spgru.reporting.pictures import require_matplotlib
from spgru.runtime.distributed import Processes, processes
from spgru.runtime.errors import ConfigError
from spgru.runtime.lock import locked
from spgru.runtime.precision import float32_products
from spgru.training.checkpoint import CheckpointError, CheckpointWarning
from spgru.training.config import TrainConfig
from spgru.training.evaluation import make_data, score
from spgru.training.images import save_prediction
from spgru.training.interrupt import OUT_OF_TIME, Stop, watching
from spgru.training.progress import Progress, Show
from spgru.training.run import Run
from spgru.training.update import (
    GraphUpdate,
    LossModule,
    MeanLossModule,
    Update,
    learning_rate,
)

__all__ = ["Result", "train"]

_VALIDATION_SEED = 2021
"""Any number but that of `spgru.training.evaluation`: validation must not use its sequences."""


@dataclass(frozen=True)
class Result:
    """What a call of `train` achieved."""

    model: Any
    step: int
    """steps made, earlier calls included"""
    losses: dict[str, float]
    """parts of the loss at the last step; empty if there was none left to make"""
    stopped: Literal["finished", "out of time", "interrupted"]
    signal: int
    """number of the signal that interrupted, else 0"""
    folder: Path
    """of the run; its newest checkpoint is of this step"""


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    max_seconds: float | None = None,
    show: Show = "auto",
) -> Result:
    """Train a model, keeping checkpoints, metrics and pictures in `config.output`.

    With `resume` the run continues from its newest sound checkpoint, or starts if it has none, and
    ends with the very weights of a run that was never interrupted (on the same device, with the
    same number of threads and processes, without `cudnn_benchmark`): the learning rate and every
    random number are functions of seed and step alone. On SIGINT, SIGTERM, or when `max_seconds`
    have passed, the step in progress is finished and a checkpoint written.

    Args:
        max_seconds: of this call
        show: `"bar"`, `"lines"`, `"none"`, or `"auto"`: a bar on a terminal, else lines

    Raises:
        ConfigError: the configuration cannot be used here, or is not that of the run to resume.
        FolderInUseError: another process trains in `config.output`.
        CheckpointError: no sound checkpoint to resume, or the last one could not be written.
        TrainingError: the loss is no longer finite.
    """
    if config.image_every:
        require_matplotlib(f"image_every={config.image_every}")
    with (
        processes(config.device) as group,
        watching(max_seconds, patient=group.count > 1) as stop,
        float32_products(
            config.precision == "tf32",
            config.cudnn_benchmark,
            cudnn_deterministic=not config.cudnn_benchmark,
        ),
    ):
        check_group(config, group)
        # The first process alone writes.
        with locked(Path(config.output)) if group.is_first else nullcontext():
            return _train(Run(config, group, resume or group.restarted), stop, show)


def _takes_graphs(group: Processes) -> bool:
    return group.device.type == "cuda" and group.count == 1


def check_group(config: TrainConfig, group: Processes) -> None:
    """Refuse what these processes cannot do."""
    if config.cuda_graph == "always" and not _takes_graphs(group):
        raise ConfigError(
            f"cuda_graph is always, but a graph needs one process on one GPU, not "
            f"{group.count} on {group.device.type}; set it to auto"
        )
    if config.objective.name == "paper" and group.count > 1:
        raise ConfigError(
            "objective.name is paper, which compares with the variance over the batch, and "
            f"{group.count} processes have a part of it each; use one process"
        )


def _train(run: Run, stop: Stop, show: Show) -> Result:
    loop = _Loop(run, stop)
    if not run.group.is_first:
        return loop.go(None)
    with Progress(run.folder, run.step, run.config, show) as progress:
        return loop.go(progress)


class _Loop:
    def __init__(self, run: Run, stop: Stop) -> None:
        self.run, self.stop = run, stop
        self.config, self.group = run.config, run.group
        self.means_only = run.step < run.config.mean_steps
        self.update = self._make_update()

    def _make_update(self) -> Update:
        config, group = self.config, self.group
        module: Any = (
            MeanLossModule(self.run.model)
            if self.means_only
            else LossModule(self.run.model, config.objective)
        )
        if config.compile:
            module = torch.compile(module)
        graph = _takes_graphs(group) and config.cuda_graph != "never"
        kind = GraphUpdate if graph else Update
        # Without variances in the loss theirs have no gradient, which DDP has to be told.
        wrapped = group.wrap(module, some_unused=self.means_only)
        return kind(wrapped, self.run.optimizer, config.precision, config.optimizer.clip)

    def go(self, progress: Progress | None) -> Result:
        """All steps that are left; only the first process has a `progress`."""
        config, run, reason = self.config, self.run, 0
        saved, last = run.step, torch.zeros(0)
        interval: list[Tensor] = []
        while run.step < config.steps and not reason:
            if self.means_only and run.step >= config.mean_steps:
                self.means_only = False
                self.update = self._make_update()
            self._seed()
            rate = learning_rate(config.optimizer.lr, config.schedule, run.step, config.steps)
            # Cloned, because a replayed graph writes its result to the same tensor again.
            last = self.update(next(run.data), rate).clone()
            run.step += 1
            # On a GPU reading a value would wait for the device: only with the log or a checkpoint.
            if last.device.type == "cpu" and not bool(last.isfinite().all()):
                raise run.diverged()
            interval.append(last)
            # A row ends with mean_steps too, since the loss changes there.
            if self._is_due(config.log_every) or run.step == config.mean_steps:
                self._log(progress, interval, rate)
                interval = []
            if self._is_due(config.checkpoint_every) and run.step < config.steps:
                saved = run.step if self._save(progress) else saved
            if progress is not None:
                self._draw_and_validate(progress)
            # Several processes must stop at the same step; agreeing on it waits for the GPU.
            if self.group.count == 1 or self._is_due(config.log_every):
                reason = self.group.largest(self.stop.reason)
        losses = self._losses(last)
        if run.step > saved and self.group.is_first:
            run.save()
        if run.step == config.steps:
            return Result(run.model, run.step, losses, "finished", 0, run.folder)
        if reason == OUT_OF_TIME:
            return Result(run.model, run.step, losses, "out of time", 0, run.folder)
        return Result(run.model, run.step, losses, "interrupted", reason, run.folder)

    def _is_due(self, every: int) -> bool:
        return every > 0 and (self.run.step % every == 0 or self.run.step == self.config.steps)

    def _seed(self) -> None:
        """Make the random numbers of a step a function of seed, step and rank alone."""
        entropy = [self.config.seed, self.run.step, self.group.rank]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]))

    def _losses(self, values: Tensor) -> dict[str, float]:
        """By name, mean over the processes; waits for the device."""
        if not len(values):
            return {}
        means = self.group.mean(values).tolist()
        if not all(map(math.isfinite, means)):
            raise self.run.diverged()
        return dict(zip(self.update.names, means, strict=True))

    def _log(self, progress: Progress | None, interval: list[Tensor], rate: float) -> None:
        losses = self._losses(torch.stack(interval).mean(0))
        if progress is not None:
            progress.log(self.run.step, {**losses, "lr": rate})

    def _save(self, progress: Progress | None) -> bool:
        """Save a checkpoint before the end; a disk that refuses it does not end the run."""
        if progress is None:
            return True
        start = time.perf_counter()
        try:
            self.run.save()
        except CheckpointError as error:
            warnings.warn(f"{error}; training goes on", CheckpointWarning, stacklevel=2)
            return False
        finally:
            progress.exclude(time.perf_counter() - start)
        return True

    def _draw_and_validate(self, progress: Progress) -> None:
        """Pictures, and scores on digits that are not used in training."""
        config, run = self.config, self.run
        draw, validate = self._is_due(config.image_every), self._is_due(config.validate_every)
        if not draw and not validate:
            return
        start = time.perf_counter()
        count = config.validate_sequences if validate else 1
        run.model.eval()
        if draw:
            path = run.folder / "images" / f"step-{run.step:08d}.png"
            with progress.tolerating(str(path)):
                save_prediction(path, run.model, next(self._unseen(1)))
                progress.picture(path, run.step)
        if validate:
            found = score(run.model, self._unseen(count)).single_numbers()
            row = {f"test_{name}": value for name, value in found.items()}
            progress.record({"step": run.step, **row})
        run.model.train()
        progress.exclude(time.perf_counter() - start)

    def _unseen(self, count: int) -> Iterator[Tensor]:
        config = self.config
        size = min(count, config.batch_size)
        options: dict[str, Any] = {"split": "test", "seed": _VALIDATION_SEED}
        data = make_data(config.data, size, device=self.group.device, **options)
        for start in range(0, count, size):
            yield next(data)[:, : count - start]
