"""Training on windows of all series, stopped early by windows that it does not see.

Of several processes each takes a part of every batch and of the windows of validation; losses and
scores are those of all parts together, so all processes walk the same way and stop together.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spgru.calibration.progress import Bar
from spgru.divergence import kl_divergence
from spgru.families import Prior
from spgru.forecast.network import Anchor, Direct, FedBack
from spgru.forecast.windows import Batch, Numbers, Split, Windows
from spgru.metrics import crps, gaussian_nll
from spgru.moments import Moments
from spgru.nn.layer import layers_of
from spgru.nn.weight import parameter_groups
from spgru.runtime.distributed import ALONE, Processes

__all__ = ["Loss", "TrainingOptions", "TrainingRecord", "choose_anchor", "train", "validate"]

Loss = Literal["crps", "nll"]
_RATES = (1.0, 0.7, 0.4, 0.2, 0.05)
"""Of smoothing, for anchors to choose from."""
_CHUNK = 256
"""Windows of one pass where nothing is learned."""
_CHECKS = 25
"""Times that validation is computed in a training of full length."""
_MOST_CHECKED = 512
"""Windows of validation that are computed at each of them."""
_TIME_CONSTANTS = 20
"""Of the moving average of the weights, in a training of full length."""
_PRIOR = Prior("gaussian", std=1.0, scale="fan_in")
_LEAST_UNIT = 0.02
"""Contexts that are still smoother count no more than this."""


@dataclass(frozen=True)
class TrainingOptions:
    """How a network is trained; see `Forecaster`."""

    steps: int
    batch_size: int
    lr: float
    patience: int
    loss: Loss
    kl_weight: float
    seed: int
    progress: bool


@dataclass
class TrainingRecord:
    """What happened in a training."""

    steps: list[int] = field(default_factory=list)
    """at which validation was computed"""
    scores: list[float] = field(default_factory=list)
    """mean CRPS of the validation then, in units of the plain forecast's errors"""
    best_step: int = 0
    best_score: float = math.inf
    seconds: float = 0.0
    stopped_early: bool = False


def choose_anchor(
    windows: Windows, series: Numbers, origins: Numbers, rates: Sequence[float] = _RATES
) -> tuple[Anchor, Tensor]:
    """The plain forecast with the smallest absolute error on these windows.

    Returns:
        the anchor, and the mean squares of its errors by horizon, (H,), in units of what it is
        wrong by in one lag
    """
    values, _, roughness, _ = (batch := windows.batch(series, origins, clipped=True)).inputs
    best, least = None, math.inf
    for lag, rate in product(sorted({1, windows.season}), rates):
        anchor = Anchor(lag, rate)
        error = (batch.target - anchor(values, windows.horizon)).abs()
        # All in one unit, so that every series counts as much for every anchor.
        size = (error / roughness[:, 1:].exp().clamp(min=_LEAST_UNIT)).nanmean().item()
        if size < least:
            unit = roughness[:, :1] if lag == 1 else roughness[:, 1:]
            best, least = (anchor, error / unit.exp()), size
    assert best is not None
    # By the median, since some windows are constant but for a jump: 0.6745 sigma of a Gaussian.
    middle = best[1].nanmedian(0).values.nan_to_num(1.0)
    return best[0], (middle / 0.6745).square()


