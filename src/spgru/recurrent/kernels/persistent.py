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

__all__ = ["Persistent", "plan"]

# Bytes in a nanosecond from the level-2 cache to all multiprocessors together, and to one.
_TOTAL_RATE, _OWN_RATE = 5500.0, 110.0


class Plan(NamedTuple):
    """How a (rows, H) state is divided among programs."""

    programs: int
    rows: int
    units: int


@cache
def _multiprocessors(device: torch.device) -> int:
    """How many programs may wait for one another; in the interpreter they run one by one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def plan(rows: int, size: int, gates: int, device: torch.device) -> Plan | None:
    """The division with the least traffic, None where there is none."""
    if size % 16 or size < 16:
        return None
    available = _multiprocessors(device)
    best: tuple[float, Plan] | None = None
    for block_rows in (16, 32, 64, 128):
        for units in (16, 32):
            blocks = triton.cdiv(rows, block_rows) * triton.cdiv(size, units)
            if size % units or (blocks > available > 1):
                continue
            own = 3 * size * (gates * units + block_rows)
            cost = max(own / _OWN_RATE, own * blocks / _TOTAL_RATE)
            if best is None or cost < best[0]:
                best = cost, Plan(min(blocks, available), block_rows, units)
    return None if best is None else best[1]


@triton.jit
def _product(
    x, weight, result, row, rows, column, is_real, length: tl.constexpr,
    row_stride: tl.constexpr, inner_stride: tl.constexpr, result_stride: tl.constexpr,
    inner: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """result[row, column] = sum_i x[row, i] W[column, i], i below `length`.

    Args:
        is_real: which columns there are
        row_stride: of W
        inner_stride: of W
        inner: terms at a time
    """
    i = tl.arange(0, inner)
    here = (row < rows)[:, None]
    x_at = x + row[:, None] * length + i[None, :]
    w_at = weight + column[None, :] * row_stride + i[:, None] * inner_stride
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for start in range(0, length, inner):
        # Past the level-1 cache: other programs wrote these.
        a = tl.load(x_at + start, here, 0.0, cache_modifier=".cg")
        b = tl.load(w_at + start * inner_stride, is_real[None, :], 0.0)
        total = tl.dot(a, b, total, input_precision=precision)
    at = result + row[:, None] * result_stride + column[None, :]
    tl.store(at, total, here & is_real[None, :])


@triton.jit
def _meet(arrived, expected):
    """Wait until all programs have come here `expected` times in sum; what they wrote is there."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass
    tl.debug_barrier()


