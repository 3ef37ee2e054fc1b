"""What the baselines share: folding draws into the batch, and the loss of certain logits."""

from __future__ import annotations

import torch
from torch import Tensor

from spgru.models.frames import check_frames, flatten
from spgru.moments import Moments
from spgru.objectives import Loss, Objective, bernoulli_nll, check_target

__all__ = [
    "certain_frames",
    "certain_loss",
    "check_draws",
    "moments_over_draws",
    "shift",
    "to_frames",
]


def certain_frames(frames: object, height: int, width: int) -> Tensor:
    """(T, B, height, width) -> (T, B, pixels); a Tensor: no baseline takes an uncertain input."""
    if isinstance(frames, Moments):
        raise TypeError(
            "frames are Moments, but only the models of spgru.models take an uncertain input; "
            "pass frames.mean"
        )
    check_frames("frames", frames, height, width)
    assert isinstance(frames, Tensor)
    pixels = flatten(frames)
    assert isinstance(pixels, Tensor)
    return pixels


def to_frames(pixels: Tensor, height: int, width: int) -> Tensor:
    """(T, N, height * width) -> (T, N, height, width)"""
    return pixels.reshape(*pixels.shape[:2], height, width)


@torch.no_grad()
def shift(bias: Tensor, logit: float) -> None:
    """Make the frames of an untrained network darker or brighter."""
    bias.add_(logit)


def check_draws(draws: int) -> None:
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to have a variance, got {draws}")


def moments_over_draws(logits: Tensor, draws: int, dtype: torch.dtype) -> Moments:
    """Mean and unbiased variance of sigmoid(logit) over the draws.

    Args:
        logits: (T, draws * B, height, width)
        dtype: of the result; under autocast logits come in 16 bits, too few for a variance

    Returns:
        (T, B, height, width)
    """
    steps, count, *rest = logits.shape
    pixels = torch.sigmoid(logits.to(dtype)).reshape(steps, draws, count // draws, *rest)
    mean = pixels.mean(1)
    # Not torch.var_mean, which takes 7 to 16 times as long on a CPU thread.
    var = (pixels - mean.unsqueeze(1)).square_().sum(1) / (draws - 1)
    return Moments(mean, var)


def certain_loss(logits: Tensor, target: Tensor, objective: Objective) -> Loss:
    """The loss of logits without variance: both objectives that allow it are the cross entropy.

    Weights here are numbers, so there is no divergence from a prior; its counterpart is the weight
    decay of the optimiser.
    """
    if objective.name == "paper":
        raise ValueError(
            "objective 'paper' compares variances, and this model's output has none; "
            "use 'cross_entropy' or 'elbo', which are the same here"
        )
    check_target(logits, target)
    nll = bernoulli_nll(logits, target)
    return Loss(nll, nll, torch.zeros_like(nll), future=nll)
