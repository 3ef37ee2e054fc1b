"""Directions in the space of all weights of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.functional.linear import Tap
from spgru.modes import Responding, enter_weights
from spgru.moments import Moments
from spgru.nn.layer import layers_of, refresh_weights

__all__ = ["Directions", "ModuleWeights", "draw_directions", "new_source", "taking", "weights_of"]


class ModuleWeights(NamedTuple):
    """The weights of a module's layers, as they were."""

    values: dict[nn.Module, dict[str, Moments]]

    def changed(self, means: list[Tensor]) -> dict[nn.Module, dict[str, Moments]]:
        """With these means, in the order of `moments`."""
        found = iter(means)
        return {
            layer: {name: Moments(next(found), moments.var) for name, moments in own.items()}
            for layer, own in self.values.items()
        }

    @property
    def moments(self) -> list[Moments]:
        return [moments for own in self.values.values() for moments in own.values()]


def taking(
    values: Mapping[nn.Module, Mapping[str, Moments]],
    tap: Callable[[str, str], Tap] | None = None,
) -> Any:
    """Block in which these layers have these weights, and others cannot run."""
    return enter_weights(
        {layer: Responding(own, tap, {}, needs_grad=False) for layer, own in values.items()}
    )


class Directions(NamedTuple):
    """The learned ones first."""

    tangents: list[Tensor]
    """(R, *shape) for each weight"""
    fresh: Tensor
    """(R,): by what the sign of a source that is no weight is multiplied; 0 for learned ones"""


def weights_of(module: nn.Module) -> ModuleWeights:
    """Copies."""
    refresh_weights(module)
    return ModuleWeights(
        {
            layer: {
                name: Moments(*(part.detach().clone() for part in layer.weight_moments(name)))
                for name in layer.weights()
            }
            for _, layer in layers_of(module)
        }
    )


def draw_directions(
    weights: ModuleWeights, count: int, seed: int, learned: Tensor | None = None
) -> Directions:
    """Random signs times standard deviations, orthogonal to what was learned.

    Args:
        count: of random directions
        learned: (directions, entries of all weights), orthonormal, in standard deviations
    """
    moments = weights.moments
    first = moments[0].mean
    # On the CPU, so that a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed)
    sizes = [part.mean.numel() for part in moments]
    signs = torch.empty(count, sum(sizes)).bernoulli_(generator=generator).mul_(2).sub_(1)
    signs = signs.to(first)
    fresh = first.new_full((count,), 1 / math.sqrt(count))
    if learned is not None:
        signs -= (signs @ learned.T) @ learned
        signs = torch.cat([learned, signs / math.sqrt(count)])
        fresh = torch.cat([first.new_zeros(len(learned)), fresh])
    else:
        signs /= math.sqrt(count)
    parts = torch.split(signs, sizes, 1)
    tangents = [
        part.view(-1, *own.shape) * own.std for part, own in zip(parts, moments, strict=True)
    ]
    return Directions(tangents, fresh)


def new_source(var: Tensor, directions: Directions, generator: torch.Generator) -> Tensor:
    """(R, *shape): tangents of a source of this variance, whose entries are independent."""
    fresh = directions.fresh
    signs = var.new_empty(len(fresh), *var.shape).bernoulli_(generator=generator).mul_(2).sub_(1)
    return signs * var.sqrt() * fresh.to(var).view(-1, *[1] * var.ndim)