@triton.jit
def _forward(
    x_mean, x_var,  # (T, rows, gates H)
    weight, weights, bias, bias_var,
    p_mean, p_var,  # (T, rows, gates H), or (1, rows, gates H) with p_step 0
    h_mean, h_var, c_mean, c_var, operand,  # (T + 1, rows, H)
    operands,  # (T + 1, rows, 2 H)
    arrived, steps, first, direction, rows, p_step,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    blocks = tl.cdiv(rows, block_rows) * (size // units)
    width: tl.constexpr = gates * size
    padded: tl.constexpr = triton.next_power_of_2(gates) * units
    gate = tl.arange(0, padded) // units
    # Loops with a bound that is no constant are `while`: the interpreter cannot count up to one.
    k = tl.full((), 0, tl.int64)
    while k < steps:
        before = k * rows * size
        after = before + rows * size
        x_at = (first + direction * k) * rows * width
        p_at = k * p_step
        block = tl.program_id(0)
        while block < blocks:
            row = block // (size // units) * block_rows + tl.arange(0, block_rows)
            first_unit = block % (size // units) * units
            column = gate * size + first_unit + tl.arange(0, padded) % units
            source = h_mean if operand is None else operand
            _product(
                source + before, weight, p_mean + p_at, row, rows, column, gate < gates,
                size, size, 1, width, inner, precision,
            )  # fmt: skip
            _product(
                operands + 2 * before, weights, p_var + p_at, row, rows, column, gate < gates,
                2 * size, 2 * size, 1, width, inner, precision,
            )  # fmt: skip
            # Threads of a program now read what others of it wrote.
            tl.debug_barrier()
            here = (row < rows)[:, None]
            unit = (first_unit + tl.arange(0, units))[None, :]
            step(
                x_mean + x_at, x_var + x_at, p_mean + p_at, p_var + p_at, bias, bias_var,
                h_mean + before, h_var + before,
                None if c_mean is None else c_mean + before,
                None if c_var is None else c_var + before,
                h_mean + after, h_var + after,
                None if c_mean is None else c_mean + after,
                None if c_var is None else c_var + after,
                None if operand is None else operand + after, operands + 2 * after,
                row[:, None], unit, here & (unit < size), size,
            )  # fmt: skip
            block += programs
        k += 1
        _meet(arrived, k * programs)


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var,  # (T, rows, gates H)
    bias, bias_var,
    h_mean, h_var, c_mean, c_var,  # (T + 1, rows, H)
    out_mean, out_var,  # (T, rows, H)
    weight, weights,
    by_product, by_products,  # (rows, H) and (rows, 2 H), of the last step at first: 0
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad,  # (T, rows, gates H)
    carried_mean, carried_var,  # (rows, H)
    arrived, steps, first, direction, rows,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    blocks = tl.cdiv(rows, block_rows) * (size // units)
    width: tl.constexpr = gates * size
    both = tl.arange(0, 2 * units)
    done = tl.full((), 0, tl.int64)
    while done <= steps:
        k = steps - 1 - done
        before = k * rows * size
        after = before + rows * size
        p_at = k * rows * width
        x_at = (first + direction * k) * rows * width
        out_at = (first + direction * k) * rows * size
        block = tl.program_id(0)
        while block < blocks:
            row = block // (size // units) * block_rows + tl.arange(0, block_rows)
            first_unit = block % (size // units) * units
            unit = first_unit + tl.arange(0, units)
            if done > 0:
                later = p_at + rows * width
                mean_grad = x_mean_grad if p_mean_grad is None else p_mean_grad
                var_grad = x_var_grad if p_var_grad is None else p_var_grad
                _product(
                    mean_grad + later, weight, by_product, row, rows, unit, unit < size,
                    width, 1, size, size, inner, precision,
                )  # fmt: skip
                column = both // units * size + first_unit + both % units
                _product(
                    var_grad + later, weights, by_products, row, rows, column, both >= 0,
                    width, 1, 2 * size, 2 * size, inner, precision,
                )  # fmt: skip
                tl.debug_barrier()
            if done < steps:
                step(
                    x_mean + x_at, x_var + x_at, p_mean + p_at, p_var + p_at, bias, bias_var,
                    h_mean + before, h_var + before,
                    None if c_mean is None else c_mean + before,
                    None if c_var is None else c_var + before,
                    h_mean + after, out_mean + out_at, out_var + out_at, by_product, by_products,
                    x_mean_grad + x_at, x_var_grad + x_at,
                    None if p_mean_grad is None else p_mean_grad + p_at,
                    None if p_var_grad is None else p_var_grad + p_at,
                    carried_mean, carried_var,
                    row[:, None], unit[None, :], (row < rows)[:, None] & (unit < size)[None, :],
                    size,
                )  # fmt: skip
            block += programs
        done += 1
        _meet(arrived, done * programs)


class Persistent:
    """Both kernels for one cell."""

    def __init__(self, forward: Any, backward: Any, gates: int) -> None:
        self._steps, self._gates = (forward, backward), gates

    def plan(self, rows: int, size: int, device: torch.device) -> Plan | None:
        return plan(rows, size, self._gates, device)

    def forward(self, *tensors: Tensor | None, **sizes: Any) -> None:
        """Arguments as those of `_forward`: tensors, then `steps` to `size` and a plan."""
        self._launch(_forward, self._steps[0], tensors, **sizes)

    def backward(self, *tensors: Tensor | None, **sizes: Any) -> None:
        self._launch(_backward, self._steps[1], tensors, **sizes)

    def _launch(
        self, kernel: Any, step: Any, tensors: tuple[Tensor | None, ...], plan: Plan,
        order: range, rows: int, size: int, p_step: int | None = None,
    ) -> None:  # fmt: skip
        first = tensors[0]
        assert first is not None
        assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
        arrived = torch.zeros(1, dtype=torch.int32, device=first.device)
        exact = torch.get_float32_matmul_precision() == "highest"
        # The launch is refused, not stuck, where other work leaves no room for all programs.
        options = {} if plan.programs == 1 else {"launch_cooperative_grid": True}
        with torch.cuda.device_of(first):
            kernel[(plan.programs,)](
                *tensors, arrived, len(order), order.start, order.step, rows,
                *(() if p_step is None else (p_step,)),
                size=size, gates=self._gates, step=step,
                block_rows=plan.rows, units=plan.units, inner=_inner(size, plan),
                precision="ieee" if exact else "tf32",
                num_warps=4 if plan.rows < 64 else 8, num_stages=3, **options,
            )  # fmt: skip


def _inner(size: int, plan: Plan) -> int:
    """Terms of a product at a time: a power of 2 that divides H, and fits the chip three times."""
    return min(size & -size, 128 if plan.rows < 64 else 64)
