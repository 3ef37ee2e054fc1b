"""One step of the LSTM, `spgru.recurrent.lstm.lstm_step` without projection, and its adjoint.

x: products with the input, p: with the state, gates in the order i, f, g, o.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spgru.functional.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels.interface import CellKernels
from spgru.recurrent.kernels.triton.layout import (
    incoming,
    load_along,
    load_gate,
    load_product,
    load_unit,
    open_share,
    store_gate,
)
from spgru.recurrent.kernels.triton.persistent import Persistent
from spgru.recurrent.kernels.triton.step import step_kernels

__all__ = ["KERNELS"]


@triton.jit
def _summed(x, p, bias, row, column, mask, gate: tl.constexpr, size: tl.constexpr):
    product = load_product(p, bias, row, column, mask, gate, 4, size)
    return load_gate(x, row, column, mask, gate, 4, size) + product


@triton.jit
def _product_var(a, a_var, b, b_var):
    return a_var * b_var + a_var * b * b + a * a * b_var


@triton.jit
def _forward(x, x_var, p, p_var, state, along):
    i, iv = logistic(x[0] + p[0], x_var[0] + p_var[0])
    f, fv = logistic(x[1] + p[1], x_var[1] + p_var[1])
    g, gv = logistic(2 * (x[2] + p[2]), 4 * (x_var[2] + p_var[2]))
    o, ov = logistic(x[3] + p[3], x_var[3] + p_var[3])
    c, cv = state[2], state[3]
    i += 0.5
    f += 0.5
    o += 0.5
    g *= 2
    gv *= 4
    new_c = f * c + i * g
    new_cv = _product_var(f, fv, c, cv) + _product_var(i, iv, g, gv)
    new_cv += along * open_share(f, fv) * cv
    t, tv = logistic(2 * new_c, 4 * new_cv)
    t *= 2
    tv *= 4
    return o * t, _product_var(o, ov, t, tv), new_c, new_cv


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, coherence,  # as they went in
    h_mean, h_var, c_mean, c_var,
    new_mean,  # as it came out
    out_mean, out_var,  # gradients from outside
    by_operand_mean, by_operand_moments,  # and from the step after
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, coherence_grad,
    carried_mean, carried_var,  # of the new cell; then of the old one
    row, column, mask, size: tl.constexpr,
):  # fmt: skip
    by_mean, by_var = incoming(
        out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, row, column, mask, size
    )
    i, iv, i_m, i_v, iv_m, iv_v = logistic_with_slopes(
        _summed(x_mean, p_mean, bias, row, column, mask, 0, size),
        _summed(x_var, p_var, bias_var, row, column, mask, 0, size),
    )
    f, fv, f_m, f_v, fv_m, fv_v = logistic_with_slopes(
        _summed(x_mean, p_mean, bias, row, column, mask, 1, size),
        _summed(x_var, p_var, bias_var, row, column, mask, 1, size),
    )
    g, gv, g_m, g_v, gv_m, gv_v = logistic_with_slopes(
        2 * _summed(x_mean, p_mean, bias, row, column, mask, 2, size),
        4 * _summed(x_var, p_var, bias_var, row, column, mask, 2, size),
    )
    o, ov, o_m, o_v, ov_m, ov_v = logistic_with_slopes(
        _summed(x_mean, p_mean, bias, row, column, mask, 3, size),
        _summed(x_var, p_var, bias_var, row, column, mask, 3, size),
    )
    i += 0.5
    f += 0.5
    o += 0.5
    g *= 2
    gv *= 4
    c = load_unit(c_mean, row, column, mask, size)
    cv = load_unit(c_var, row, column, mask, size)
    new_c = f * c + i * g
    along = load_along(coherence, column, mask, size)
    new_cv = _product_var(f, fv, c, cv) + _product_var(i, iv, g, gv)
    new_cv += along * open_share(f, fv) * cv
    t, tv, t_m, t_v, tv_m, tv_v = logistic_with_slopes(2 * new_c, 4 * new_cv)
    t *= 2
    tv *= 4

    by_o = by_mean * t + 2 * by_var * o * tv
    by_ov = by_var * (tv + t * t)
    by_t = by_mean * o + 2 * by_var * ov * t
    by_tv = by_var * (ov + o * o)
    # tanh(X) = 2 (sigmoid(2X) - 1/2): factors 2 and 4 on either side.
    by_c = load_unit(carried_mean, row, column, mask, size) + 4 * by_t * t_m + 8 * by_tv * tv_m
    by_cv = load_unit(carried_var, row, column, mask, size) + 8 * by_t * t_v + 16 * by_tv * tv_v
    by_f = by_c * c + by_cv * cv * (2 * f + along * (1 - 2 * f))
    by_fv = by_cv * (cv + c * c - along * cv)
    by_i = by_c * g + 2 * by_cv * i * gv
    by_iv = by_cv * (gv + g * g)
    by_g = by_c * i + 2 * by_cv * iv * g
    by_gv = by_cv * (iv + i * i)
    store_gate(carried_mean, row, column, mask, by_c * f + 2 * by_cv * fv * c, 0, 1, size)
    share = open_share(f, fv)
    by_old = by_cv * (fv + f * f + along * share)
    store_gate(carried_var, row, column, mask, by_old, 0, 1, size)
    if coherence_grad is not None:
        store_gate(coherence_grad, row, column, mask, 2 * by_cv * share * cv, 0, 1, size)

    by_xi = by_i * i_m + by_iv * iv_m
    by_xf = by_f * f_m + by_fv * fv_m
    by_xg = 4 * by_g * g_m + 8 * by_gv * gv_m
    by_xo = by_o * o_m + by_ov * ov_m
    by_xi_var = by_i * i_v + by_iv * iv_v
    by_xf_var = by_f * f_v + by_fv * fv_v
    by_xg_var = 8 * by_g * g_v + 16 * by_gv * gv_v
    by_xo_var = by_o * o_v + by_ov * ov_v
    store_gate(x_mean_grad, row, column, mask, by_xi, 0, 4, size)
    store_gate(x_mean_grad, row, column, mask, by_xf, 1, 4, size)
    store_gate(x_mean_grad, row, column, mask, by_xg, 2, 4, size)
    store_gate(x_mean_grad, row, column, mask, by_xo, 3, 4, size)
    store_gate(x_var_grad, row, column, mask, by_xi_var, 0, 4, size)
    store_gate(x_var_grad, row, column, mask, by_xf_var, 1, 4, size)
    store_gate(x_var_grad, row, column, mask, by_xg_var, 2, 4, size)
    store_gate(x_var_grad, row, column, mask, by_xo_var, 3, 4, size)
    if p_mean_grad is not None:
        store_gate(p_mean_grad, row, column, mask, by_xi, 0, 4, size)
        store_gate(p_mean_grad, row, column, mask, by_xf, 1, 4, size)
        store_gate(p_mean_grad, row, column, mask, by_xg, 2, 4, size)
        store_gate(p_mean_grad, row, column, mask, by_xo, 3, 4, size)
        store_gate(p_var_grad, row, column, mask, by_xi_var, 0, 4, size)
        store_gate(p_var_grad, row, column, mask, by_xf_var, 1, 4, size)
        store_gate(p_var_grad, row, column, mask, by_xg_var, 2, 4, size)
        store_gate(p_var_grad, row, column, mask, by_xo_var, 3, 4, size)


KERNELS = CellKernels(
    *step_kernels(_forward, _backward, gates=4),
    has_cell=True,
    one_gradient=True,
    persistent=Persistent(_forward, _backward, gates=4),
)
