"""All steps in one kernel: the programs stay, and wait for one another between steps.

A program has some units of some rows for the whole sequence. At every step it multiplies the state
with its units' weights, all gates and both moments, and finishes them; then comes a barrier,
since the next products read what all have written. Backward likewise with the gradients of the
products.

Nothing is launched between steps, and what bounds a step is how fast weights and state come out of
the level-2 cache, and then how fast a program multiplies; blocks are chosen for both. Weights that
find room on the chip are read once, forward. Where the programs would not all fit on it at once,
waiting for one another is not possible and `spgru.recurrent.kernels.scan` launches every step.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from spgru.recurrent.kernels.steps import Steps
from spgru.recurrent.kernels.triton import planning
from spgru.recurrent.kernels.triton.launch import Launcher
from spgru.recurrent.kernels.triton.layout import load_along, load_gates, load_state, store_state
from spgru.recurrent.kernels.triton.planning import Plan

__all__ = ["Persistent"]


@triton.jit
def _barrier(arrived, times, across):
    """A barrier among the programs with the same rows, the only ones that read these rows.

    After it they see what the others wrote before it.

    Args:
        arrived: a counter for every block of rows
        times: how many times they have come here, this time included
        across: programs that share rows
    """
    arrived += tl.program_id(0) // across
    expected = times * tl.minimum(across, tl.num_programs(0))
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < expected:
        pass
    tl.debug_barrier()


@triton.jit
def _place(block, size: tl.constexpr, block_rows: tl.constexpr, units: tl.constexpr):
    """The rows (block_rows, 1) and units (1, units) of a block."""
    across: tl.constexpr = size // units
    row = block // across * block_rows + tl.arange(0, block_rows)
    unit = block % across * units + tl.arange(0, units)
    return row[:, None], unit[None, :]


@triton.jit
def _second_moment(w, w_var):
    return tl.fma(w, w, w_var)  # one rounding, and in bfloat16 one instruction for two of them


@triton.jit
def _load_weights(
    weight, weight_moments, first_unit, term,
    size: tl.constexpr, gates: tl.constexpr, units: tl.constexpr,
):  # fmt: skip
    """W and W.var of all gates of some units, (terms, gates x units) filled up to a power of 2.

    Args:
        weight: (gates H, H)
        weight_moments: (gates H, 2 H), of which the first half is W.var; W.var + g W^2 is quicker
            computed than read
        term: (terms, 1)
    """
    output = tl.arange(0, triton.next_power_of_2(gates) * units)[None, :]
    column = output // units * size + first_unit + output % units
    real = output < gates * units
    w = tl.load(weight + column * size + term, real, 0.0)
    return w, tl.load(weight_moments + column * 2 * size + term, real, 0.0)


@triton.jit
def _add_products(h, hv, w, w_var, sums, gained: tl.constexpr, precision: tl.constexpr):
    """To the sums of W h, W.var h^2 and (W.var + W^2) h.var.

    With gains to those of W h, W.var (h^2 + h.var) and W^2 h.var, of which the last still lacks its
    gain: so gains cost nothing until the end.
    """
    by_mean, by_square, by_var = sums
    by_mean = tl.dot(h, w, by_mean, input_precision=precision)
    if gained:
        by_square = tl.dot(h * h + hv, w_var, by_square, input_precision=precision)
        by_var = tl.dot(hv, w * w, by_var, input_precision=precision)
    else:
        by_square = tl.dot(h * h, w_var, by_square, input_precision=precision)
        by_var = tl.dot(hv, _second_moment(w, w_var), by_var, input_precision=precision)
    return by_mean, by_square, by_var


@triton.jit
def _multiply(
    mean, var, weight, weight_moments, gain, held_weights, p_mean, p_var, row, first_unit, rows,
    size: tl.constexpr, stride: tl.constexpr, gates: tl.constexpr, block_rows: tl.constexpr,
    units: tl.constexpr, inner: tl.constexpr, held: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """All gates of some units: W h, and W.var h^2 + (W.var + g W^2) h.var, for (rows, gates H).

    Args:
        mean: (rows, H)
        var: h.var, a row every `stride` numbers
        weight, weight_moments: see `_load_weights`
        gain: g, (gates H), or None for 1
        held_weights: the first `held` terms of both, if `held` is not 0
    """
    padded: tl.constexpr = triton.next_power_of_2(gates) * units
    here = row < rows
    i, j = tl.arange(0, inner)[None, :], tl.arange(0, inner)[:, None]
    mean_at, var_at = mean + row * size, var + row * stride
    # Past the level-1 cache, which does not see what other programs wrote.
    if held > 0:  # asked for first and used last
        known = tl.arange(0, held)[None, :]
        first_h = tl.load(mean_at + known, here, 0.0, cache_modifier=".cg")
        first_hv = tl.load(var_at + known, here, 0.0, cache_modifier=".cg")
    # Three sums, not two: sums that depend on each other would be spread badly over threads.
    by_mean = tl.zeros((block_rows, padded), tl.float32)
    sums = by_mean, tl.zeros_like(by_mean), tl.zeros_like(by_mean)
    for start in range(held, size, inner):
        h = tl.load(mean_at + start + i, here, 0.0, cache_modifier=".cg")
        hv = tl.load(var_at + start + i, here, 0.0, cache_modifier=".cg")
        w, w_var = _load_weights(weight, weight_moments, first_unit, start + j, size, gates, units)
        sums = _add_products(h, hv, w, w_var, sums, gain is not None, precision)
    if held > 0:
        w, w_var = held_weights
        sums = _add_products(first_h, first_hv, w, w_var, sums, gain is not None, precision)
    by_mean, by_square, by_var = sums
    output = tl.arange(0, padded)[None, :]
    column = output // units * size + first_unit + output % units
    at = row * gates * size + column
    if gain is not None:
        by_var *= tl.load(gain + column, output < gates * units, 0.0)
    real = here & (output < gates * units)
    tl.store(p_mean + at, by_mean, real)
    tl.store(p_var + at, by_square + by_var, real)


@triton.jit
def _multiply_back(
    mean_grad, var_grad, weight, weight_moments, gain, by_operand_mean, by_operand_moments, row,
    unit, rows,
    size: tl.constexpr, gates: tl.constexpr, block_rows: tl.constexpr, units: tl.constexpr,
    inner: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """The adjoint of `_multiply` for some units of h, h^2 and h.var."""
    width: tl.constexpr = gates * size
    i, j = tl.arange(0, inner)[None, :], tl.arange(0, inner)[:, None]
    here, grad_at = row < rows, row * width + i
    weight_at, weight_moments_at = weight + j * size + unit, weight_moments + j * 2 * size + unit
    by_mean = tl.zeros((block_rows, units), tl.float32)
    by_square = tl.zeros((block_rows, units), tl.float32)
    by_var = tl.zeros((block_rows, units), tl.float32)
    for start in range(0, width, inner):
        of_mean = tl.load(mean_grad + grad_at + start, here, 0.0, cache_modifier=".cg")
        of_var = tl.load(var_grad + grad_at + start, here, 0.0, cache_modifier=".cg")
        w = tl.load(weight_at + start * size)
        w_var = tl.load(weight_moments_at + start * 2 * size)
        by_mean = tl.dot(of_mean, w, by_mean, input_precision=precision)
        by_square = tl.dot(of_var, w_var, by_square, input_precision=precision)
        if gain is None:
            second = _second_moment(w, w_var)
        else:
            gained = tl.load(gain + start + j) * w
            second = tl.fma(gained, w.to(tl.float32), w_var.to(tl.float32)).to(w.dtype)
        by_var = tl.dot(of_var, second, by_var, input_precision=precision)
    tl.store(by_operand_mean + row * size + unit, by_mean, here)
    both = by_operand_moments + row * 2 * size + unit
    tl.store(both, by_square, here)
    tl.store(both + size, by_var, here)


@triton.jit
def _forward(
    x_mean, x_var,  # (T, rows, gates H)
    weight, weight_moments, gain, bias, bias_var, coherence,
    p_mean, p_var,  # (T, rows, gates H), or (1, rows, gates H) with p_step 0
    first_h_mean, first_h_var, first_c_mean, first_c_var,  # (rows, H)
    h_mean, h_var, c_mean, c_var, operand_mean,  # (T + 1, rows, H)
    operand_moments,  # (T + 1, rows, 2 H) if joined, else (T + 1, rows, H) or None
    arrived, steps, first, direction, rows, p_step,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr, joined: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, held: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    blocks = tl.cdiv(rows, block_rows) * (size // units)
    width: tl.constexpr = gates * size
    # Loops with a bound that is no constant are `while`: the interpreter cannot count up to one.
    # Before the steps the first state is put where the others will be.
    block = tl.program_id(0)
    while block < blocks:
        row, unit = _place(block, size, block_rows, units)
        mask = (row < rows) & (unit < size)
        store_state(
            h_mean, h_var, c_mean, c_var, operand_mean, operand_moments, row, unit, mask,
            load_state(first_h_mean, first_h_var, first_c_mean, first_c_var, row, unit, mask, size),
            size, joined,
        )  # fmt: skip
        block += programs
    held_weights = None
    if held > 0:  # on the chip from now on
        held_weights = _load_weights(
            weight, weight_moments, tl.program_id(0) % (size // units) * units,
            tl.arange(0, held)[:, None], size, gates, units,
        )  # fmt: skip
    k = tl.full((), 0, tl.int64)
    while k < steps:
        _barrier(arrived, k + 1, size // units)
        before = k * rows * size
        after = before + rows * size
        x_at, p_at = (first + direction * k) * rows * width, k * p_step
        block = tl.program_id(0)
        while block < blocks:
            row, unit = _place(block, size, block_rows, units)
            mask = (row < rows) & (unit < size)
            # Asked for before the products, which take longer than these take to come.
            x = load_gates(x_mean + x_at, None, row, unit, mask, gates, size)
            xv = load_gates(x_var + x_at, None, row, unit, mask, gates, size)
            state = load_state(
                h_mean + before, h_var + before,
                None if c_mean is None else c_mean + before,
                None if c_var is None else c_var + before, row, unit, mask, size,
            )  # fmt: skip
            if joined:
                var = operand_moments + 2 * before + size
            else:
                var = (h_var if operand_moments is None else operand_moments) + before
            _multiply(
                (h_mean if operand_mean is None else operand_mean) + before, var, weight,
                weight_moments, gain, held_weights, p_mean + p_at, p_var + p_at, row,
                block % (size // units) * units, rows, size, 2 * size if joined else size,
                gates, block_rows, units, inner, held,
                precision,
            )  # fmt: skip
            # Threads of a program now read what others of it wrote: taking the sums apart by gates
            # between threads is slower than the way over the level-2 cache.
            tl.debug_barrier()
            p = load_gates(p_mean + p_at, bias, row, unit, mask, gates, size)
            pv = load_gates(p_var + p_at, bias_var, row, unit, mask, gates, size)
            state = step(x, xv, p, pv, state, load_along(coherence, unit, mask, size))
            store_state(
                h_mean + after, h_var + after,
                None if c_mean is None else c_mean + after,
                None if c_var is None else c_var + after,
                None if operand_mean is None else operand_mean + after,
                None if operand_moments is None else operand_moments + (2 if joined else 1) * after,
                row, unit, mask, state, size, joined,
            )  # fmt: skip
            block += programs
        k += 1


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var,  # (T, rows, gates H)
    bias, bias_var, coherence,
    h_mean, h_var, c_mean, c_var,  # (T + 1, rows, H)
    out_mean, out_var,  # (T, rows, H)
    weight, weight_moments, gain,
    by_operand_mean, by_operand_moments,  # (rows, H) and (rows, 2 H), 0 for the last step
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad,  # (T, rows, gates H)
    coherence_grad,  # (T, rows, H)
    carried_mean, carried_var,  # (rows, H)
    arrived, steps, first, direction, rows,
    size: tl.constexpr, gates: tl.constexpr, step: tl.constexpr,
    block_rows: tl.constexpr, units: tl.constexpr, inner: tl.constexpr, precision: tl.constexpr,
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
            row, unit = _place(block, size, block_rows, units)
            if k < steps - 1:
                later = p_at + rows * width
                _multiply_back(
                    (x_mean_grad if p_mean_grad is None else p_mean_grad) + later,
                    (x_var_grad if p_var_grad is None else p_var_grad) + later,
                    weight, weight_moments, gain, by_operand_mean, by_operand_moments, row, unit,
                    rows, size, gates, block_rows, units, inner, precision,
                )  # fmt: skip
                tl.debug_barrier()
            if k >= 0:
                step(
                    x_mean + x_at, x_var + x_at, p_mean + p_at, p_var + p_at, bias, bias_var,
                    coherence, h_mean + before, h_var + before,
                    None if c_mean is None else c_mean + before,
                    None if c_var is None else c_var + before,
                    h_mean + after, out_mean + out_at, out_var + out_at,
                    by_operand_mean, by_operand_moments,
                    x_mean_grad + x_at, x_var_grad + x_at,
                    None if p_mean_grad is None else p_mean_grad + p_at,
                    None if p_var_grad is None else p_var_grad + p_at,
                    None if coherence_grad is None else coherence_grad + before,
                    carried_mean, carried_var, row, unit, (row < rows) & (unit < size), size,
                )  # fmt: skip
            block += programs
        k -= 1
        if k >= -1:
            _barrier(arrived, steps - 1 - k, size // units)


class Persistent:
    """Both kernels for one cell. They answer whether the chip could run them."""

    def __init__(self, forward: Any, backward: Any, gates: int) -> None:
        self._forward_step, self._backward_step, self._gates = forward, backward, gates

    def plan(self, rows: int, size: int, device: torch.device) -> Plan | None:
        return planning.make_plan(rows, size, self._gates, device)

    def forward(self, plan: Plan, steps: Steps, keeps_products: bool, **tensors: Any) -> bool:
        """Run `_forward`, whose tensors these are.

        Args:
            keeps_products: whether there is memory for the products of every step
        """
        x, h, weight = tensors["x_mean"], tensors["h_mean"], tensors["weight"]
        size = h.shape[-1]
        rows = h.numel() // size // (steps.count + 1)
        columns = triton.next_power_of_2(self._gates) * planning.UNITS
        inner = planning.inner_terms(weight, plan.rows, columns)
        held = planning.held_terms(weight, plan, rows, columns)
        if (size - held) % inner:
            raise ValueError(f"{size - held} terms cannot be taken {inner} at a time")
        numbers = {
            "rows": rows, "size": size, "step": self._forward_step, "inner": inner,
            "p_step": x.numel() // steps.count if keeps_products else 0, "joined": keeps_products,
        }  # fmt: skip
        # Smaller chips have no room for weights that stay.
        return any(
            self._launch(_launch_forward, plan, steps, tensors, {**numbers, "held": terms})
            for terms in dict.fromkeys((held, 0))
        )

    def backward(self, plan: Plan, steps: Steps, **tensors: Any) -> bool:
        """Run `_backward`, whose tensors these are."""
        h, weight = tensors["carried_mean"], tensors["weight"]
        size = h.shape[-1]
        numbers = {
            "rows": h.numel() // size, "size": size, "step": self._backward_step,
            "inner": planning.inner_terms(weight, plan.rows, planning.UNITS),
        }  # fmt: skip
        return self._launch(_launch_backward, plan, steps, tensors, numbers)

    def _launch(
        self, launcher: Launcher, plan: Plan, steps: Steps, tensors: dict[str, Any],
        numbers: dict[str, Any],
    ) -> bool:  # fmt: skip
        # All programs start together or not at all: none waits for one that cannot come.
        options = {} if plan.programs == 1 else {"launch_cooperative_grid": True}
        arrived = torch.zeros(
            -(-numbers["rows"] // plan.rows), dtype=torch.int32, device=tensors["x_mean"].device
        )
        tensors["arrived"] = arrived
        numbers |= {
            "steps": steps.count, "first": steps.times.start, "direction": steps.times.step,
            "gates": self._gates, "block_rows": plan.rows, "units": planning.UNITS,
            "precision": "ieee" if planning.exact() else "tf32",
        }  # fmt: skip
        try:
            launcher(
                plan.programs, tensors, numbers,
                num_warps=planning.warps(plan.rows, launcher is _launch_backward),
                num_stages=planning.STAGES, **options,
            )  # fmt: skip
        except OutOfResources:
            return False
        return True


_launch_forward, _launch_backward = Launcher(_forward), Launcher(_backward)
