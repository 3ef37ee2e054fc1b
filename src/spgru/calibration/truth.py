"""What drawn networks say: the variance of a module's output and of its layers'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.families import Family
from spgru.modes import enter_watching
from spgru.moments import Moments
from spgru.moments.nested import at_their_means, first_moments
from spgru.nn.contexts import at_mean, sampling
from spgru.nn.layer import layers_of

__all__ = [
    "Answer", "Own", "Shape", "Truth", "device_of", "draw_inputs", "drawn_truths", "own_variance",
    "own_variances", "run_watched",
]  # fmt: skip


class Shape(NamedTuple):
    """Which dimensions of an output are what: features follow sequences and, if any, time."""

    time: int | None
    batch: int

    def halves(self, values: Tensor, has_copies: bool) -> list[Tensor]:
        """Values of the sequences and those of their copies, which follow each; or all together."""
        if not has_copies:
            return [values]
        before = (slice(None),) * self.batch
        return [values[(*before, slice(first, None, 2))] for first in (0, 1)]

    def totals(self, values: Tensor) -> Tensor:
        """The mean over features: (T, B), or (1, B) without time."""
        if self.time is None:
            return values.flatten(1).mean(1).unsqueeze(0) if values.ndim > 1 else values[None]
        ordered = values if self.time == 0 else values.transpose(0, 1)
        return ordered.flatten(2).mean(2) if values.ndim > 2 else ordered

    def spread(self, totals: Tensor, values: Tensor) -> Tensor:
        """What `totals` gives, in a shape that broadcasts to the values it was made of."""
        if self.time is None:
            return totals[0].reshape(-1, *[1] * (values.ndim - 1))
        ordered = totals if self.time == 0 else totals.transpose(0, 1)
        return ordered.reshape(*ordered.shape, *[1] * (values.ndim - 2))


class Answer(NamedTuple):
    """What a module gives for one input."""

    output: Moments
    layers: list[Any]
    """outputs of its layers, in the order of their calls"""


class Truth(NamedTuple):
    """Variances over drawn networks; every network keeps its weights over time."""

    output: Tensor
    layers: list[Tensor]


def run_watched(module: nn.Module, call: Callable[..., Any], inputs: Sequence[Any]) -> Answer:
    """The first Moments that `call` returns, and the outputs of our layers."""
    lists: dict[nn.Module, list[Any]] = {layer: [] for _, layer in layers_of(module)}
    with enter_watching(lists):
        output = first_moments(call(*inputs))
    return Answer(output, [found for outputs in lists.values() for found in outputs])


class _Sums:
    """Running sums of one random tensor: of its deviation from the closed form's mean."""

    def __init__(self, closed: Moments) -> None:
        self.centre = closed.mean.double()
        self.first = torch.zeros_like(self.centre)
        self.second = torch.zeros_like(self.centre)
        self.added: Tensor | None = None

    def add(self, drawn: Tensor | Moments) -> None:
        mean, var = (drawn, None) if isinstance(drawn, Tensor) else drawn
        deviation = mean.double() - self.centre
        self.first += deviation
        # Variance that the module adds to certain weights is part of the total.
        self.second += deviation.square()
        if var is not None and bool((var > 0).any()):
            self.added = var.double() if self.added is None else self.added + var

    def variance(self, count: int) -> Tensor:
        # The subtraction rounds below 0 where nothing varies at all.
        between = ((self.second - self.first.square() / count) / (count - 1)).clamp(min=0)
        return between if self.added is None else between + self.added / count


@torch.no_grad()
def drawn_truths(
    module: nn.Module,
    call: Callable[..., Any],
    sets: Sequence[Sequence[Any]],
    draws: int,
    generator: torch.Generator,
    advance: Callable[[], None],
) -> list[Truth]:
    """The truth on each set of inputs, by the same drawn networks."""
    sums = [
        [_Sums(part) for part in (closed.output, *closed.layers)]
        for closed in (run_watched(module, call, inputs) for inputs in sets)
    ]
    family = next(layers_of(module))[1].family
    for _ in range(draws):
        with sampling(module, generator):
            for inputs, own in zip(sets, sums, strict=True):
                drawn = run_watched(module, call, draw_inputs(inputs, family, generator))
                for part, value in zip(own, (drawn.output, *drawn.layers), strict=True):
                    part.add(value)
        advance()
    found = [[part.variance(draws) for part in own] for own in sums]
    return [Truth(output, layers) for output, *layers in found]


class Own(NamedTuple):
    """The variance that a module adds itself, with its weights at their means."""

    constant: Tensor | None
    """one for every feature, None where there is none or it varies"""
    varies: bool
    """whether it depends on the input or the step"""
    found: Tensor
    """as it is, in the shape of the output"""


@torch.no_grad()
def own_variance(
    module: nn.Module, call: Callable[..., Any], inputs: Sequence[Any], shape: Shape
) -> Own:
    with at_mean(module):
        found = first_moments(call(*at_their_means(inputs))).var.double()
    if not bool((found > 0).any()):
        return Own(None, False, found)
    before = 1 if shape.time is None else 2
    rows = found.flatten(0, before - 1)
    mean = rows.mean(0)
    # Equal but for rounding.
    varies = bool(((rows - mean).abs() > 1e-4 * mean).any())
    return Own(None if varies else mean.float(), varies, found)


def own_variances(
    module: nn.Module, call: Callable[..., Any], sets: Sequence[Sequence[Any]], shape: Shape
) -> list[Own]:
    """Of each set of inputs; constant in all of them or in none."""
    found = [own_variance(module, call, inputs, shape) for inputs in sets]
    varies = any(own.varies for own in found)
    return [own._replace(constant=None, varies=True) for own in found] if varies else found


def device_of(module: nn.Module) -> torch.device:
    """That of the first of our layers."""
    return next(layers_of(module))[1]._like.device


def draw_inputs(inputs: Any, family: Family, generator: torch.Generator) -> Any:
    """Every Moments among the inputs replaced by a draw from it."""

    def draw(value: Any) -> Any:
        if not isinstance(value, Moments):
            return value
        if isinstance(value.mean, PackedSequence):
            data = family.sample(Moments(value.mean.data, value.var.data), generator)
            return value.mean._replace(data=data)
        return family.sample(value, generator)

    return pytree.tree_map(draw, inputs, is_leaf=lambda value: isinstance(value, Moments))
