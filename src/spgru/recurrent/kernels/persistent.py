"""All steps in one kernel: the programs stay, and wait for one another between steps.

A program has some units of some rows for the whole sequence. At every step it multiplies the state
with its units' weights, all gates and both moments, and finishes them; then all programs meet,
since the next products read what all have written. Backward likewise with the gradients of the
products.

Nothing is launched between steps, and what bounds a step is how fast weights and state come out of
the level-2 cache. Blocks are chosen for the fewest such bytes; where they would not all fit on the
chip at once, waiting for one another is not possible and `spgru.recurrent.kernels.scan` launches
every step.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.recurrent.kernels.layout import load_unit, store_gate, store_state

__all__ = ["Persistent"]

# What one nanosecond of an H200 gives, as measured; only the ratios matter. Bytes from the level-2
# cache to all multiprocessors together, and multiplications of TF32 on one of them: many rows use
# the faster instructions.
_BYTES = 5000.0
_FEW, _MANY = 450.0, 600.0


_WARPS, _STAGES = 8, 3
_ROOM = 200_000
"""Bytes of shared memory to use; an H100 has 227 KB"""


class Division(NamedTuple):
    """How a (rows, H) state is divided among programs."""

    programs: int
    rows: int
    units: int


class Plan(NamedTuple):
    forward: Division
    backward: Division


@cache
def _multiprocessors(device: torch.device) -> int:
    """How many programs may wait for one another; in the interpreter they run one by one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _divide(rows: int, size: int, gates: int, units: tuple[int, ...], room: int) -> Division | None:
    """Into blocks that cost the least, None where no division fits."""
    found: list[tuple[float, Division]] = []
    for block_rows in (16, 32, 64, 128):
        for block_units in units:
            blocks = -(-rows // block_rows) * (size // block_units)
            if size % block_units or (blocks > room > 1):
                continue
            # Weights of three products, and two moments of the state.
            traffic = blocks * 4 * size * (3 * gates * block_units + 2 * block_rows)
            work = 3 * size * triton.next_power_of_2(gates) * block_units * block_rows
            cost = traffic / _BYTES + work / (_FEW if block_rows < 64 else _MANY)
            found.append((cost, Division(min(blocks, room), block_rows, block_units)))
    return min(found)[1] if found else None


@cache
def make_plan(rows: int, size: int, gates: int, device: torch.device) -> Plan | None:
    """How the work is divided, None where the programs cannot all be there at once."""
    if size % 16:
        return None
    room = _multiprocessors(device)
    forward = _divide(rows, size, gates, (8, 16), room)
    backward = _divide(rows, size, gates, (16,), room)
    return None if forward is None or backward is None else Plan(forward, backward)


@triton.jit
def _meet(arrived, expected):
    """Wait until programs have come here `expected` times in sum; what they wrote is there then."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass
    tl.debug_barrier()


@triton.jit
def _left(first, rows: tl.constexpr, inner: tl.constexpr, parts: tl.constexpr):
    """Rows and terms of the first factor of a product, as indices that broadcast.

    In `parts` parts, every warp sums terms of its own. Otherwise all warps would read the same rows
    again, and reading is what few rows wait for.
    """
    row, i = first + tl.arange(0, rows), tl.arange(0, inner // parts)
    part = tl.arange(0, parts) * (inner // parts)
    split = row[None, :, None], part[:, None, None] + i[None, None, :]
    return (row[:, None], i[None, :]) if parts == 1 else split


@triton.jit
def _right(first, columns: tl.constexpr, inner: tl.constexpr, parts: tl.constexpr):
    """Columns and terms of the second factor."""
    column, i = first + tl.arange(0, columns), tl.arange(0, inner // parts)
    part = tl.arange(0, parts) * (inner // parts)
    split = column[None, None, :], part[:, None, None] + i[None, :, None]
    return (column[None, :], i[:, None]) if parts == 1 else split


@triton.jit
def _zeros(rows: tl.constexpr, columns: tl.constexpr, parts: tl.constexpr):
    shape: tl.constexpr = (rows, columns) if parts == 1 else (parts, rows, columns)
    return tl.zeros(shape, tl.float32)


@triton.jit
def _total(x, parts: tl.constexpr):
    return x if parts == 1 else tl.sum(x, 0)


@triton.jit
def _multiply(
    mean, operands, weight, weights, p_mean, p_var, first_row, first_unit, rows,
    size: tl.constexpr, gates: tl.constexpr, block_rows: tl.constexpr, units: tl.constexpr,
    inner: tl.constexpr, parts: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """All gates of some units: W h, and W.var h^2 + (W.var + W^2) h.var, for (rows, gates H).

    Args:
        mean: (rows, H)
        operands: (rows, 2 H), of which the second half is h.var; h^2 is quicker made than read
        weight: (gates H, H)
        weights: (gates H, 2 H)
    """
    padded: tl.constexpr = triton.next_power_of_2(gates) * units
    row, i = _left(first_row, block_rows, inner, parts)
    output, j = _right(0, padded, inner, parts)
    column = output // units * size + first_unit + output % units
    here, real = row < rows, output < gates * units
    mean_at, var_at = mean + row * size + i, operands + (2 * row + 1) * size + i
    weight_at, weights_at = weight + column * size + j, weights + column * 2 * size + j
    # Three sums, not two: sums that depend on each other would be spread badly over threads.
    by_mean = _zeros(block_rows, padded, parts)
    by_square = _zeros(block_rows, padded, parts)
    by_var = _zeros(block_rows, padded, parts)
    for start in range(0, size, inner):
        # Past the level-1 cache, which does not see what other programs wrote.
        h = tl.load(mean_at + start, here, 0.0, cache_modifier=".cg")
        var = tl.load(var_at + start, here, 0.0, cache_modifier=".cg")
        w = tl.load(weight_at + start, real, 0.0)
        w_var = tl.load(weights_at + start, real, 0.0)
        w_second = tl.load(weights_at + size + start, real, 0.0)
        by_mean = tl.dot(h, w, by_mean, input_precision=precision)
        by_square = tl.dot(h * h, w_var, by_square, input_precision=precision)
        by_var = tl.dot(var, w_second, by_var, input_precision=precision)
    row = (first_row + tl.arange(0, block_rows))[:, None]
    output = tl.arange(0, padded)[None, :]
    at = row * gates * size + output // units * size + first_unit + output % units
    mask = (row < rows) & (output < gates * units)
    tl.store(p_mean + at, _total(by_mean, parts), mask)
    tl.store(p_var + at, _total(by_square + by_var, parts), mask)


@triton.jit
def _multiply_back(
    mean_grad, var_grad, weight, weights, by_product, by_products, first_row, first_unit, rows,
    size: tl.constexpr, gates: tl.constexpr, block_rows: tl.constexpr, units: tl.constexpr,
    inner: tl.constexpr, parts: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """The adjoint of `_multiply` for some units of h, h^2 and h.var."""
    width: tl.constexpr = gates * size
    row, i = _left(first_row, block_rows, inner, parts)
    unit, j = _right(first_unit, units, inner, parts)
    here, grad_at = row < rows, row * width + i
    weight_at, weights_at = weight + j * size + unit, weights + j * 2 * size + unit
    by_mean = _zeros(block_rows, units, parts)
    by_square = _zeros(block_rows, units, parts)
    by_var = _zeros(block_rows, units, parts)
    for start in range(0, width, inner):
        of_mean = tl.load(mean_grad + grad_at + start, here, 0.0, cache_modifier=".cg")
        of_var = tl.load(var_grad + grad_at + start, here, 0.0, cache_modifier=".cg")
        w = tl.load(weight_at + start * size)
        w_var = tl.load(weights_at + start * 2 * size)
        w_second = tl.load(weights_at + start * 2 * size + size)
        by_mean = tl.dot(of_mean, w, by_mean, input_precision=precision)
        by_square = tl.dot(of_var, w_var, by_square, input_precision=precision)
        by_var = tl.dot(of_var, w_second, by_var, input_precision=precision)
    row = (first_row + tl.arange(0, block_rows))[:, None]
    unit = (first_unit + tl.arange(0, units))[None, :]
    tl.store(by_product + row * size + unit, _total(by_mean, parts), row < rows)
    both = by_products + row * 2 * size + unit
    tl.store(both, _total(by_square, parts), row < rows)
    tl.store(both + size, _total(by_var, parts), row < rows)


@triton.jit
def _forward(
    x_mean, x_var,  # (T, rows, gates H)
    weight, weights, bias, bias_var,
    p_mean, p_var,  # (T, rows, gates H), or (1, rows, gates H) with p_step 0
    first_h_mean, first_h_var, first_c_mean, first_c_var,  # (rows, H)
    h_mean, h_var, c_mean, c_var, operand,  # (T + 1, rows, H)
    operands,  # (T + 1, rows, 2 H)
    arrived, steps, first, direction, rows, p_step,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, parts: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    blocks = tl.cdiv(rows, block_rows) * (size // units)
    width: tl.constexpr = gates * size
    # Loops with a bound that is no constant are `while`: the interpreter cannot count up to one.
    # At k = -1 the first state is put where the others will be.
    k = tl.full((), -1, tl.int64)
    while k < steps:
        before = k * rows * size
        after = before + rows * size
        x_at = (first + direction * k) * rows * width
        p_at = k * p_step
        block = tl.program_id(0)
        while block < blocks:
            first_row = block // (size // units) * block_rows
            first_unit = block % (size // units) * units
            row = (first_row + tl.arange(0, block_rows))[:, None]
            unit = (first_unit + tl.arange(0, units))[None, :]
            mask = (row < rows) & (unit < size)
            if k < 0:
                store_state(
                    h_mean, h_var, operand, operands, row, unit, mask,
                    load_unit(first_h_mean, row, unit, mask, size),
                    load_unit(first_h_var, row, unit, mask, size), size,
                )  # fmt: skip
                if c_mean is not None:
                    c = load_unit(first_c_mean, row, unit, mask, size)
                    cv = load_unit(first_c_var, row, unit, mask, size)
                    store_gate(c_mean, row, unit, mask, c, 0, 1, size)
                    store_gate(c_var, row, unit, mask, cv, 0, 1, size)
            else:
                _multiply(
                    (h_mean if operand is None else operand) + before, operands + 2 * before,
                    weight, weights, p_mean + p_at, p_var + p_at, first_row, first_unit, rows,
                    size, gates, block_rows, units, inner, parts, precision,
                )  # fmt: skip
                # Threads of a program now read what others of it wrote.
                tl.debug_barrier()
                step(
                    x_mean + x_at, x_var + x_at, p_mean + p_at, p_var + p_at, bias, bias_var,
                    h_mean + before, h_var + before,
                    None if c_mean is None else c_mean + before,
                    None if c_var is None else c_var + before,
                    h_mean + after, h_var + after,
                    None if c_mean is None else c_mean + after,
                    None if c_var is None else c_var + after,
                    None if operand is None else operand + after, operands + 2 * after,
                    row, unit, mask, size,
                )  # fmt: skip
            block += programs
        k += 1
        _meet(arrived, (k + 1) * programs)


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var,  # (T, rows, gates H)
    bias, bias_var,
    h_mean, h_var, c_mean, c_var,  # (T + 1, rows, H)
    out_mean, out_var,  # (T, rows, H)
    weight, weights,
    by_product, by_products,  # (rows, H) and (rows, 2 H): 0, which is what the last step gets
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad,  # (T, rows, gates H)
    carried_mean, carried_var,  # (rows, H)
    arrived, steps, first, direction, rows,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, parts: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    blocks = tl.cdiv(rows, block_rows) * (size // units)
    width: tl.constexpr = gates * size
    # Down to k = -1, where only the products of step 0 are left to pass on.
    k = tl.full((), 0, tl.int64) + steps - 1
    while k >= -1:
        before = k * rows * size
        after = before + rows * size
        p_at = k * rows * width
        x_at = (first + direction * k) * rows * width
        out_at = (first + direction * k) * rows * size
        block = tl.program_id(0)
        while block < blocks:
            first_row = block // (size // units) * block_rows
            first_unit = block % (size // units) * units
            if k < steps - 1:
                later = p_at + rows * width
                _multiply_back(
                    (x_mean_grad if p_mean_grad is None else p_mean_grad) + later,
                    (x_var_grad if p_var_grad is None else p_var_grad) + later,
                    weight, weights, by_product, by_products, first_row, first_unit, rows,
                    size, gates, block_rows, units, inner, parts, precision,
                )  # fmt: skip
                tl.debug_barrier()
            if k >= 0:
                row = (first_row + tl.arange(0, block_rows))[:, None]
                unit = (first_unit + tl.arange(0, units))[None, :]
                step(
                    x_mean + x_at, x_var + x_at, p_mean + p_at, p_var + p_at, bias, bias_var,
                    h_mean + before, h_var + before,
                    None if c_mean is None else c_mean + before,
                    None if c_var is None else c_var + before,
                    h_mean + after, out_mean + out_at, out_var + out_at, by_product, by_products,
                    x_mean_grad + x_at, x_var_grad + x_at,
                    None if p_mean_grad is None else p_mean_grad + p_at,
                    None if p_var_grad is None else p_var_grad + p_at,
                    carried_mean, carried_var, row, unit, (row < rows) & (unit < size), size,
                )  # fmt: skip
            block += programs
        _meet(arrived, (steps - k) * programs)
        k -= 1


class Persistent:
    """Both kernels for one cell."""

    def __init__(self, forward: Any, backward: Any, gates: int) -> None:
        self._steps, self._gates = (forward, backward), gates

    def plan(self, rows: int, size: int, device: torch.device) -> Plan | None:
        return make_plan(rows, size, self._gates, device)

    def forward(self, *tensors: Tensor | None, plan: Plan, **sizes: Any) -> None:
        """Tensors as those of `_forward`, up to `arrived`."""
        columns = triton.next_power_of_2(self._gates) * plan.forward.units
        self._launch(_forward, self._steps[0], tensors, plan.forward, columns, **sizes)

    def backward(self, *tensors: Tensor | None, plan: Plan, **sizes: Any) -> None:
        """Tensors as those of `_backward`, up to `arrived`."""
        units = plan.backward.units
        self._launch(_backward, self._steps[1], tensors, plan.backward, units, **sizes)

    def _launch(
        self, kernel: Any, step: Any, tensors: tuple[Tensor | None, ...], division: Division,
        columns: int, order: range, rows: int, size: int, weight: Tensor, p_step: int | None = None,
    ) -> None:  # fmt: skip
        assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
        inner = _inner(size, division.rows, columns, weight.itemsize)
        exact = torch.get_float32_matmul_precision() == "highest"
        # The launch is refused, not stuck, where other work leaves no room for all programs.
        options = {} if division.programs == 1 else {"launch_cooperative_grid": True}
        arrived = torch.zeros(1, dtype=torch.int32, device=weight.device)
        with torch.cuda.device_of(weight):
            kernel[(division.programs,)](
                *tensors, arrived, len(order), order.start, order.step, rows,
                *(() if p_step is None else (p_step,)),
                size=size, gates=self._gates, step=step,
                block_rows=division.rows, units=division.units, inner=inner,
                parts=1 if division.rows >= 64 else min(_WARPS, inner // 16),
                precision="ieee" if exact else "tf32",
                num_warps=_WARPS, num_stages=_STAGES, **options,
            )  # fmt: skip


def _inner(size: int, rows: int, columns: int, itemsize: int) -> int:
    """Terms at a time: a power of 2 that divides H, few enough for what is in flight to fit."""
    inner = min(size & -size, 128)
    while inner > 16 and (_STAGES - 1) * inner * itemsize * (2 * rows + 3 * columns) > _ROOM:
        inner //= 2
    return inner
