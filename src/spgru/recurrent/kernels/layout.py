"""How kernels read and write rows of three gates."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["BLOCK", "load3", "load3_shifted", "store3"]

BLOCK = 256
"""Units that one program of a kernel takes."""


@triton.jit
def load3(pointer, row, column, size: tl.constexpr, mask):
    """The parts of r, z and c in a row of 3 `size`, as float32."""
    place = pointer + row * 3 * size + column
    return (
        tl.load(place, mask, 0.0).to(tl.float32),
        tl.load(place + size, mask, 0.0).to(tl.float32),
        tl.load(place + 2 * size, mask, 0.0).to(tl.float32),
    )


@triton.jit
def load3_shifted(pointer, bias, row, column, size: tl.constexpr, has_bias: tl.constexpr, mask):
    """`load3` with a bias (3 `size`,) added."""
    r, z, c = load3(pointer, row, column, size, mask)
    if has_bias:
        bias_r, bias_z, bias_c = load3(bias, 0, column, size, mask)
        r += bias_r
        z += bias_z
        c += bias_c
    return r, z, c


@triton.jit
def store3(pointer, row, column, size: tl.constexpr, mask, r, z, c):
    place = pointer + row * 3 * size + column
    tl.store(place, r, mask)
    tl.store(place + size, z, mask)
    tl.store(place + 2 * size, c, mask)
