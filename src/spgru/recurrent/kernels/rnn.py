"""One step of the plain recurrent network with tanh, `spgru.recurrent.rnn`, and its adjoint."""

from __future__ import annotations

import triton
import triton.language as tl

from spgru.recurrent.kernels.layout import (
    Launch,
    incoming,
    load_gate,
    load_product,
    place,
    store_state,
)
from spgru.recurrent.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels.scan import Cell

__all__ = ["RNN"]


@triton.jit
def _forward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var,
    new_mean, new_var, operand, operands,
    count, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    flat, mask, row, column = place(count, size, block)
    x = load_gate(x_mean, row, column, mask, 0, 1, size)
    x += load_product(p_mean, bias, row, column, mask, 0, 1, size)
    xv = load_gate(x_var, row, column, mask, 0, 1, size)
    xv += load_product(p_var, bias_var, row, column, mask, 0, 1, size)
    centred, var = logistic(2 * x, 4 * xv)
    store_state(
        new_mean, new_var, operand, operands, flat, row, column, mask, 2 * centred, 4 * var,
        size,
    )  # fmt: skip


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var,  # as they went in
    new_mean,  # as it came out
    out_mean, out_var, by_product, by_products,  # gradients from outside and from the step after
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad,
    h_mean_grad, h_var_grad,  # stay 0: the old state acts through its products alone
    count, size: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    flat, mask, row, column = place(count, size, block)
    x = load_gate(x_mean, row, column, mask, 0, 1, size)
    x += load_product(p_mean, bias, row, column, mask, 0, 1, size)
    xv = load_gate(x_var, row, column, mask, 0, 1, size)
    xv += load_product(p_var, bias_var, row, column, mask, 0, 1, size)
    by_mean, by_var = incoming(
        out_mean, out_var, new_mean, by_product, by_products, flat, row, column, mask, size
    )
    _, _, t_m, t_v, tv_m, tv_v = logistic_with_slopes(2 * x, 4 * xv)
    by_x = 4 * by_mean * t_m + 8 * by_var * tv_m
    by_xv = 8 * by_mean * t_v + 16 * by_var * tv_v
    tl.store(x_mean_grad + flat, by_x, mask)
    tl.store(x_var_grad + flat, by_xv, mask)
    if p_mean_grad is not None:
        tl.store(p_mean_grad + flat, by_x, mask)
        tl.store(p_var_grad + flat, by_xv, mask)


RNN = Cell(Launch(_forward), Launch(_backward), gates=1, has_cell=False, one_gradient=True)
