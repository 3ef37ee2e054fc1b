"""Fits of a calibration: gains by gradient descent through the module, scales in closed form.

Everywhere v is the variance in closed form and t the variance of drawn networks. Of totals, which
are well known, a fit is as bad as the divergence between Gaussians that differ in their variance,

    d(t, v) = (t/v - 1 - log(t/v)) / 2,

of single entries as log(t/v)^2 / 2. Where v is a hundredth of t, as of a few units and pixels, d is
47 and the square 11: d would raise the variance of all others to help those few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spgru.calibration.truth import Own, Shape, Truth, run_watched
from spgru.modes import enter_gains
from spgru.nn.layer import layers_of
from spgru.nn.scale import Scale

__all__ = ["Gains", "divergence", "fit_gains", "fit_scale", "log_distance", "score"]

_STIFFNESS = 0.05
"""Price of rows whose log gains differ from the mean of their matrix, and of units whose logits of
coherences, over 4, do: of rows that hardly matter to the sequences of the fit, and do to others."""

_MOST = 1e4
"""Ratio of true to closed variance beyond which a total counts no more, and its square for an
entry."""

_FAINT = 0.1
"""Part of the mean over a step's entries at which an entry counts half."""

Gains = dict[Any, dict[str, Tensor]]
"""By layer and key, see `Layer.gains`: (rows,) of a matrix, (H,) of a state."""


def divergence(true: Tensor, var: Tensor) -> Tensor:
    """Mean of d(t, v) over what is random in both."""
    ratio, is_random = _ratio(true, var)
    # One that no gain can help must not rule the fit, nor overflow its gradient.
    ratio = ratio.clamp(max=_MOST)
    return 0.5 * (ratio - 1 - ratio.log()).sum() / is_random.sum().clamp(min=1)


