"""How kernels read and write: rows of gates, the state, and the gradient that reaches a state.

Every program takes `BLOCK` units of the (rows, H) that a step has. Products lie as (rows, gates H),
their gradients likewise, and the next products' inputs as (rows, H) and (rows, 2 H).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "BLOCK",
    "Launch",
    "incoming",
    "load_gate",
    "load_product",
    "place",
    "store_gate",
    "store_state",
]

BLOCK = 256


class Launch:
    """A kernel as a function of tensors."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __call__(self, *tensors: Tensor | None, rows: int, size: int) -> None:
        assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
        count = rows * size
        # Triton launches on the current device, which need not be that of the tensors.
        with torch.cuda.device_of(tensors[0]):
            self.kernel[(triton.cdiv(count, BLOCK),)](*tensors, count, size, BLOCK)


@triton.jit
def place(count, size: tl.constexpr, block: tl.constexpr):
    """Which units this program takes: flat index, mask, row and column."""
    flat = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    return flat, flat < count, flat // size, flat % size


@triton.jit
def load_gate(
    pointer, row, column, mask, gate: tl.constexpr, gates: tl.constexpr, size: tl.constexpr
):
    """One gate's part of (rows, gates H), as float32."""
    return tl.load(pointer + (row * gates + gate) * size + column, mask, 0.0).to(tl.float32)


@triton.jit
def load_product(
    pointer, bias, row, column, mask,
    gate: tl.constexpr, gates: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """`load_gate` with a bias (gates H,) added, if there is one."""
    value = load_gate(pointer, row, column, mask, gate, gates, size)
    if bias is not None:
        value += load_gate(bias, 0, column, mask, gate, gates, size)
    return value


@triton.jit
def store_gate(
    pointer, row, column, mask, value, gate: tl.constexpr, gates: tl.constexpr, size: tl.constexpr
):
    tl.store(pointer + (row * gates + gate) * size + column, value, mask)


@triton.jit
def store_state(
    new_mean, new_var, operand, operands, flat, row, column, mask, mean, var,
    size: tl.constexpr,
):  # fmt: skip
    """The new state in float32, and the next products' inputs: mean if rounded, [mean^2, var]."""
    tl.store(new_mean + flat, mean, mask)
    tl.store(new_var + flat, var, mask)
    if operand is not None:
        tl.store(operand + flat, mean, mask)
    both = operands + row * 2 * size + column
    tl.store(both, mean * mean, mask)
    tl.store(both + size, var, mask)


@triton.jit
def incoming(
    out_mean, out_var, new_mean, by_product, by_products, flat, row, column, mask,
    size: tl.constexpr,
):  # fmt: skip
    """Gradient of a new state: from outside, and from W h, W.var h^2, (W.var + W^2) h.var after."""
    both = by_products + row * 2 * size + column
    by_square = tl.load(both, mask, 0.0).to(tl.float32)
    by_mean = tl.load(out_mean + flat, mask, 0.0)
    by_mean += tl.load(by_product + flat, mask, 0.0).to(tl.float32)
    by_mean += 2 * tl.load(new_mean + flat, mask, 0.0) * by_square
    by_var = tl.load(out_var + flat, mask, 0.0)
    by_var += tl.load(both + size, mask, 0.0).to(tl.float32)
    return by_mean, by_var
