"""What observers of a module's `Moments` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.functional.linear import Affine
from spgru.moments import Moments, unobserved
from spgru.moments.nested import without_variance
from spgru.recurrent import Trajectory

__all__ = [
    "CHANGED", "DETACHED", "NOTHING", "UNSTEADY", "Repetition", "check_known", "checking_tap",
    "data_of", "each", "made_again", "with_data",
]  # fmt: skip

NOTHING: Any = object()

FOREIGN = (
    "Moments with a variance reach a layer though they were neither passed to the call nor made in "
    "it (captured by a closure, kept as an attribute, changed in place, or inside an object that "
    "is no tuple, list or dict); pass them as arguments, so that they count as a source"
)

UNSTEADY = (
    "the module did not do the same when it was run again with certain weights, so the noise that "
    "it adds cannot be told from what it passes on; make what it does depend on the means alone"
)


DETACHED = (
    "an output depends on (or is) Moments whose mean was detached, or computed under "
    "torch.no_grad(), so the response to what caused their variance cannot be followed; call "
    "respond or a stream on code that does neither"
)

CHANGED = (
    "the {part} of Moments was changed in place after they were made (*=, add_, clamp_, ...), "
    "which cannot be followed; make others of it: Moments({example})"
)


def data_of(part: Any) -> Tensor:
    """A tensor, or the rows of a packed one."""
    data: Tensor = part.data if isinstance(part, PackedSequence) else part
    return data


def with_data(part: Any, data: Tensor) -> Any:
    """`part` with other numbers."""
    return part._replace(data=data) if isinstance(part, PackedSequence) else data


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


def check_known(args: Any, is_foreign: Callable[[Moments], bool]) -> None:
    """Refuse Moments that no source accounts for among the arguments of an operation."""

    def check(moments: Moments) -> Moments:
        if is_foreign(moments):
            raise RuntimeError(FOREIGN)
        return moments

    each(args, check)


def _is_uncertain(moments: Moments) -> bool:
    return bool(data_of(moments.var).any())


class _CheckingTap:
    """The part of a `Tap` that a second pass needs, which leaves out scans: it refuses what is
    uncertain where it reaches a weight."""

    def run(self, affine: Affine, x: Tensor | Moments) -> Moments:
        check_known(x, _is_uncertain)
        result: Moments = affine.untapped(x)
        return result

    def note(self, affine: Affine | None, x: Any, mean: Tensor, var: Tensor) -> Moments:
        return Moments(mean, var)

    def rows(self, start: int) -> _CheckingTap:
        return self


def checking_tap(weight: str, bias: str) -> Any:
    """The same for all weights."""
    return _CheckingTap()


class Repetition:
    """Base of observers of a second pass, in which what is known is certain.

    Args:
        made: noted in the first pass, for each Moments in the order they were made
        results: of the functions that the first pass ran whole
    """

    def __init__(self, made: Iterable[Any], results: Iterable[Any]) -> None:
        self._made, self._results = iter(made), iter(results)
        self._zeros: list[tuple[Tensor, int]] = []

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        # All that was passed or made is certain by now.
        check_known(args, _is_uncertain)
        # What is certain stays so, and the means are those of the first pass: known already.
        result = next(self._results, NOTHING)
        if result is NOTHING:
            raise RuntimeError(UNSTEADY)
        with unobserved():
            result = each(result, without_variance)
        return made_again(result)

    def make_certain(self, moments: Moments, mean: Tensor) -> None:
        """Give moments this mean and no variance."""
        var = torch.zeros_like(mean)
        self._zeros.append((var, var._version))
        object.__setattr__(moments, "mean", with_data(moments.mean, mean))
        object.__setattr__(moments, "var", with_data(moments.var, var))

    def end(self) -> None:
        if next(self._made, NOTHING) is not NOTHING:
            raise RuntimeError(UNSTEADY)
        if any(var._version != version and bool(var.any()) for var, version in self._zeros):
            raise RuntimeError(CHANGED.format(part="variance", example="y.mean, y.var + s"))
