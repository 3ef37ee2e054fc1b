"""How kernels read and write: rows of gates, the state, and the gradient that reaches a state.

A step has (rows, H) units, and a program takes some of them: those of `row` and `column`, tensors
that broadcast. Products lie as (rows, gates H), their gradients likewise, and the next products'
inputs as (rows, H) and (rows, 2 H), or (rows, H) both where squares are made on the way.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "incoming", "load_along", "load_gate", "load_gates", "load_product", "load_state", "load_unit",
    "open_share", "store_gate", "store_state",
]  # fmt: skip


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
def load_along(coherence, column, mask, size: tl.constexpr):
    """Twice the coherence (H,) of units: what E[Z (1 - Z)] h.var of a gate Z counts; or 0."""
    found = 0.0
    if coherence is not None:
        found = 2 * load_unit(coherence, 0, column, mask, size)
    return found


@triton.jit
def open_share(z, zv):
    """E[Z (1 - Z)] of a gate in [0, 1]. Where z has been rounded to 0 or 1 its variance is left."""
    return tl.maximum(z * (1 - z) - zv, 0.0)


@triton.jit
def store_gate(
    pointer, row, column, mask, value, gate: tl.constexpr, gates: tl.constexpr, size: tl.constexpr
):
    tl.store(pointer + (row * gates + gate) * size + column, value, mask)


@triton.jit
def load_gates(pointer, bias, row, column, mask, gates: tl.constexpr, size: tl.constexpr):
    """All gates of (rows, gates H) as a tuple, each with its bias added, if there is one."""
    found = (load_product(pointer, bias, row, column, mask, 0, gates, size),)
    for gate in tl.static_range(1, gates):
        found += (load_product(pointer, bias, row, column, mask, gate, gates, size),)  # type: ignore[assignment]
    return found


@triton.jit
def load_state(h_mean, h_var, c_mean, c_var, row, column, mask, size: tl.constexpr):
    """Mean and variance of h, and of the cell if there is one."""
    h = load_unit(h_mean, row, column, mask, size)
    hv = load_unit(h_var, row, column, mask, size)
    found = h, hv
    if c_mean is not None:
        c = load_unit(c_mean, row, column, mask, size)
        found += (c, load_unit(c_var, row, column, mask, size))  # type: ignore[assignment]
    return found


@triton.jit
def store_state(
    h_mean, h_var, c_mean, c_var, operand_mean, operand_moments, row, column, mask, state,
    size: tl.constexpr, joined: tl.constexpr,
):  # fmt: skip
    """A state in float32, and the next products' inputs where they are something else.

    Args:
        operand_mean: the mean, rounded
        operand_moments: [mean^2, var] if `joined`, else the variance, rounded
    """
    mean, var = state[0], state[1]
    store_gate(h_mean, row, column, mask, mean, 0, 1, size)
    store_gate(h_var, row, column, mask, var, 0, 1, size)
    if c_mean is not None:
        store_gate(c_mean, row, column, mask, state[2], 0, 1, size)
        store_gate(c_var, row, column, mask, state[3], 0, 1, size)
    if operand_mean is not None:
        store_gate(operand_mean, row, column, mask, mean, 0, 1, size)
    if joined:
        store_gate(operand_moments, row, column, mask, mean * mean, 0, 2, size)
        store_gate(operand_moments, row, column, mask, var, 1, 2, size)
    elif operand_moments is not None:
        store_gate(operand_moments, row, column, mask, var, 0, 1, size)


@triton.jit
def incoming(
    out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, row, column, mask,
    size: tl.constexpr,
):  # fmt: skip
    """Gradient of a new state: from outside, and from W h, W.var h^2, (W.var + W^2) h.var after."""
    flat = row * size + column
    both = by_operand_moments + row * 2 * size + column
    by_square = tl.load(both, mask, 0.0).to(tl.float32)
    by_mean = tl.load(out_mean + flat, mask, 0.0)
    by_mean += tl.load(by_operand_mean + flat, mask, 0.0).to(tl.float32)
    by_mean += 2 * tl.load(new_mean + flat, mask, 0.0) * by_square
    by_var = tl.load(out_var + flat, mask, 0.0)
    by_var += tl.load(both + size, mask, 0.0).to(tl.float32)
    return by_mean, by_var
