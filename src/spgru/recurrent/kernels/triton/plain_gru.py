"""The GRU of plain numbers, for weights that are drawn or held at their means.

Laid out as `spgru.recurrent.kernels.scan`, without the variances. cuDNN has no convolutional GRU,
and wants its weights in one piece of memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.kernels.rows import as_rows
from spgru.functional.products import sums_of_rows
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.by_reference import differentiate, needs_reference, reference_scan
from spgru.recurrent.kernels.prepared import product_dtype, result_dtype
from spgru.recurrent.kernels.products import StepProduct
from spgru.recurrent.kernels.steps import Steps
from spgru.recurrent.kernels.triton.layout import load_gate, load_product, load_unit, store_gate
from spgru.recurrent.kernels.triton.step import StepLauncher, place

__all__ = ["plain_gru_scan"]


@triton.jit
def _gates(x, p, bias, row, column, size: tl.constexpr, mask):
    """r, z, c, and the part of the candidate that r resets."""
    pr = load_product(p, bias, row, column, mask, 0, 3, size)
    pz = load_product(p, bias, row, column, mask, 1, 3, size)
    pc = load_product(p, bias, row, column, mask, 2, 3, size)
    r = tl.sigmoid(load_gate(x, row, column, mask, 0, 3, size) + pr)
    z = tl.sigmoid(load_gate(x, row, column, mask, 1, 3, size) + pz)
    c = 2 * tl.sigmoid(2 * (load_gate(x, row, column, mask, 2, 3, size) + r * pc)) - 1
    return r, z, c, pc


@triton.jit
def _forward_kernel(
    x, p, bias, h, new, operand,
    count, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    _, z, c, _ = _gates(x, p, bias, row, column, size, mask)
    value = c + z * (load_unit(h, row, column, mask, size) - c)
    store_gate(new, row, column, mask, value, 0, 1, size)
    if operand is not None:
        store_gate(operand, row, column, mask, value, 0, 1, size)


@triton.jit
def _backward_kernel(
    x, p, bias, h,  # as they went into the step
    out, by_operand,  # gradients from outside and from the step after
    x_grad, p_grad,
    carried,  # from the update after; then of the update here
    count, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    r, z, c, pc = _gates(x, p, bias, row, column, size, mask)
    by_new = load_unit(out, row, column, mask, size) + load_unit(carried, row, column, mask, size)
    by_new += load_unit(by_operand, row, column, mask, size)
    by_z = by_new * (load_unit(h, row, column, mask, size) - c) * z * (1 - z)
    by_c = by_new * (1 - z) * (1 - c * c)
    by_r = by_c * pc * r * (1 - r)
    store_gate(x_grad, row, column, mask, by_r, 0, 3, size)
    store_gate(x_grad, row, column, mask, by_z, 1, 3, size)
    store_gate(x_grad, row, column, mask, by_c, 2, 3, size)
    store_gate(p_grad, row, column, mask, by_r, 0, 3, size)
    store_gate(p_grad, row, column, mask, by_z, 1, 3, size)
    store_gate(p_grad, row, column, mask, by_c * r, 2, 3, size)
    store_gate(carried, row, column, mask, by_new * z, 0, 1, size)


_forward, _backward = StepLauncher(_forward_kernel), StepLauncher(_backward_kernel)


class _Setting(NamedTuple):
    cell: Cell
    product: StepProduct
    steps: Steps


class _Inputs(NamedTuple):
    """The tensors by which the scan is differentiated."""

    x: Tensor
    """(rows, ..., 3 H) in the order of time"""
    h: Tensor
    """(B, ..., H), the initial state, float32"""
    weight: Tensor
    bias: Tensor | None


class _PlainScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, setting: _Setting, *tensors: Any) -> Tensor:
        a, steps, product = _Inputs(*tensors), setting.steps, setting.product
        size, low = a.h.shape[-1], a.weight.dtype
        rows_each = a.h.shape[1:-1].numel()
        is_rounded = low != torch.float32
        states = a.h.new_empty(steps.total, *a.h.shape[1:])
        operand = torch.empty_like(states, dtype=low) if is_rounded else states
        for buffer in (states, operand) if is_rounded else (states,):
            steps.put_initial(buffer, a.h)
        x, h = steps.split(a.x), steps.split_slots(states)
        operand_slots = steps.split_slots(operand)
        weight = product.pack(a.weight, steps.sequences * rows_each)
        products = []
        for k, (t, n) in enumerate(zip(steps.times, steps.sizes, strict=True)):
            products.append(product.forward(operand_slots[k][:n], weight))
            _forward(
                x=x[t], p=products[k], bias=a.bias, h=h[k], new=h[k + 1],
                operand=operand_slots[k + 1] if is_rounded else None, rows=n * rows_each, size=size,
            )  # fmt: skip
        ctx.save_for_backward(*a, states, operand, *products)
        ctx.setting = setting
        # A copy, because a user may change it in place, and what was kept must stay.
        return steps.after(states).clone()

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> Any:
        *inputs, states, operand = ctx.saved_tensors[:6]
        a, products = _Inputs(*inputs), ctx.saved_tensors[6:]
        steps, product = ctx.setting.steps, ctx.setting.product
        if needs_reference(out):
            needed = ctx.needs_input_grad[1:]
            return None, *differentiate(_reference(ctx.setting), a, needed, [out])
        size = states.shape[-1]
        rows_each = a.h.shape[1:-1].numel()
        x_grad, p_grad = torch.empty_like(a.x), torch.empty_like(a.x, dtype=operand.dtype)
        carried, by_operand = torch.zeros_like(a.h), torch.zeros_like(a.h, dtype=operand.dtype)
        x, outs, x_grads = (steps.split(part) for part in (a.x, as_rows(out), x_grad))
        h, operand_slots = steps.split_slots(states), steps.split_slots(operand)
        p_grads = p_grad.split(steps.sizes)
        for k in reversed(range(steps.count)):
            t, n = steps.times[k], steps.sizes[k]
            _backward(
                x=x[t], p=products[k], bias=a.bias, h=h[k], out=outs[t], by_operand=by_operand,
                x_grad=x_grads[t], p_grad=p_grads[k], carried=carried,
                rows=n * rows_each, size=size,
            )  # fmt: skip
            found = product.by_input(p_grads[k], operand_slots[k][:n], a.weight, by_operand[:n])
            by_operand = found if steps.are_equal else by_operand
        return (
            None, x_grad, carried + by_operand,
            product.by_weight(p_grad, steps.before(operand), a.weight),
            None if a.bias is None else sums_of_rows(p_grad)[0].float(),
        )  # fmt: skip


def _reference(setting: _Setting) -> Any:
    """The output of `_PlainScan` as a function of its inputs, by torch's own operations."""

    def outputs_of(*tensors: Any) -> list[Tensor]:
        a = _Inputs(*tensors)
        hidden = Affine(a.weight.float(), None, a.bias, None, setting.product)
        x = a.x.float()
        return [reference_scan(setting.cell, hidden, x, (a.h,), setting.steps).output]

    return outputs_of


def plain_gru_scan(
    cell: Cell, product: StepProduct, inputs: Tensor, state: Tensor, steps: Steps,
    shape: tuple[int, ...],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`scan` of `gru_step` for plain numbers.

    Args:
        inputs: (*shape, 3 H), or their rows (rows, 3 H)
        state: (*batch, H)
        shape: (T, *batch), or (rows,) if lengths differ

    Returns:
        the state after every step, (*shape, H), and after the last
    """
    hidden = cell.hidden
    low, dtype = product_dtype(hidden.weight), result_dtype(hidden.weight)
    bias = None if hidden.bias is None else as_rows(hidden.bias.float())
    batch = state.shape[:-1]
    output = _PlainScan.apply(
        _Setting(cell, product, steps),
        as_rows(inputs).view(sum(steps.batch_sizes), *batch[1:], inputs.shape[-1]),
        as_rows(state.float()), hidden.to(low).weight, bias,
    )  # fmt: skip
    last = steps.final(output).clone().view(*batch, -1)
    return output.view(*shape, -1).to(dtype), last.to(dtype)
