"""What observers of a module's `Moments` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgru.moments import Moments
from spgru.recurrent import Trajectory

__all__ = ["NOTHING", "UNSTEADY", "certain", "each", "made_again"]

NOTHING: Any = object()

UNSTEADY = (
    "the module did not do the same when it was run again with certain weights, so the noise that "
    "it adds cannot be told from what it passes on; make what it does depend on the means alone"
)


def certain(moments: Moments) -> Moments:
    return Moments(moments.mean, torch.zeros_like(moments.var))


def made_again(result: Any) -> Any:
    """So that an observer sees it."""
    return each(result, lambda moments: Moments(moments.mean, moments.var))


def each(result: Any, change: Callable[[Moments], Moments]) -> Any:
    """Moments in tuples and dicts changed."""
    if isinstance(result, Moments):
        return change(result)
    if isinstance(result, dict):
        return {name: each(part, change) for name, part in result.items()}
    if isinstance(result, Trajectory):
        return Trajectory(*(each(part, change) for part in result))
    if isinstance(result, tuple):
        return tuple(each(part, change) for part in result)
    return result
