"""Where the inputs and the output of a module have sequences and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.calibration.truth import Shape
from spgru.modes import enter_watching
from spgru.moments import Moments
from spgru.moments.nested import count_moments, first_moments
from spgru.nn.contexts import at_mean
from spgru.nn.recurrent_layer import RecurrentLayer

__all__ = [
    "LEAST", "REFUSALS", "Layout", "Place", "both", "different_lengths", "each", "find_layout",
    "in_turn", "leaves_of", "select",
]  # fmt: skip

REFUSALS = ValueError, RuntimeError, AssertionError, TypeError, LookupError
"""What a module raises that does not take an input."""

LEAST = 4
"""Sequences without which nothing can be held out of a fit."""


class Place(NamedTuple):
    """Which dimensions of a Tensor or Moments among the inputs are what."""

    sequences: int | None
    """None for what all sequences share, a single number for instance"""
    steps: int | None = None
    """those that a recurrent layer runs over; None where there are none"""

    def features(self, ndim: int) -> tuple[int, ...]:
        """The dimensions whose entries differ in kind; none where all are alike, as pixels are."""
        if self.sequences is None or ndim > 3:
            return ()
        return tuple(d for d in range(self.sequences + 1, ndim) if d != self.steps)


class Layout(NamedTuple):
    """Of inputs and output."""

    places: tuple[Place, ...]
    """of every Tensor and Moments among the inputs"""
    sequences: int
    """how many"""
    shape: Shape
    """of the output"""
    outputs: int
    """how many Moments the module returns"""


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Moments, PackedSequence))


def leaves_of(inputs: Any) -> list[Any]:
    """Every Tensor, Moments and PackedSequence among the inputs."""
    leaves = pytree.tree_leaves(inputs, is_leaf=_is_leaf)
    return [leaf for leaf in leaves if isinstance(leaf, (Tensor, Moments, PackedSequence))]


def each(function: Callable[..., Any], places: Sequence[Place], *inputs: Any) -> Any:
    """`function(place, leaf, ...)` of every Tensor and Moments of inputs that are alike."""
    flat = [pytree.tree_flatten(one, is_leaf=_is_leaf) for one in inputs]
    left = iter(places)
    found = [
        function(next(left), *values) if isinstance(values[0], (Tensor, Moments)) else values[0]
        for values in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return pytree.tree_unflatten(found, flat[0][1])


def both(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The same function for Moments: of the means, and of the variances."""

    def of(place: Place, *leaves: Any) -> Any:
        if isinstance(leaves[0], Moments):
            mean, var = (function(place, *parts) for parts in zip(*leaves, strict=True))
            return Moments(mean, var)
        return function(place, *leaves)

    return of


def select(inputs: Any, places: Sequence[Place], index: Tensor) -> Any:
    """The sequences `index` of every Tensor and Moments."""

    def chosen(place: Place, value: Tensor) -> Tensor:
        if place.sequences is None:
            return value
        return value.index_select(place.sequences, index.to(value.device))

    return each(both(chosen), places, inputs)


def in_turn(first: Any, second: Any, places: Sequence[Place]) -> Any:
    """The sequences of both: each of the first, and then that of the second.

    In this order what is sorted, by length for instance, stays so.
    """

    def joined(place: Place, one: Tensor, other: Tensor) -> Tensor:
        dim = place.sequences
        return one if dim is None else torch.stack([one, other], dim + 1).flatten(dim, dim + 1)

    return each(both(joined), places, first, second)


