"""One step of the GRU, `spgru.recurrent.gru.gru_step`, and its adjoint as kernels.

x: products with the input, p: with the state, gates in the order r, z, c.
"""

from __future__ import annotations

import triton
import triton.language as tl

from spgru.functional.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels.interface import CellKernels
from spgru.recurrent.kernels.triton.layout import (
    incoming,
    load_along,
    load_gates,
    load_state,
    load_unit,
    open_share,
    store_gate,
)
from spgru.recurrent.kernels.triton.persistent import Persistent
from spgru.recurrent.kernels.triton.step import step_kernels

__all__ = ["KERNELS"]


@triton.jit
def _forward(x, x_var, p, p_var, state, along):
    xr, xz, xc = x
    xr_var, xz_var, xc_var = x_var
    pr, pz, pc = p
    pr_var, pz_var, pc_var = p_var
    h, hv = state
    r, rv = logistic(xr + pr, xr_var + pr_var)
    z, zv = logistic(xz + pz, xz_var + pz_var)
    r += 0.5
    z += 0.5
    reset_var = rv * pc_var + rv * pc * pc + r * r * pc_var
    c, cv = logistic(2 * (xc + r * pc), 4 * (xc_var + reset_var))
    c *= 2
    cv *= 4
    difference = h - c
    mean = c + z * difference
    var = (1 - z) * (1 - z) * cv + z * z * hv + zv * (cv + hv + difference * difference)
    return mean, var + along * open_share(z, zv) * hv


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, coherence,  # as they went in
    h_mean, h_var, c_mean, c_var,
    new_mean,  # as it came out
    out_mean, out_var,  # gradients from outside
    by_operand_mean, by_operand_moments,  # and from the step after
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, coherence_grad,
    carried_mean, carried_var,  # from the update after; then of the update here
    row, column, mask, size: tl.constexpr,
):  # fmt: skip
    xr, xz, xc = load_gates(x_mean, None, row, column, mask, 3, size)
    xr_var, xz_var, xc_var = load_gates(x_var, None, row, column, mask, 3, size)
    pr, pz, pc = load_gates(p_mean, bias, row, column, mask, 3, size)
    pr_var, pz_var, pc_var = load_gates(p_var, bias_var, row, column, mask, 3, size)
    h, hv = load_state(h_mean, h_var, None, None, row, column, mask, size)
    by_mean, by_var = incoming(
        out_mean, out_var, new_mean, by_operand_mean, by_operand_moments, row, column, mask, size
    )
    by_mean += load_unit(carried_mean, row, column, mask, size)
    by_var += load_unit(carried_var, row, column, mask, size)

    r, rv, r_m, r_v, rv_m, rv_v = logistic_with_slopes(xr + pr, xr_var + pr_var)
    z, zv, z_m, z_v, zv_m, zv_v = logistic_with_slopes(xz + pz, xz_var + pz_var)
    r += 0.5
    z += 0.5
    reset_var = rv * pc_var + rv * pc * pc + r * r * pc_var
    c, cv, c_m, c_v, cv_m, cv_v = logistic_with_slopes(2 * (xc + r * pc), 4 * (xc_var + reset_var))
    c *= 2
    cv *= 4
    difference = h - c
    along = load_along(coherence, column, mask, size)

    by_difference = by_mean * z + 2 * by_var * zv * difference
    by_c = by_mean - by_difference
    by_cv = by_var * ((1 - z) * (1 - z) + zv)
    by_z = by_mean * difference + 2 * by_var * (z * hv - (1 - z) * cv)
    by_z += by_var * along * hv * (1 - 2 * z)
    by_zv = by_var * (cv + hv + difference * difference - along * hv)
    # tanh(X) = 2 (sigmoid(2X) - 1/2): factors 2 and 4 on either side.
    by_xc = 4 * by_c * c_m + 8 * by_cv * cv_m
    by_xc_var = 8 * by_c * c_v + 16 * by_cv * cv_v
    by_r = by_xc * pc + 2 * by_xc_var * r * pc_var
    by_rv = by_xc_var * (pc_var + pc * pc)
    by_pc = by_xc * r + 2 * by_xc_var * rv * pc
    by_pc_var = by_xc_var * (rv + r * r)
    by_xr = by_r * r_m + by_rv * rv_m
    by_xr_var = by_r * r_v + by_rv * rv_v
    by_xz = by_z * z_m + by_zv * zv_m
    by_xz_var = by_z * z_v + by_zv * zv_v

    store_gate(x_mean_grad, row, column, mask, by_xr, 0, 3, size)
    store_gate(x_mean_grad, row, column, mask, by_xz, 1, 3, size)
    store_gate(x_mean_grad, row, column, mask, by_xc, 2, 3, size)
    store_gate(x_var_grad, row, column, mask, by_xr_var, 0, 3, size)
    store_gate(x_var_grad, row, column, mask, by_xz_var, 1, 3, size)
    store_gate(x_var_grad, row, column, mask, by_xc_var, 2, 3, size)
    store_gate(p_mean_grad, row, column, mask, by_xr, 0, 3, size)
    store_gate(p_mean_grad, row, column, mask, by_xz, 1, 3, size)
    store_gate(p_mean_grad, row, column, mask, by_pc, 2, 3, size)
    store_gate(p_var_grad, row, column, mask, by_xr_var, 0, 3, size)
    store_gate(p_var_grad, row, column, mask, by_xz_var, 1, 3, size)
    store_gate(p_var_grad, row, column, mask, by_pc_var, 2, 3, size)
    store_gate(carried_mean, row, column, mask, by_difference, 0, 1, size)
    share = open_share(z, zv)
    by_hv = by_var * (z * z + zv + along * share)
    store_gate(carried_var, row, column, mask, by_hv, 0, 1, size)
    if coherence_grad is not None:
        store_gate(coherence_grad, row, column, mask, 2 * by_var * share * hv, 0, 1, size)


KERNELS = CellKernels(
    *step_kernels(_forward, _backward, gates=3),
    has_cell=False,
    one_gradient=False,
    persistent=Persistent(_forward, _backward, gates=3),
)
