"""What of a variance its first order does not explain, told to who asks: `spgru.response`.

For Y = f(A, B, ...) of independent Gaussians, entry by entry,

    Var Y = sum over A, B, ... of (d E[Y] / d A.mean)^2 A.var + remainder

where the remainder is not negative: it comes from the curvature of f, and from products of two
uncertain factors. In an expansion of Y by Hermite polynomials it is all that is not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from spgru.moments import Moments, unobserved

__all__ = ["Remainder", "Remainders", "leaves_remainder", "note_remainder", "noting_remainders"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Remainder(NamedTuple):
    """Of one operation."""

    mean: Tensor
    """of its result: the tensor by which outputs are differentiated"""
    var: Tensor


class Remainders(NamedTuple):
    """Of all operations of a block."""

    found: list[Remainder]
    create_graph: bool
    """whether remainders are to be differentiated"""


_notes: ContextVar[Remainders | None] = ContextVar("remainders", default=None)


@contextmanager
def noting_remainders(create_graph: bool = False) -> Iterator[list[Remainder]]:
    """Block whose operations add their remainders to the list."""
    notes = Remainders([], create_graph)
    token = _notes.set(notes)
    try:
        yield notes.found
    finally:
        _notes.reset(token)


def note_remainder(result: Moments, var: Tensor) -> None:
    """Tell the remainder of an operation, where somebody asks."""
    if torch.compiler.is_compiling():
        return
    notes = _notes.get()
    if notes is not None and result.mean.requires_grad:
        var = (var if notes.create_graph else var.detach()).clamp(min=0)
        notes.found.append(Remainder(result.mean, var))


def leaves_remainder(function: Function) -> Function:
    """Decorator of a function that acts entry by entry on independent Gaussians."""

    @wraps(function)
    def noted(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        # What a compiler traces is never asked.
        if torch.compiler.is_compiling():
            return result
        notes = _notes.get()
        if notes is not None and isinstance(result, Moments) and result.mean.requires_grad:
            token = _notes.set(None)
            try:
                with unobserved():
                    var = _remainder(function, args, options, result.shape, notes.create_graph)
            finally:
                _notes.reset(token)
            note_remainder(result, var)
        return result

    return cast(Function, noted)


def _remainder(
    function: Callable[..., Any], args: tuple[Any, ...], options: Any, shape: Any,
    create_graph: bool,
) -> Tensor:  # fmt: skip
    """The function is run again on copies, since its arguments may be broadcast."""

    def copy(part: Tensor) -> Tensor:
        part = part.expand(shape).clone()
        return part if part.requires_grad and create_graph else part.detach()

    with torch.enable_grad():
        copies = [Moments(*map(copy, a)) if isinstance(a, Moments) else a for a in args]
        uncertain = [copied for copied in copies if isinstance(copied, Moments)]
        means = [copied.mean for copied in uncertain]
        for mean in means:
            mean.requires_grad_()
        result = function(*copies, **options)
        slopes = torch.autograd.grad(
            result.mean.sum(), means, create_graph=create_graph, materialize_grads=True
        )
        var: Tensor = result.var
        for copied, slope in zip(uncertain, slopes, strict=True):
            var = var - slope.square() * copied.var
    return var
