"""How kernels read and write: rows of gates, the state, and the gradient that reaches a state.

A step has (rows, H) units, and a program takes some of them: those of `row` and `column`, tensors
that broadcast. Products lie as (rows, gates H), their gradients likewise, and the next products'
inputs as (rows, H) and (rows, 2 H).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["incoming", "load_gate", "load_product", "load_unit", "store_gate", "store_state"]


@triton.jit
def load_gate(
    pointer, row, column, mask, gate: tl.constexpr, gates: tl.constexpr, size: tl.constexpr
):
    """One gate's part of (rows, gates H), as float32."""
    return tl.load(pointer + (row * gates + gate) * size + column, mask, 0.0).to(tl.float32)


@triton.jit
def load_unit(pointer, row, column, mask, size: tl.constexpr):
    """Of (rows, H), as float32."""
    return load_gate(pointer, row, column, mask, 0, 1, size)


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
    new_mean, new_var, operand, operands, row, column, mask, mean, var,
    size: tl.constexpr,
):  # fmt: skip
    """The new state in float32, and the next products' inputs: mean if rounded, [mean^2, var]."""
    flat = row * size + column
    tl.store(new_mean + flat, mean, mask)
    tl.store(new_var + flat, var, mask)
    if operand is not None:
        tl.store(operand + flat, mean, mask)
    both = operands + row * 2 * size + column
    tl.store(both, mean * mean, mask)
    tl.store(both + size, var, mask)


@triton.jit
def incoming(
    out_mean, out_var, new_mean, by_product, by_products, row, column, mask,
    size: tl.constexpr,
):  # fmt: skip
    """Gradient of a new state: from outside, and from W h, W.var h^2, (W.var + W^2) h.var after."""
    flat = row * size + column
    both = by_products + row * 2 * size + column
    by_square = tl.load(both, mask, 0.0).to(tl.float32)
    by_mean = tl.load(out_mean + flat, mask, 0.0)
    by_mean += tl.load(by_product + flat, mask, 0.0).to(tl.float32)
    by_mean += 2 * tl.load(new_mean + flat, mask, 0.0) * by_square
    by_var = tl.load(out_var + flat, mask, 0.0)
    by_var += tl.load(both + size, mask, 0.0).to(tl.float32)
    return by_mean, by_var
