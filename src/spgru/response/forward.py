"""Tangents pushed forward: what becomes of a small change of all sources along each direction.

A direction changes every weight at once, by a random sign times its standard deviation. With R of
them, scaled by 1/sqrt(R), the squares of an output's tangents add up to its response on average

    E sum over r of (J d_r)^2 = sum over s of var(s) (d E[y] / d mean(s))^2

whatever the number of outputs. Tangents go along with the values through the module's own closed
form, by torch's forward-mode differentiation for all directions at once: nothing is kept for a
backward pass. Sources that are not weights (uncertain inputs, noise) enter where they arise, with
signs of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils._pytree as pytree
from torch import Tensor
from torch._C import _functorch

from spgru.moments import Moments, observing, unobserved
from spgru.recurrent import single_step
from spgru.response.cells import MapWays, pushed_single_step
from spgru.response.directions import Directions, ModuleWeights, new_source, taking
from spgru.response.observed import DETACHED, made_again

__all__ = ["Pushed", "Tree", "flatten", "push"]


class Tree(NamedTuple):
    """Nested values, `Moments` among them, as a list of tensors and what else there is."""

    tensors: list[Tensor]
    """of floating point, which have tangents"""
    rest: list[Any]
    """all leaves, None in place of those tensors"""
    spec: Any

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        found = iter(tensors)
        leaves = [next(found) if leaf is _TENSOR else leaf for leaf in self.rest]
        return pytree.tree_unflatten(leaves, self.spec)


_TENSOR: Any = object()


def flatten(value: Any) -> Tree:
    leaves, spec = pytree.tree_flatten(value)
    # Expanded tensors, such as one initial state for all sequences, cannot take tangents.
    tensors = [leaf.contiguous() for leaf in leaves if _has_tangent(leaf)]
    return Tree(tensors, [_TENSOR if _has_tangent(leaf) else leaf for leaf in leaves], spec)


def _has_tangent(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


_SINGLE_STEP = single_step.__wrapped__  # type: ignore[attr-defined]
"""As observers see it."""


class Pushed(NamedTuple):
    """What a call gave."""

    values: Tree
    tangents: list[Tensor]
    """(R, *shape) of every tensor of `values`"""
    noises: dict[int, tuple[Tensor, Tensor]]
    """by number of the tensor: variance and tangents of the noise that it got last"""


def push(
    weights: ModuleWeights, call: Callable[..., Any], directions: Directions, args: Tree,
    tangents: Sequence[Tensor], noises: Mapping[int, Tensor], generator: torch.Generator,
    maps: dict[int, MapWays],
) -> Pushed:  # fmt: skip
    """`call(*args)` with tangents.

    Args:
        args: a tuple
        tangents: (R, *shape) of every tensor of `args`
        noises: what the call adds, by the number of the `Moments` that it makes
        generator: of the signs of noises
        maps: tangents of the matrices, for steps by kernels
    """
    results: list[Tree] = []
    last: list[tuple[int, int]] = []
    """tensors of the result that got a noise last of all, and its number"""
    has_detached = False

    def run(means: list[Tensor], tensors: list[Tensor], zeros: dict[int, Tensor]) -> Any:
        nonlocal has_detached
        values, filled = weights.changed(means), args.filled(tensors)
        observer = _Adding(zeros, step)
        with taking(values), observing(observer):
            result = flatten(call(*filled))
        has_detached = observer.has_detached
        results.append(result._replace(tensors=[]))
        for k, tensor in enumerate(result.tensors):
            last.extend((k, number) for number, mean in observer.sums.items() if mean is tensor)
        return result.tensors

    means = [moments.mean for moments in weights.moments]
    zeros = {number: torch.zeros_like(var) for number, var in noises.items()}
    noise_ways = {number: new_source(var, directions, generator) for number, var in noises.items()}
    level: list[int] = []

    def step(*operands: Any) -> Any:
        return pushed_single_step(maps, level[0], len(directions.fresh), *operands)

    def along(*ways: Any) -> Any:
        level.append(_functorch.maybe_get_level(ways[0][0]))
        return torch.func.jvp(run, (means, args.tensors, zeros), ways)

    # Values are computed once: only tangents differ between directions.
    along_all: Any = torch.func.vmap(along, out_dims=(None, 0))  # type: ignore[arg-type]
    values, found = along_all(directions.tangents, list(tangents), noise_ways)
    if has_detached and any(map(_depends_on_detached, values, found)):
        raise RuntimeError(DETACHED)
    added = {k: (noises[number], noise_ways[number]) for k, number in last}
    return Pushed(results[0]._replace(tensors=list(values)), list(found), added)


def _depends_on_detached(value: Tensor, tangents: Tensor) -> bool:
    """Whether tangents are NaN where the value is not."""
    return bool((tangents.isnan().any(0) & ~value.isnan()).any())


def _with_nan_tangent(mean: Tensor) -> Tensor:
    nan = torch.full_like(mean, math.nan)
    dual: Tensor = forward_ad.make_dual(mean, nan)  # type: ignore[no-untyped-call]
    return dual


def _has_no_tangent(mean: Tensor) -> bool:
    dual: Any = forward_ad.unpack_dual(mean)  # type: ignore[no-untyped-call]
    return dual.tangent is None


class _Adding:
    """Adds zeros, which have tangents, to the means of `Moments` that have noise of their own.

    A mean with a variance that is no noise but without tangents was detached. It gets tangents of
    NaN, so that those of every output that depends on it are NaN, too.
    """

    def __init__(self, zeros: Mapping[int, Tensor], step: Callable[..., Any]) -> None:
        self._zeros, self._step, self._count = zeros, step, 0
        self.sums: dict[int, Tensor] = {}
        self.has_detached = False

    def made(self, moments: Moments) -> None:
        zero = self._zeros.get(self._count)
        if zero is not None:
            self.sums[self._count] = moments.mean + zero
            object.__setattr__(moments, "mean", self.sums[self._count])
        elif _has_no_tangent(moments.mean) and bool(moments.var.detach().any()):
            self.has_detached = True
            object.__setattr__(moments, "mean", _with_nan_tangent(moments.mean))
        self._count += 1

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        with unobserved():
            result = None
            if function is _SINGLE_STEP and not options:
                result = self._step(*args)
            if result is None:
                result = function(*args, **options)
        return made_again(result)
