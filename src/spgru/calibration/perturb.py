"""Copies of a calibration's own inputs, changed: inputs beside the familiar ones.

Gains and factors are constants, and constants that are right for inputs of one kind need not be for
others. Which others will come is not known. Noise is a change that any input can have, and another
pace one that any sequence can have; copies so changed show a fit how the variance grows where the
network has not been trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.calibration.layout import Place, both, each
from spgru.moments import Moments

__all__ = ["Changes", "changed_copies", "check_changes", "with_noise", "with_skips"]


class Changes(NamedTuple):
    """What is changed in copies; sequence after sequence takes the next of each."""

    noise: tuple[float, ...] = ()
    """standard deviations, in those of the input"""
    skips: tuple[float, ...] = ()
    """shares of the steps at which a copy goes on by two"""


def check_changes(
    perturb: float | Sequence[float] | None, skip: float | Sequence[float] | None
) -> Changes:
    def values_of(name: str, given: float | Sequence[float] | None) -> tuple[float, ...]:
        if given is None:
            return ()
        found = (given,) if isinstance(given, (int, float, Real)) else tuple(given)
        if not all(isinstance(value, Real) and not isinstance(value, bool) for value in found):
            raise TypeError(f"{name} must be a number or several, got {given!r}")
        return tuple(float(value) for value in found)

    noise, skips = values_of("perturb", perturb), values_of("skip", skip)
    if not all(0 < level < float("inf") for level in noise):
        raise ValueError(
            f"perturb holds standard deviations of noise above 0, or nothing, (); got {noise}"
        )
    if not all(0 < share < 1 for share in skips):
        raise ValueError(
            f"skip holds shares of the steps between 0 and 1, or nothing, (); got {skips}"
        )
    return Changes(noise, skips)


def changed_copies(
    inputs: Any, like: Any, places: Sequence[Place], changes: Changes, seed: int
) -> tuple[Any, bool]:
    """Sequences with noise and sequences with steps left out, in turn; whether anything changed.

    For the arguments see `with_noise`.
    """
    noise, skips = changes
    if noise and skips:
        # Of every two sequences one gets noise, so each level is met twice.
        noise, skips = (tuple(v for v in values for _ in range(2)) for values in changes)
    noisy, has_noise = with_noise(inputs, like, places, noise, seed)
    ahead, has_skips = with_skips(inputs, places, skips, seed)
    if not (has_noise and has_skips):
        return (noisy, True) if has_noise else (ahead, has_skips)

    def alternating(place: Place, one: Tensor, other: Tensor) -> Tensor:
        if place.sequences is None:
            return one
        is_even = torch.arange(one.shape[place.sequences], device=one.device) % 2 == 0
        return torch.where(is_even.reshape(_along(place.sequences, one.ndim)), one, other)

    return each(both(alternating), places, noisy, ahead), True


def _along(dim: int, ndim: int) -> list[int]:
    """The shape in which a vector broadcasts along one dimension."""
    return [-1 if d == dim else 1 for d in range(ndim)]


def with_skips(
    inputs: Any, places: Sequence[Place], shares: Sequence[float], seed: int
) -> tuple[Any, bool]:
    """The sequences with steps left out, and whether that has changed anything.

    Sequence i goes on by two steps in place of one at `shares[i % len(shares)]` of its steps, one
    of them at least, at random places: it runs ahead, and repeats its last step where nothing is
    left. Inputs with as many steps run ahead together.
    """
    changed = False

    def ahead(place: Place, value: Tensor) -> Tensor:
        nonlocal changed
        if place.sequences is None or place.steps is None or not shares:
            return value
        dims = place.steps, place.sequences
        ordered = value.movedim(dims, (0, 1))
        steps, count = ordered.shape[:2]
        index = _running_ahead(steps, count, shares, seed).to(value.device)
        moved = ordered[index, torch.arange(count, device=value.device)].movedim((0, 1), dims)
        changed |= bool((moved != value).any())
        return moved

    found = each(both(ahead), places, inputs)
    return found, changed


def _running_ahead(steps: int, count: int, shares: Sequence[float], seed: int) -> Tensor:
    """(steps, count), the step of the input in place of each; the first is always there."""
    many = [max(1, round(shares[i % len(shares)] * steps)) for i in range(count)]
    # On the CPU: the same seed, the same copies on every device.
    generator = torch.Generator("cpu").manual_seed(seed)
    draw = torch.rand(steps - 1, count, generator=generator, device="cpu")
    draw[-1] = 1  # the last is taken last: going on by two there leaves nothing out
    by_two = draw.argsort(0).argsort(0) < torch.tensor(many, device="cpu")
    ends = torch.where(by_two, 2, 1).cumsum(0)
    return torch.cat([torch.zeros_like(ends[:1]), ends]).clamp(max=steps - 1)


def with_noise(
    inputs: Any, like: Any, places: Sequence[Place], levels: Sequence[float], seed: int
) -> tuple[Any, bool]:
    """The sequences with noise, and whether it has changed anything.

    Sequence i gets Gaussian noise of `levels[i % len(levels)]` times the standard deviation of the
    input, and stays within its range: brightness is not negative afterwards. Both are those of each
    feature, or of all values where there are more than three dimensions (pixels). Where an input
    has no steps every entry of a sequence is a feature. What is constant, or whole numbers only
    (counts, masks, one-hot codes), stays as it is; of uncertain inputs the mean gets noise.

    Args:
        like: inputs whose standard deviation and range count
        places: of every Tensor and Moments
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    changed = False

    def noisy(place: Place, value: Tensor, all_values: Tensor) -> Tensor:
        nonlocal changed
        dim = place.sequences
        if dim is None or not levels or not value.is_floating_point() or not value.numel():
            return value
        features = place.features(value.ndim)
        shape = [size if d in features else 1 for d, size in enumerate(value.shape)]
        last = tuple(range(-len(features), 0))
        rows = all_values.movedim(features, last).reshape(-1, math.prod(shape))
        is_whole = (rows == rows.round()).all(0)
        scale = torch.where(is_whole, 0.0, rows.double().std(0, correction=0)).to(value)
        low, high = rows.amin(0).reshape(shape), rows.amax(0).reshape(shape)
        level = value.new_tensor([levels[i % len(levels)] for i in range(value.shape[dim])])
        # Drawn on the CPU: the same seed, the same copies on every device.
        draw = torch.randn(value.shape, generator=generator, device="cpu").to(value)
        added = level.reshape(_along(dim, value.ndim)) * scale.reshape(shape) * draw
        moved = (value + added).clamp(low, high)
        changed |= bool((moved != value).any())
        return moved

    def of(place: Place, value: Any, all_values: Any) -> Any:
        if isinstance(value, Moments):
            return Moments(noisy(place, value.mean, all_values.mean), value.var)
        return noisy(place, value, all_values)

    return each(of, places, inputs, like), changed
