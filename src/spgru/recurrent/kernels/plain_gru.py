"""The GRU of plain numbers, for weights that are drawn or held at their means.

Laid out as `spgru.recurrent.kernels.scan`, without the variances. cuDNN has no convolutional GRU,
and wants its weights in one piece of memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.kernels.rows import as_rows
from spgru.recurrent.kernels.layout import load_gate, load_product, load_unit, store_gate
from spgru.recurrent.kernels.products import (
    Product,
    product_dtype,
    refuse_what_kernels_cannot,
    result_dtype,
    sum_of_rows,
)
from spgru.recurrent.kernels.steps import Launch, place

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
    out, by_product,  # gradients from outside and from the step after
    x_grad, p_grad,
    h_grad,  # from the update after; then of the update here
    count, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    r, z, c, pc = _gates(x, p, bias, row, column, size, mask)
    by_new = load_unit(out, row, column, mask, size) + load_unit(h_grad, row, column, mask, size)
    by_new += load_unit(by_product, row, column, mask, size)
    by_z = by_new * (load_unit(h, row, column, mask, size) - c) * z * (1 - z)
    by_c = by_new * (1 - z) * (1 - c * c)
    by_r = by_c * pc * r * (1 - r)
    store_gate(x_grad, row, column, mask, by_r, 0, 3, size)
    store_gate(x_grad, row, column, mask, by_z, 1, 3, size)
    store_gate(x_grad, row, column, mask, by_c, 2, 3, size)
    store_gate(p_grad, row, column, mask, by_r, 0, 3, size)
    store_gate(p_grad, row, column, mask, by_z, 1, 3, size)
    store_gate(p_grad, row, column, mask, by_c * r, 2, 3, size)
    store_gate(h_grad, row, column, mask, by_new * z, 0, 1, size)


_forward, _backward = Launch(_forward_kernel), Launch(_backward_kernel)


class _PlainGruScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        product: Product,
        order: range,
    ) -> tuple[Tensor, Tensor]:
        steps, *batch, _ = x.shape
        size, low = h.shape[-1], weight.dtype
        rows = h.numel() // size
        rounded = low != torch.float32
        states = x.new_empty(steps + 1, *batch, size, dtype=torch.float32)
        operand = torch.empty_like(states, dtype=low) if rounded else states
        products: list[Tensor] = []
        states[0] = h
        operand[0] = h
        for k, t in enumerate(order):
            products.append(product.forward(operand[k], weight))
            _forward(
                x[t], products[k], bias, states[k], states[k + 1],
                operand[k + 1] if rounded else None, rows=rows, size=size,
            )  # fmt: skip
        ctx.save_for_backward(x, states, operand, weight, bias, *products)
        ctx.product, ctx.order = product, order
        # Copies, because a user may change them in place, and what was kept must stay.
        outputs = states[1:].flip(0) if order.step < 0 else states[1:].clone()
        return outputs, states[-1].clone()

    @staticmethod
    def backward(ctx: Any, out: Tensor, last: Tensor) -> Any:
        refuse_what_kernels_cannot(out, last)
        x, states, operand, weight, bias, *products = ctx.saved_tensors
        product, order, out = ctx.product, ctx.order, as_rows(out)
        size = states.shape[-1]
        rows = states[0].numel() // size
        x_grad, p_grad = torch.empty_like(x), x.new_empty(x.shape, dtype=operand.dtype)
        h_grad, by_product = as_rows(last).clone(), torch.zeros_like(operand[0])
        for k in reversed(range(len(order))):
            t = order[k]
            _backward(
                x[t], products[k], bias, states[k], out[t], by_product,
                x_grad[t], p_grad[k], h_grad, rows=rows, size=size,
            )  # fmt: skip
            by_product = product.by_input(p_grad[k], operand[k], weight)
        return (
            x_grad, h_grad + by_product,
            product.by_weight(p_grad, operand[:-1], weight),
            None if bias is None else sum_of_rows(p_grad).float(), None, None,
        )  # fmt: skip


def _as_float_rows(x: Tensor) -> Tensor:
    return as_rows(x.float())


def plain_gru_scan(
    inputs: Tensor, state: Tensor, hidden: Affine, product: Product, reverse: bool
) -> tuple[Tensor, Tensor]:
    """`scan` of `gru_step` for plain numbers.

    Args:
        inputs: (T, *batch, 3 H)
        state: (*batch, H)
        hidden: H -> 3 H, as products or convolutions

    Returns:
        the state after every step (T, *batch, H), and after the last
    """
    low, steps = product_dtype(hidden.weight), inputs.shape[0]
    weight = hidden.keep(("weight", low), lambda: hidden.weight.to(low))
    bias = hidden.bias
    if bias is not None:
        bias = hidden.keep("bias", partial(_as_float_rows, bias))
    output, last = _PlainGruScan.apply(
        as_rows(inputs), state.float(), weight, bias, product,
        range(steps - 1, -1, -1) if reverse else range(steps),
    )  # fmt: skip
    dtype = result_dtype(hidden.weight)
    return output.to(dtype), last.to(dtype)