def log_distance(true: Tensor, var: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean of log(t / v)^2 / 2, weighted or not, over the entries that are random in both."""
    ratio, is_random = _ratio(true, var)
    ratio = ratio.clamp(_MOST**-2, _MOST**2)
    weight = is_random.double() if weight is None else weight * is_random
    return 0.5 * (weight * ratio.log().square()).sum() / weight.sum().clamp(min=1e-300)


def _ratio(true: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """t / v, 1 where one of them is not random; and where both are."""
    var = var.double()
    is_random = (true > 0) & (var > 0)
    # Filled before the division: a gradient through an entry that is not used would be NaN.
    return torch.where(is_random, true, 1.0) / torch.where(is_random, var, 1.0), is_random


def score(true: Tensor, var: Tensor, shape: Shape, has_copies: bool = False) -> Tensor:
    """d(t, v) of totals at every step of every sequence, and the log distance of single entries.

    Copies, every second one of the sequences, count as much as the others.

    Entries count alike down to a tenth of their step's mean, and less below: the variance of one
    that is all but certain (a dark pixel) is known neither from some hundred draws, few of which
    make most of it, nor from the sigmoid.
    """
    halves = zip(shape.halves(true, has_copies), shape.halves(var, has_copies), strict=True)
    return torch.stack([_score(t, v.double(), shape) for t, v in halves]).mean()


def _score(true: Tensor, var: Tensor, shape: Shape) -> Tensor:
    totals = shape.totals(true)
    if not bool(var.isfinite().all()):
        return true.new_full((), math.inf)
    faint = _FAINT * shape.spread(totals, true)
    weight = true / (true + faint).clamp(min=1e-300)
    return divergence(totals, shape.totals(var)) + log_distance(true, var, weight)


def fit_gains(
    module: nn.Module,
    call: Callable[..., Any],
    inputs: Sequence[Any],
    truth: Truth,
    shape: Shape,
    has_copies: bool,
    steps: int,
    rate: float,
    advance: Callable[[], None],
) -> Gains:
    """Gains of every matrix by Adam, starting from 1, and coherences of the states."""
    layers = [layer for _, layer in layers_of(module)]
    raw = {
        layer: {
            key: torch.full(shape, _start(key), device=layer._like.device, requires_grad=True)
            for key, shape in layer.gain_shapes().items()
        }
        for layer in layers
    }
    leaves = [leaf for own in raw.values() for leaf in own.values()]
    optimizer = torch.optim.Adam(leaves, lr=rate)
    # Down to a tenth: what the last steps leave is not the noise of a large step.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: 0.55 + 0.45 * math.cos(math.pi * k / steps)
    )
    for _ in range(steps):
        gains: Gains = {
            layer: {key: _gain(key, leaf) for key, leaf in own.items()}
            for layer, own in raw.items()
        }
        # The backward pass too: what is checkpointed runs again in it.
        with enter_gains(gains):
            found = run_watched(module, call, inputs)
            loss = score(truth.output, found.output.var, shape, has_copies)
            inside = [
                log_distance(true, output.var)
                for true, output in zip(truth.layers, found.layers, strict=True)
            ]
            loss = loss + torch.stack(inside).mean()
            if not loss.requires_grad:
                return {}  # no matrix has an uncertain input
            spreads = torch.stack([leaf.var(unbiased=False) for leaf in leaves])
            loss = loss + _STIFFNESS * spreads.sum()
            grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = torch.zeros_like(leaf) if grad is None else grad
        optimizer.step()
        schedule.step()
        advance()
    return {
        # A matrix whose inputs are certain has no use for gains, and keeps none.
        layer: {
            key: _gain(key, leaf).detach()
            for key, leaf in own.items()
            if bool((leaf != _start(key)).any())
        }
        for layer, own in raw.items()
    }


def _is_coherence(key: str) -> bool:
    return key.startswith("coherence")


def _start(key: str) -> float:
    """Of what Adam moves: the log of a gain, a quarter of the logit of a coherence."""
    return -0.5 if _is_coherence(key) else 0.0


def _gain(key: str, raw: Tensor) -> Tensor:
    """Gains are positive; coherences lie between 0 and 1, so that no state grows without end."""
    # By a quarter of the logit: a step of Adam is as large a change as one of a gain.
    return (4 * raw).sigmoid() if _is_coherence(key) else raw.exp()


def fit_scale(
    true: Tensor,
    var: Tensor,
    shape: Shape,
    own: Own,
    per_step: bool,
    powered: bool,
    has_copies: bool = False,
) -> Scale | None:
    """The scale with which totals over features and sequences agree; None where nothing is random.

    Without a power that is s = sum of t / sum of v, which minimises the sum of v d(t, s v). Copies,
    every second one, have a say in the power only: factors are right for sequences.

    Args:
        own: variance that the module adds itself for these sequences, and that no factor acts on
    """
    added = own.found
    t, v = shape.totals((true - added).clamp(min=0)), shape.totals((var - added).clamp(min=0))
    is_original = torch.ones_like(t, dtype=torch.bool)
    if has_copies:
        is_original[:, 1::2] = False
    if not per_step:
        t, v, is_original = (part.reshape(1, -1) for part in (t, v, is_original))
    is_random = (t > 0) & (v > 0)
    counts = is_random & is_original
    if not bool(counts.any(1).all()):
        return None
    log_level = torch.where(is_random, v, 1.0).log()
    log_true = torch.where(is_random, t, 1.0).log()
    # Sequences alone are too much alike to know a power for every step.
    power = _fit_power(log_level, log_true, is_random, has_copies) if powered else None
    if powered and power is None:
        return None
    powered_level = (log_level if power is None else log_level * (1 + power)).exp()
    true_sum, level_sum = (torch.where(counts, part, 0.0).sum(1) for part in (t, powered_level))
    factor = true_sum / level_sum
    time = shape.time if per_step and shape.time is not None else 0
    factor = factor.float().reshape(*[1] * time, -1)
    scale = Scale(factor, own=own.constant, noise=own.constant)
    if own.varies:
        scale = scale._replace(noise_factor=torch.ones((), device=factor.device))
    if power is None:
        return scale
    limits = torch.where(is_random, v, torch.inf).amin(1), torch.where(is_random, v, 0.0).amax(1)
    if len(power) == 1:
        limits = limits[0].amin(0, keepdim=True), limits[1].amax(0, keepdim=True)
    form = [] if shape.time is None else [*[1] * time, -1]
    power, low, high = (values.float().reshape(form) for values in (power, *limits))
    return scale._replace(power=power, low=low, high=high)


def _fit_power(
    log_level: Tensor, log_true: Tensor, is_random: Tensor, per_step: bool
) -> Tensor | None:
    """(T, 1) or (1, 1): the slope of log t over log v within steps, less 1.

    None where all sequences are alike.
    It is kept within 1/2, so that inputs unlike those of the fit are not scaled beyond reason.
    """
    count = is_random.sum(1, keepdim=True)

    def centred(x: Tensor) -> Tensor:
        return torch.where(is_random, x - (x * is_random).sum(1, keepdim=True) / count, 0.0)

    level, truth = centred(log_level), centred(log_true)
    dims = (1,) if per_step else (0, 1)
    spread = (level * level).sum(dims, keepdim=True)
    if not bool((spread > 1e-6 * is_random.sum(dims, keepdim=True)).all()):
        return None
    slope = (level * truth).sum(dims, keepdim=True) / spread - 1
    return slope.clamp(-0.5, 0.5)
