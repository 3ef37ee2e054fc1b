"""How the variance of a step is spread over its features, where an estimate alone is noisy."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["with_shape"]


def with_shape(exact: Tensor, drawn: Tensor, closed: Tensor, count: int, start: int) -> Tensor:
    """An estimate mixed with the closed form's shape; its total over features is kept.

    With v the estimate, s c the closed form scaled to the same total, and n the variance of v by
    its finite number of directions,

        v' = s c + w (v - s c),    w = 1 - sum n / sum (v - s c)^2, at least 0

    (James and Stein): w is near 1 where v differs from the shape by more than its noise.

    Args:
        exact: (*shape), the part of the estimate without noise
        drawn: (*shape), the part by random directions, whose relative variance is 2 / count
        closed: (*shape)
        count: of random directions
        start: dimensions from this one on are features
    """
    dims = tuple(range(start, drawn.ndim))
    estimate = exact + drawn
    if not dims:
        return estimate
    closed = closed.clamp(min=0)
    tiny = torch.finfo(drawn.dtype).tiny
    total = closed.sum(dims, keepdim=True)
    shaped = closed * (estimate.sum(dims, keepdim=True) / total.clamp(min=tiny))
    # E drawn^2 is (1 + 2 / count) times the square of what is estimated.
    noise = (drawn.square() * (2 / (count + 2))).sum(dims, keepdim=True)
    apart = (estimate - shaped).square().sum(dims, keepdim=True)
    weight = (1 - noise / apart.clamp(min=tiny)).clamp(min=0)
    return torch.where(total > 0, torch.lerp(shaped, estimate, weight), estimate)
