"""Copies of a calibration's own inputs with noise on them: inputs beside the familiar ones.

Gains and factors are constants, and constants that are right for inputs of one kind need not be for
others. Which others will come is not known. Noise is the one change that any input can have, and
copies with it show a fit how the variance grows where the network has not been trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from spgru.moments import Moments

__all__ = ["check_levels", "with_noise"]


def check_levels(perturb: float | Sequence[float]) -> tuple[float, ...]:
    levels = (perturb,) if isinstance(perturb, (int, float)) else tuple(perturb)
    if not all(0 < level < float("inf") for level in levels):
        raise ValueError(
            f"perturb holds standard deviations of noise above 0, or nothing, (); got {levels}"
        )
    return levels


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
        level = level.reshape([-1 if d == dim else 1 for d in range(value.ndim)])
        # Drawn on the CPU: the same seed, the same copies on every device.
        draw = torch.randn(value.shape, generator=generator).to(value)
        moved = (value + level * scale * draw).clamp(rows.amin(0), rows.amax(0))
        changed |= bool((moved != value).any())
        return moved

    def of(value: Any, all_values: Any) -> Any:
        if isinstance(value, Moments):
            return Moments(noisy(value.mean, all_values.mean), value.var)
        return noisy(value, all_values) if isinstance(value, Tensor) else value

    found = pytree.tree_map(of, inputs, like, is_leaf=lambda value: isinstance(value, Moments))
    return found, changed
