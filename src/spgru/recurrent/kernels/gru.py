"""The GRU on a GPU: the products by the vendor's library, everything else of a step in one kernel.

Backward, a step is one kernel again, which recomputes gates and candidate from what the products
gave, and the weights' gradients wait for the end, where all steps are one large product.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from spgru.functional import Affine
from spgru.moments import Moments
from spgru.recurrent.kernels.layout import BLOCK, load3, load3_shifted, store3
from spgru.recurrent.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels.products import Product, product_dtype, sum_of_rows

__all__ = ["gru_scan"]


@triton.jit
def _forward_kernel(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var,  # the step's input
    new_mean, new_var,  # float32 state
    operand, operands,  # the next products' inputs: mean, and [mean^2, var]
    count, size: tl.constexpr, has_bias: tl.constexpr, rounded: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """h' of every unit of every row. x: products with the input, p: with the state."""
    flat = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = flat < count
    row, column = flat // size, flat % size
    xr, xz, xc = load3(x_mean, row, column, size, mask)
    xr_var, xz_var, xc_var = load3(x_var, row, column, size, mask)
    pr, pz, pc = load3_shifted(p_mean, bias, row, column, size, has_bias, mask)
    pr_var, pz_var, pc_var = load3_shifted(p_var, bias_var, row, column, size, has_bias, mask)
    h = tl.load(h_mean + flat, mask, 0.0)
    hv = tl.load(h_var + flat, mask, 0.0)

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

    tl.store(new_mean + flat, mean, mask)
    tl.store(new_var + flat, var, mask)
    if rounded:
        tl.store(operand + flat, mean, mask)
    place = operands + row * 2 * size + column
    tl.store(place, mean * mean, mask)
    tl.store(place + size, var, mask)


