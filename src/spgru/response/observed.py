"""What observers of a module's `Moments` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from spgru.moments import Moments, unobserved
from spgru.recurrent import Trajectory

__all__ = ["NOTHING", "UNSTEADY", "Repetition", "certain", "each", "made_again"]

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


class Repetition:
    """Base of observers of a second pass, in which what is known is certain.

    Args:
        made: noted in the first pass, for each Moments in the order they were made
        results: of the functions that the first pass ran whole
    """

    def __init__(self, made: Iterable[Any], results: Iterable[Any]) -> None:
        self._made, self._results = iter(made), iter(results)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        # What is certain stays so, and the means are those of the first pass: known already.
        result = next(self._results, NOTHING)
        if result is NOTHING:
            raise RuntimeError(UNSTEADY)
        with unobserved():
            result = each(result, certain)
        return made_again(result)

    def end(self) -> None:
        if next(self._made, NOTHING) is not NOTHING:
            raise RuntimeError(UNSTEADY)