def train(
    network: Direct | FedBack,
    windows: Windows,
    split: Split,
    options: TrainingOptions,
    group: Processes = ALONE,
) -> TrainingRecord:
    """Train in place; the weights are then those of the best validation.

    They are an exponential moving average over the steps: series are short beside what a network
    could learn from them, and single steps follow their noise.
    """
    group.share(options.batch_size)  # refuses what cannot be shared
    generator = np.random.default_rng(options.seed)
    usable = np.flatnonzero(split.last_origin >= split.first_origin)
    counts = (split.last_origin - split.first_origin + 1)[usable]
    observations = int(counts.sum()) * windows.horizon
    optimizer = torch.optim.AdamW(parameter_groups(network), lr=options.lr, weight_decay=1e-4)
    warm = max(1, options.steps // 20)

    def rate(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.02 + 0.49 * (1 + math.cos(math.pi * (step - warm) / max(1, options.steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    objective = group.wrap(_Objective(network, options, observations, group))
    decay = 1 - 1 / max(1.0, options.steps / _TIME_CONSTANTS)
    averaging = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    averaged = AveragedModel(network, multi_avg_fn=averaging)
    average: Any = averaged.module
    checked = _some(split.validation, _MOST_CHECKED, options.seed)
    record = TrainingRecord(best_score=validate(network, windows, checked, group))
    record.steps, record.scores = [0], [record.best_score]
    best = copy.deepcopy(network.state_dict())
    every = max(1, options.steps // _CHECKS)
    start = time.perf_counter()
    network.train()
    with Bar(options.progress and group.is_first, options.steps, "fit") as bar:
        for step in range(1, options.steps + 1):
            chosen = generator.integers(len(usable), size=options.batch_size)
            origins = split.first_origin[usable[chosen]] + generator.integers(counts[chosen])
            batch = _part(windows, *_observed(windows, usable[chosen], origins), group)
            loss = objective(batch)
            joint = group.mean(loss.detach())
            if not bool(joint.isfinite()):
                raise RuntimeError(
                    f"the loss became {joint.item()} at step {step}; lower lr (it is {options.lr}) "
                    "or look for outliers in the series"
                )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            averaged.update_parameters(network)
            bar.advance()
            if step % every == 0 or step == options.steps:
                score = validate(average, windows, checked, group)
                record.steps.append(step)
                record.scores.append(score)
                if score < record.best_score:
                    record.best_score, record.best_step = score, step
                    best = copy.deepcopy(average.state_dict())
                elif (
                    len(record.steps) - 1 - record.steps.index(record.best_step) >= options.patience
                ):
                    record.stopped_early = True
                    break
    network.load_state_dict(best)
    network.eval()
    record.seconds = time.perf_counter() - start
    return record


class _Objective(nn.Module):
    """The loss as a forward pass, which is what DistributedDataParallel wraps."""

    def __init__(
        self,
        network: Direct | FedBack,
        options: TrainingOptions,
        observations: int,
        group: Processes,
    ) -> None:
        super().__init__()
        self.network, self.options, self.group = network, options, group
        self.observations = observations

    def forward(self, batch: Batch) -> Tensor:
        loss = _loss(self.network, batch, self.options.loss, self.group)
        return loss + self.options.kl_weight * _divergence(self.network) / self.observations


def _divergence(network: nn.Module) -> Tensor:
    """Of the weights from N(0, 1 / inputs), layer by layer: outputs of size 1 from inputs of it.

    0 for a network of certain weights.
    """
    found = [torch.zeros((), device=next(network.parameters()).device)]
    found += [kl_divergence(layer, _PRIOR) for _, layer in layers_of(network)]
    return torch.stack(found).sum()


def _loss(network: Direct | FedBack, batch: Batch, kind: Loss, group: Processes) -> Tensor:
    """Mean score of what was observed."""
    values, seen, roughness, known = batch.inputs
    if not isinstance(network, FedBack):
        return _score(network(*batch.inputs), batch.target, kind, network.unit(roughness), group)
    # Every step of context and target teaches the network to forecast the next.
    plain = network.anchor(values, network.horizon)
    observed = ~batch.target.isnan()
    both = torch.cat([values, torch.where(observed, batch.target, plain)], 1)
    mask = torch.cat([seen, observed.to(seen)], 1)
    y = network.one_step(both[:, :-1], mask[:, :-1], roughness, known)
    following = torch.where(mask > 0, both, math.nan)[:, network.season + 1 :]
    return _score(y, following, kind, network.unit(roughness), group)


def _score(
    y: Moments, target: Tensor, kind: Loss, unit: Tensor, group: Processes = ALONE
) -> Tensor:
    """Mean over what was observed; of several processes, whose mean is that of all parts."""
    seen = ~target.isnan()
    score = crps if kind == "crps" else gaussian_nll
    # NaN would pass through the gradient even where it is left out of the sum.
    values = score(y, torch.where(seen, target, y.mean.detach()))
    if kind == "crps":
        # In units of the plain forecast's errors, as MASE is: every series counts as much.
        values = values / unit.clamp(min=_LEAST_UNIT)
    count = group.mean(seen.sum()).clamp(min=1 / group.count)
    return torch.where(seen, values, 0.0).sum() / count


@torch.no_grad()
def validate(
    network: Direct | FedBack,
    windows: Windows,
    which: tuple[Numbers, Numbers],
    group: Processes = ALONE,
) -> float:
    """Mean CRPS of these windows, in units of the plain forecast's errors."""
    total = count = 0.0
    training = network.training
    network.eval()
    mine = group.part(len(which[0]))
    for batch in _chunks(windows, (which[0][mine], which[1][mine])):
        seen = int((~batch.target.isnan()).sum())
        total += (
            seen
            * _score(
                network(*batch.inputs), batch.target, "crps", network.unit(batch.inputs[2])
            ).item()
        )
        count += seen
    network.train(training)
    if group.count > 1:
        sums = torch.tensor([total, count], dtype=torch.float64, device=group.device)
        total, count = (group.mean(sums) * group.count).tolist()
    return total / max(count, 1.0)


def _chunks(windows: Windows, which: tuple[Numbers, Numbers]) -> Iterator[Batch]:
    series, origins = which
    for start in range(0, len(series), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield windows.batch(series[part], origins[part], clipped=True)


def _observed(windows: Windows, series: Numbers, origins: Numbers) -> tuple[Numbers, Numbers]:
    """Those in which something was observed; all of them if none has."""
    seen = windows.observed(series, origins)
    return (series[seen], origins[seen]) if seen.any() else (series, origins)


def _part(windows: Windows, series: Numbers, origins: Numbers, group: Processes) -> Batch:
    """This process's windows of a batch."""
    mine = group.part(len(series))
    if mine.start < mine.stop:
        return windows.batch(series[mine], origins[mine], clipped=True)
    # Fewer windows than processes: one to run on, of which nothing counts.
    batch = windows.batch(series[:1], origins[:1])
    return batch._replace(target=torch.full_like(batch.target, math.nan))


def _some(which: tuple[Numbers, Numbers], most: int, seed: int) -> tuple[Numbers, Numbers]:
    """At most so many of the windows, drawn without replacement."""
    if len(which[0]) <= most:
        return which
    chosen = np.random.default_rng(seed).choice(len(which[0]), most, replace=False)
    return which[0][chosen], which[1][chosen]
