"""How the persistent kernels divide a state, and what finds room on the chip."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

__all__ = [
    "STAGES", "UNITS", "Plan", "exact", "held_terms", "inner_terms", "make_plan", "room", "warps",
]  # fmt: skip

UNITS, STAGES, _WARPS = 16, 3, 8
_MATRICES = 2  # that are read: W and W.var
# What one nanosecond of an H200 gives, roughly; only the ratio matters: bytes from the level-2
# cache to all multiprocessors together, and multiplications on one of them, in TF32.
_BYTES, _MULTIPLICATIONS = 5000.0, 250.0


class Plan(NamedTuple):
    """How a (rows, H) state is divided: `UNITS` units of so many rows for each program."""

    programs: int
    rows: int


@cache
def room(device: torch.device) -> tuple[int, int]:
    """How many programs may wait for one another, and bytes of memory that each has to itself."""
    if device.type != "cuda":
        return 1, 2**17  # in the interpreter programs run one by one
    properties = torch.cuda.get_device_properties(device)
    memory = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return properties.multi_processor_count, memory


@cache
def make_plan(rows: int, size: int, gates: int, device: torch.device) -> Plan | None:
    """The division that costs the least, None where the programs cannot all be there at once."""
    most, _ = room(device)
    across = size // UNITS
    plans: list[tuple[float, Plan]] = []
    for block_rows in (16, 32, 64, 128):
        blocks = -(-rows // block_rows) * across
        # Weights, and two moments of the state.
        traffic = blocks * 4 * size * (_MATRICES * gates * UNITS + 2 * block_rows)
        work = 3 * size * triton.next_power_of_2(gates) * UNITS * block_rows
        if blocks <= most or most == 1:
            cost = traffic / _BYTES + work / _MULTIPLICATIONS
            plans.append((cost, Plan(min(blocks, most), block_rows)))
    return min(plans)[1] if plans and size % UNITS == 0 else None


def exact() -> bool:
    """Whether products of float32 are to be of float32, without tensor cores."""
    return bool(torch.backends.cuda.matmul.fp32_precision != "tf32")


def held_terms(weight: Tensor, plan: Plan, rows: int, columns: int) -> int:
    """Terms, a power of 2, whose weights stay on the chip for the whole sequence.

    That is for the compiler to do, and it runs out of registers if they are many, or the rows, or
    if warps outnumber the columns they share. In float32 it gains by all weights or not at all.
    """
    size = weight.shape[-1]
    is_rounded = weight.itemsize == 2
    several_blocks = -(-rows // plan.rows) * (size // UNITS) > plan.programs
    if plan.rows > 16 or columns < 64 or several_blocks or (exact() and not is_rounded):
        return 0
    held = min(1 << (size.bit_length() - 1), 256)
    return held if is_rounded or held == size else 0


def warps(rows: int, backward: bool) -> int:
    """Few backward, where blocks are narrow and more warps would multiply the same again."""
    return _WARPS // 2 if backward and rows <= 32 else _WARPS


def inner_terms(weight: Tensor, rows: int, columns: int) -> int:
    """Terms at a time: a power of 2 that divides H, few enough for what is in flight to fit."""
    _, memory = room(weight.device)
    size = weight.shape[-1]
    inner = min(size & -size, 128)
    # Of many rows the compiler keeps another copy in the same memory.
    needed = (
        (STAGES - 1)
        * weight.itemsize
        * (2 * rows + _MATRICES * columns)
        * (1 if rows < 64 else 1.6)
    )
    while inner > 16 and inner * needed > 0.9 * memory:
        inner //= 2
    return inner
