"""One step of the plain recurrent network with tanh, `spgru.recurrent.rnn`, and its adjoint."""

from __future__ import annotations

import triton
import triton.language as tl

from spgru.functional.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels.interface import CellKernels
from spgru.recurrent.kernels.triton.layout import (
    incoming,
    load_gate,
    load_product,
    store_gate,
)
from spgru.recurrent.kernels.triton.persistent import Persistent
from spgru.recurrent.kernels.triton.step import step_kernels

__all__ = ["KERNELS"]


@triton.jit
def _forward(x, x_var, p, p_var, state, along):
    centred, var = logistic(2 * (x[0] + p[0]), 4 * (x_var[0] + p_var[0]))
    return 2 * centred, 4 * var


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, coherence,  # as they went in
    h_mean, h_var, c_mean, c_var,
    new_mean,  # as it came out
    out_mean, out_var,  # gradients from outside
    by_operand_mean, by_operand_moments,  # and from the step after
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, coherence_grad,
    carried_mean, carried_var,  # stay 0: the old state acts through its products alone
    row, column, mask, size: tl.constexpr,
):  # fmt: skip
    x = load_gate(x_mean, row, column, mask, 0, 1, size)
    x += load_product(p_mean, bias, row, column, mask, 0, 1, size)
    xv = load_gate(x_var, row, column, mask, 0, 1, size)
    xv += load_product(p_var, bias_var, row, column, mask, 0, 1, size)
    by_mean, by_var = incoming(
        out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, row, column, mask, size
    )
    _, _, t_m, t_v, tv_m, tv_v = logistic_with_slopes(2 * x, 4 * xv)
    by_x = 4 * by_mean * t_m + 8 * by_var * tv_m
    by_xv = 8 * by_mean * t_v + 16 * by_var * tv_v
    store_gate(x_mean_grad, row, column, mask, by_x, 0, 1, size)
    store_gate(x_var_grad, row, column, mask, by_xv, 0, 1, size)
    if p_mean_grad is not None:
        store_gate(p_mean_grad, row, column, mask, by_x, 0, 1, size)
        store_gate(p_var_grad, row, column, mask, by_xv, 0, 1, size)


KERNELS = CellKernels(
    *step_kernels(_forward, _backward, gates=1),
    has_cell=False,
    one_gradient=True,
    persistent=Persistent(_forward, _backward, gates=1),
)