@triton.jit
def _backward_kernel(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var,  # as they went into the step
    new_mean,  # as it came out
    out_mean, out_var,  # gradients from outside,
    later_mean, later_var, later_product, later_products,  # and from the step after
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, h_mean_grad, h_var_grad,
    count, size: tl.constexpr, has_bias: tl.constexpr, is_last: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    flat = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = flat < count
    row, column = flat // size, flat % size
    xr, xz, xc = load3(x_mean, row, column, size, mask)
    xr_var, xz_var, xc_var = load3(x_var, row, column, size, mask)
    pr, pz, pc = load3_shifted(p_mean, bias, row, column, size, has_bias, mask)
    pr_var, pz_var, pc_var = load3_shifted(p_var, bias_var, row, column, size, has_bias, mask)
    h = tl.load(h_mean + flat, mask, 0.0)
    hv = tl.load(h_var + flat, mask, 0.0)

    # The state went out, on to the next update, and into the next products: W h, W.var h^2 and
    # (W.var + W^2) h.var.
    by_mean = tl.load(out_mean + flat, mask, 0.0)
    by_var = tl.load(out_var + flat, mask, 0.0)
    if not is_last:
        place = later_products + row * 2 * size + column
        by_square = tl.load(place, mask, 0.0).to(tl.float32)
        by_mean += tl.load(later_mean + flat, mask, 0.0)
        by_mean += tl.load(later_product + flat, mask, 0.0).to(tl.float32)
        by_mean += 2 * tl.load(new_mean + flat, mask, 0.0) * by_square
        by_var += tl.load(later_var + flat, mask, 0.0)
        by_var += tl.load(place + size, mask, 0.0).to(tl.float32)

    r, rv, r_m, r_v, rv_m, rv_v = logistic_with_slopes(xr + pr, xr_var + pr_var)
    z, zv, z_m, z_v, zv_m, zv_v = logistic_with_slopes(xz + pz, xz_var + pz_var)
    r += 0.5
    z += 0.5
    reset_var = rv * pc_var + rv * pc * pc + r * r * pc_var
    c, cv, c_m, c_v, cv_m, cv_v = logistic_with_slopes(2 * (xc + r * pc), 4 * (xc_var + reset_var))
    c *= 2
    cv *= 4
    difference = h - c

    by_difference = by_mean * z + 2 * by_var * zv * difference
    by_c = by_mean - by_difference
    by_cv = by_var * ((1 - z) * (1 - z) + zv)
    by_z = by_mean * difference + 2 * by_var * (z * hv - (1 - z) * cv)
    by_zv = by_var * (cv + hv + difference * difference)
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

    store3(x_mean_grad, row, column, size, mask, by_xr, by_xz, by_xc)
    store3(x_var_grad, row, column, size, mask, by_xr_var, by_xz_var, by_xc_var)
    store3(p_mean_grad, row, column, size, mask, by_xr, by_xz, by_pc)
    store3(p_var_grad, row, column, size, mask, by_xr_var, by_xz_var, by_pc_var)
    tl.store(h_mean_grad + flat, by_difference, mask)
    tl.store(h_var_grad + flat, by_var * (z * z + zv), mask)


class _GruScan(torch.autograd.Function):
    """Forward and backward over all steps. Rows are (*batch,), H the last dimension."""

    @staticmethod
    def forward(
        ctx: Any,
        x_mean: Tensor,
        x_var: Tensor,
        h_mean: Tensor,
        h_var: Tensor,
        weight: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        bias_var: Tensor | None,
        product: Product,
        order: range,
    ) -> tuple[Tensor, Tensor]:
        steps, *batch, _ = x_mean.shape
        size, low = h_mean.shape[-1], weight.dtype
        rounded = low != torch.float32
        make: dict[str, Any] = {"device": x_mean.device}
        # One more than there are steps: the state before each of them, and after the last.
        states = torch.empty(steps + 1, *batch, size, **make)
        spreads = torch.empty(steps + 1, *batch, size, **make)
        operand = torch.empty(steps + 1, *batch, size, dtype=low, **make) if rounded else states
        operands = torch.empty(steps + 1, *batch, 2 * size, dtype=low, **make)
        p_means = torch.empty(steps, *batch, 3 * size, dtype=low, **make)
        p_vars = torch.empty_like(p_means)
        states[0], spreads[0] = h_mean, h_var
        if rounded:
            operand[0] = h_mean
        operands[0, ..., :size], operands[0, ..., size:] = states[0] ** 2, spreads[0]
        count = h_mean.numel()
        grid = (triton.cdiv(count, BLOCK),)
        for k, t in enumerate(order):
            product.forward(operand[k], weight, p_means[k])
            product.forward(operands[k], weights, p_vars[k])
            _forward_kernel[grid](
                x_mean[t], x_var[t], p_means[k], p_vars[k], bias, bias_var, states[k], spreads[k],
                states[k + 1], spreads[k + 1], operand[k + 1], operands[k + 1],
                count, size, bias is not None, rounded, BLOCK,
            )  # fmt: skip
        ctx.save_for_backward(
            x_mean, x_var, p_means, p_vars, states, spreads, operand, operands, weight, weights,
            bias, bias_var,
        )  # fmt: skip
        ctx.product, ctx.order = product, order
        # In the order of time, which is that of the steps or its reverse.
        if order.step < 0:
            return states[1:].flip(0), spreads[1:].flip(0)
        return states[1:], spreads[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_mean: Tensor, out_var: Tensor) -> Any:
        (
            x_mean, x_var, p_means, p_vars, states, spreads, operand, operands, weight, weights,
            bias, bias_var,
        ) = ctx.saved_tensors  # fmt: skip
        product, order, low = ctx.product, ctx.order, weight.dtype
        out_mean, out_var = out_mean.contiguous(), out_var.contiguous()
        steps, count, size = len(order), states[0].numel(), states.shape[-1]
        x_mean_grad, x_var_grad = torch.empty_like(x_mean), torch.empty_like(x_var)
        p_mean_grad, p_var_grad = torch.empty_like(p_means), torch.empty_like(p_vars)
        h_mean_grad, h_var_grad = torch.empty_like(states[0]), torch.empty_like(states[0])
        by_product = torch.empty_like(states[0], dtype=low)
        by_products = by_product
        grid = (triton.cdiv(count, BLOCK),)
        for k in reversed(range(steps)):
            t = order[k]
            _backward_kernel[grid](
                x_mean[t], x_var[t], p_means[k], p_vars[k], bias, bias_var, states[k], spreads[k],
                states[k + 1], out_mean[t], out_var[t],
                h_mean_grad, h_var_grad, by_product, by_products,
                x_mean_grad[t], x_var_grad[t], p_mean_grad[k], p_var_grad[k],
                h_mean_grad, h_var_grad,
                count, size, bias is not None, k == steps - 1, BLOCK,
            )  # fmt: skip
            by_product = product.by_input(p_mean_grad[k], operand[k], weight)
            by_products = product.by_input(p_var_grad[k], operands[k], weights)
        by_square, by_spread = by_products.split(size, -1)
        h_mean_grad += by_product + 2 * states[0] * by_square
        h_var_grad += by_spread
        bias_grad = bias_var_grad = None
        if bias is not None:
            bias_grad = sum_of_rows(p_mean_grad).float()
            bias_var_grad = sum_of_rows(p_var_grad).float()
        return (
            x_mean_grad, x_var_grad, h_mean_grad, h_var_grad,
            product.by_weight(p_mean_grad, operand[:-1], weight),
            product.by_weight(p_var_grad, operands[:-1], weights),
            bias_grad, bias_var_grad, None, None,
        )  # fmt: skip


def gru_scan(
    inputs: Moments, state: Moments, hidden: Affine, product: Product, reverse: bool
) -> tuple[Moments, Moments]:
    """`scan` of `gru_step` for Gaussian moments and the exact rule.

    Args:
        inputs: (T, *batch, 3 H)
        state: (*batch, H)
        hidden: H -> 3 H, as products or convolutions

    Returns:
        the state after every step (T, *batch, H), and after the last
    """
    assert hidden.weight_var is not None
    assert hidden.weight_second_moment is not None
    low = product_dtype(hidden.weight)
    # One product for both parts of the variance: W.var h^2 + (W.var + W^2) h.var.
    weights = torch.cat([hidden.weight_var.to(low), hidden.weight_second_moment.to(low)], 1)
    steps = inputs.shape[0]
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    biases = [None if bias is None else bias.float() for bias in (hidden.bias, hidden.bias_var)]
    mean, var = _GruScan.apply(
        inputs.mean.contiguous(), inputs.var.contiguous(),
        state.mean.float().contiguous(), state.var.float().contiguous(),
        hidden.weight.to(low), weights, *biases, product, order,
    )  # fmt: skip
    final = 0 if reverse else -1
    return Moments(mean, var), Moments(mean[final], var[final])