@torch.no_grad()
def find_layout(
    module: nn.Module,
    call: Callable[..., Any],
    inputs: Sequence[Any],
    batch_dim: int | None,
    time_dim: int | None,
) -> Layout:
    """Find out where there are sequences and steps.

    A dimension of sequences is one along which the module may be called on a part: what it gives
    for the last half is the last half of what it gives for all. Along time that is not so. Steps
    are what has the length that a recurrent layer of the module has run over.
    """
    leaves = leaves_of(inputs)
    if batch_dim is not None and batch_dim < 0:
        batch_dim += _first(leaves).ndim
    layers = [layer for layer in module.modules() if isinstance(layer, RecurrentLayer)]
    outputs: dict[nn.Module, list[Any]] = {layer: [] for layer in layers}
    with at_mean(module):
        with enter_watching(outputs):
            result = call(*inputs)
        output: Any = first_moments(result)
        if isinstance(output.mean, PackedSequence):
            raise TypeError(
                "the output is packed, and has no dimension of sequences; calibrate with call=, a "
                "function of the inputs that returns padded Moments, or a module that does"
            )
        whole, found, shorter = output.mean, None, None
        for dim in (0, 1) if batch_dim is None else (batch_dim,):
            places = _sequences(leaves, dim)
            count = _first(leaves).shape[dim] if places else 0
            if not places or count < (LEAST if batch_dim is None else 1):
                continue
            last = torch.arange(count // 2, count, device="cpu")
            try:
                part = first_moments(call(*select(inputs, places, last))).mean
            except REFUSALS:
                continue  # a module that takes one length only, and this was time
            found = _matching(whole, part, last, dim)
            if found is not None:
                break
            shorter = shorter or _shorter(whole, part, count, len(last))
    if found is None:
        if shorter is not None:
            raise ValueError(different_lengths(*shorter))
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ValueError(
            f"x has shape {shapes}, and no dimension of it holds at least {LEAST} sequences that "
            "the module treats one by one, of which some can be held out of the fit; pass more "
            "sequences, or batch_dim, or call=, a function of inputs that are laid out alike"
        )
    if (found > 0 and whole.ndim < 2) or found > 1:
        raise ValueError(f"sequences are dimension {found} of the output; they must be 0 or 1")
    shape = Shape(_time(whole, found, time_dim), found)
    places_with_steps = _with_steps(leaves, places, _lengths(outputs))
    return Layout(places_with_steps, count, shape, count_moments(result))


def different_lengths(steps: int, others: int) -> str:
    """What is wrong where the output's length depends on which sequences are there."""
    return (
        f"the output has {steps} steps for some sequences of x and {others} for others, as where "
        "it is padded to the longest of a batch; pad to one length always (total_length= of "
        "pad_packed_moments, or call=)"
    )


def _first(leaves: Sequence[Any]) -> Any:
    """The first that is not a single number."""
    return next((leaf for leaf in leaves if leaf.ndim), leaves[0])


def _sequences(leaves: Sequence[Any], dim: int) -> list[Place]:
    """Places of as many sequences as the first leaf has in `dim`; empty where there are not.

    Others may have them in the other one of the first two dimensions, as states have; one that has
    them in neither is the same for all sequences, as positions are.
    """
    if _first(leaves).ndim <= dim:
        return []
    count = _first(leaves).shape[dim]
    both_dims = [
        [d for d in (dim, 1 - dim) if 0 <= d < leaf.ndim and leaf.shape[d] == count]
        for leaf in leaves
    ]
    return [Place(dims[0] if dims else None) for dims in both_dims]


class _Lengths(NamedTuple):
    """Numbers of steps over which recurrent layers have run."""

    known: set[int]
    """in one call, or in all of those that are parts of a sequence"""
    most: int
    """step by step, its own predictions included, or packed: the input has as many at most"""


def _lengths(outputs: dict[nn.Module, list[Any]]) -> _Lengths:
    known, most = set(), 0
    for layer, values in outputs.items():
        parts = len(getattr(layer, "_parts", [""]))
        # (T, B, ...) of a call over time; (B, H) of a single step, or all rows of a packed call.
        own = [value.shape[0] for value in values if value.ndim > 2]
        flat = [value.shape[0] for value in values if value.ndim == 2]
        steps = (len(flat) + own.count(1)) // parts
        known |= {*own, sum(own) // parts, steps}
        most = max(most, steps, *(flat if steps == 1 else []))
    return _Lengths({length for length in known if length > 2}, most)


def _with_steps(
    leaves: Sequence[Any], places: Sequence[Place], lengths: _Lengths
) -> tuple[Place, ...]:
    """The places with their steps: beside the sequences, or else in the last dimension."""

    def beside(leaf: Any, place: Place) -> int | None:
        return None if place.sequences is None or place.sequences > 1 else 1 - place.sequences

    def at_the_end(leaf: Any, place: Place) -> int | None:
        return None if place.sequences is None else int(leaf.ndim) - 1

    def found(
        where: Callable[[Any, Place], int | None], counts: Callable[[int], bool]
    ) -> Iterator[int | None]:
        """The dimension of steps in every leaf, None where there is none."""
        for leaf, place in zip(leaves, places, strict=True):
            dim = where(leaf, place)
            is_one = dim is not None and dim not in (-1, place.sequences) and dim < leaf.ndim
            yield dim if is_one and counts(leaf.shape[dim]) else None

    def with_steps(dims: Iterable[int | None]) -> tuple[Place, ...]:
        pairs = zip(places, dims, strict=True)
        return tuple(place._replace(steps=dim) for place, dim in pairs)

    flat: list[int | None] = []
    for counts in (lengths.known.__contains__, lambda length: 2 < length <= lengths.most):
        for where in (beside, at_the_end):
            dims = list(found(where, counts))
            # What has features beside steps tells better than a table of as many features.
            long = {
                leaf.shape[dim]
                for leaf, dim in zip(leaves, dims, strict=True)
                if dim is not None and leaf.ndim > 2
            }
            if long:
                return with_steps(found(where, long.__contains__))
            if not flat and any(dim is not None for dim in dims):
                flat = dims
    return with_steps(flat or [None] * len(leaves))


def _time(whole: Tensor, batch: int, time_dim: int | None) -> int | None:
    """The dimension of the output that holds steps."""
    if time_dim is None:
        # Without a third dimension the second is features, unless it is sequences.
        return 1 - batch if whole.ndim > 2 or batch == 1 else None
    time = time_dim + whole.ndim if time_dim < 0 else time_dim
    if time == batch or time not in (0, 1) or time >= whole.ndim:
        raise ValueError(
            f"time_dim is {time_dim}, but in the output, of shape {tuple(whole.shape)}, "
            f"dimension {batch} holds sequences; time must be the other one of the first two"
        )
    return time


def _shorter(whole: Tensor, part: Tensor, count: int, half: int) -> tuple[int, int] | None:
    """Steps of all sequences and of the last half, where these are fewer."""
    if part.ndim != whole.ndim:
        return None
    differ = [d for d in range(whole.ndim) if whole.shape[d] != part.shape[d]]
    batch = [d for d in differ if whole.shape[d] == count and part.shape[d] == half]
    if len(differ) != 2 or not batch:
        return None
    (time,) = set(differ) - {batch[0]}
    return whole.shape[time], part.shape[time]


def _matching(whole: Tensor, part: Tensor, last: Tensor, first: int) -> int | None:
    """The dimension of the output along which `part` is the last of `whole`; `first` goes first."""
    for dim in dict.fromkeys((first, 0, 1)):
        if whole.ndim <= dim or part.ndim != whole.ndim or part.shape[dim] != len(last):
            continue
        if whole.shape[dim] <= int(last[-1]):
            continue
        expected = whole.index_select(dim, last.to(whole.device))
        if expected.shape == part.shape and _agree(expected, part, dim):
            return dim
    return None


def _agree(expected: Tensor, part: Tensor, dim: int) -> bool:
    """Up to rounding: kernels round differently for other numbers of sequences.

    A loop that reads its own output back magnifies that in single entries, TF32 above all, so their
    sum is also held against what tells the sequences apart.
    """
    least = 1e-4 * expected.abs().max().item()
    if torch.allclose(expected, part, rtol=1e-3, atol=least):
        return True
    apart = (expected - expected.mean(dim, keepdim=True)).norm()
    return bool((expected - part).norm() < 0.01 * apart)
