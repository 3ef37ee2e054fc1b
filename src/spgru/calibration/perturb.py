"""Copies of a calibration's own inputs, changed: inputs beside the familiar ones.

Gains and factors are constants, and constants that are right for inputs of one kind need not be for
others. Which others will come is not known. Noise is a change that any input can have, and another
pace one that any sequence can have; copies so changed show a fit how the variance grows where the
network has not been trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from spgru.moments import Moments
from spgru.moments.nested import is_moments

__all__ = ["Changes", "changed_copies", "check_changes", "with_noise", "with_skips"]


class Changes(NamedTuple):
    """What is changed in copies; sequence after sequence takes the next of each."""

    noise: tuple[float, ...] = ()
    """standard deviations, in those of the input"""
    skips: tuple[float, ...] = ()
    """shares of the steps that are left out"""


def check_changes(perturb: float | Sequence[float], skip: float | Sequence[float]) -> Changes:
    noise, skips = (
        (values,) if isinstance(values, (int, float)) else tuple(values)
        for values in (perturb, skip)
    )
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
    inputs: Any, like: Any, dim: int, changes: Changes, seed: int
) -> tuple[Any, bool]:
    """Sequences with noise and sequences with steps left out, in turn; whether anything changed.

    For the arguments see `with_noise`.
    """
    noise, skips = changes
    if noise and skips:
        # Of every two sequences one gets noise, so each level is met twice.
        noise, skips = (tuple(v for v in values for _ in range(2)) for values in changes)
    noisy, has_noise = with_noise(inputs, like, dim, noise, seed) if noise else (inputs, False)
    ahead, has_skips = with_skips(inputs, dim, skips, seed) if skips else (inputs, False)
    if not (has_noise and has_skips):
        return (noisy, True) if has_noise else (ahead, has_skips)

    def in_turn(one: Any, other: Any) -> Any:
        if isinstance(one, Moments):
            return Moments(in_turn(one.mean, other.mean), in_turn(one.var, other.var))
        if not isinstance(one, Tensor):
            return one
        is_even = torch.arange(one.shape[dim], device=one.device) % 2 == 0
        return torch.where(is_even.reshape(_along(dim, one.ndim)), one, other)

    return pytree.tree_map(in_turn, noisy, ahead, is_leaf=is_moments), True


def _along(dim: int, ndim: int) -> list[int]:
    """The shape in which a vector broadcasts along one dimension."""
    return [-1 if d == dim else 1 for d in range(ndim)]


def with_skips(inputs: Any, dim: int, shares: Sequence[float], seed: int) -> tuple[Any, bool]:
    """The sequences with steps left out, and whether that has changed anything.

    Sequence i leaves out `shares[i % len(shares)]` of its steps, at least one, at random places:
    it runs ahead, and repeats its last step at the end. Steps are the other one of the first two
    dimensions of what has three or more; of several inputs those with the most steps are
    sequences, and run ahead together.
    """
    leaves = [
        leaf
        for leaf in pytree.tree_leaves(inputs, is_leaf=is_moments)
        if isinstance(leaf, (Moments, Tensor))
    ]
    steps, count = max(_steps(leaf, dim) for leaf in leaves), leaves[0].shape[dim]
    if steps < 3:
        return inputs, False
    many = torch.tensor([max(1, round(shares[i % len(shares)] * steps)) for i in range(count)])
    # Drawn on the CPU: the same seed, the same copies on every device.
    draw = torch.rand(steps - 1, count, generator=torch.Generator().manual_seed(seed))
    strides = torch.where(draw.argsort(0).argsort(0) < many, 2, 1)
    # The first step is always there.
    index = torch.cat([torch.zeros_like(strides[:1]), strides.cumsum(0)]).clamp(max=steps - 1)
    changed = False

    def ahead(value: Any) -> Any:
        nonlocal changed
        if isinstance(value, Moments):
            return Moments(ahead(value.mean), ahead(value.var))
        if not isinstance(value, Tensor) or _steps(value, dim) != steps:
            return value
        places = (index, torch.arange(count)) if dim else (torch.arange(count)[:, None], index.T)
        moved = value[tuple(place.to(value.device) for place in places)]
        changed |= bool((moved != value).any())
        return moved

    return pytree.tree_map(ahead, inputs, is_leaf=is_moments), changed


def _steps(value: Any, dim: int) -> int:
    """Of a Tensor or Moments whose sequences are in `dim`; 0 where there are none."""
    return value.shape[1 - dim] if dim < 2 < value.ndim else 0


def with_noise(
    inputs: Any, like: Any, dim: int, levels: Sequence[float], seed: int
) -> tuple[Any, bool]:
    """The sequences with noise, and whether it has changed anything.

    Sequence i gets Gaussian noise of `levels[i % len(levels)]` times the standard deviation of the
    input, and stays within its range: brightness is not negative afterwards. Both are those of each
    feature, the last dimension, or of all values where there are more than three dimensions
    (pixels). What is constant, or whole numbers only (counts, masks, one-hot codes), stays as it
    is; of uncertain inputs the mean gets noise.

    Args:
        like: inputs whose standard deviation and range count
        dim: holds the sequences
    """
    generator = torch.Generator().manual_seed(seed)
    changed = False

    def noisy(value: Tensor, all_values: Tensor) -> Tensor:
        nonlocal changed
        if not value.is_floating_point() or not value.numel():
            return value
        has_features = dim < all_values.ndim - 1 < 3
        rows = all_values.reshape(-1, all_values.shape[-1] if has_features else 1)
        is_whole = (rows == rows.round()).all(0)
        scale = torch.where(is_whole, 0.0, rows.double().std(0, correction=0)).to(value)
        count = value.shape[dim]
        level = value.new_tensor([levels[i % len(levels)] for i in range(count)])
        level = level.reshape(_along(dim, value.ndim))
        # Drawn on the CPU: the same seed, the same copies on every device.
        draw = torch.randn(value.shape, generator=generator).to(value)
        moved = (value + level * scale * draw).clamp(rows.amin(0), rows.amax(0))
        changed |= bool((moved != value).any())
        return moved

    def of(value: Any, all_values: Any) -> Any:
        if isinstance(value, Moments):
            return Moments(noisy(value.mean, all_values.mean), value.var)
        return noisy(value, all_values) if isinstance(value, Tensor) else value

    found = pytree.tree_map(of, inputs, like, is_leaf=is_moments)
    return found, changed
