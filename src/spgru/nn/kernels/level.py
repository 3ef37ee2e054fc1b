"""A factor on variances that depends on their mean over features, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["scale_by_level"]

_LARGEST_BLOCK = 4096


@triton.jit
def _at(values, step, count):
    """Of the step; later ones have the value of the last."""
    return tl.load(values + tl.minimum(step, count - 1))


@triton.jit
def _scale_rows(
    var, new_var, factor, power, low, high,
    factors, powers, batch, steps,
    size: tl.constexpr, time_first: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row a program: the features of a step and sequence."""
    row = tl.program_id(0).to(tl.int64)
    step = row // batch if time_first else row % steps
    total = tl.zeros((block,), tl.float32)
    for start in range(0, size, block):
        at = start + tl.arange(0, block)
        total += tl.load(var + row * size + at, at < size, 0.0)
    level = tl.sum(total) / size
    # A NaN among the variances is one of the level, and of all that is made with it.
    if low is not None:
        keep_nan: tl.constexpr = tl.PropagateNan.ALL
        level = tl.maximum(level, _at(low, step, powers), propagate_nan=keep_nan)
        level = tl.minimum(level, _at(high, step, powers), propagate_nan=keep_nan)
    level = tl.maximum(level, 1.1754943508222875e-38, propagate_nan=tl.PropagateNan.ALL)
    scale = _at(factor, step, factors) * tl.exp2(_at(power, step, powers) * tl.log2(level))
    for start in range(0, size, block):
        at = start + tl.arange(0, block)
        part = tl.load(var + row * size + at, at < size, 0.0)
        tl.store(new_var + row * size + at, scale * part, at < size)


def scale_by_level(
    var: Tensor, factor: Tensor, power: Tensor, low: Tensor | None, high: Tensor | None, time: int
) -> Tensor:
    """factor V^power var, with V the mean over features within `low` and `high`.

    Args:
        var: (T, B, *features), or (B, T, *features) for `time` 1; float32
        factor: one for each step, or one for all
        power: likewise; `low` and `high`, both or none, in its shape
    """
    rows = var.contiguous()
    found = torch.empty_like(rows)
    first, second = rows.shape[:2]
    batch, steps = (second, first) if time == 0 else (first, second)
    size = rows[0, 0].numel() if rows.numel() else 0
    if size:
        block = min(triton.next_power_of_2(size), _LARGEST_BLOCK)
        values = (v if v is None else v.to(rows).contiguous() for v in (factor, power, low, high))
        # Triton launches on the current device, which need not be that of the tensors.
        with torch.cuda.device_of(rows):
            _scale_rows[(first * second,)](
                rows, found, *values, factor.numel(), power.numel(), batch, steps,
                size, time == 0, block,
            )  # fmt: skip
    return found
