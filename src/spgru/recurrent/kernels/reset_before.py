"""The GRU that resets its state before the product, over time: `gru_step_reset_before`.

As `spgru.recurrent.kernels.scan`, but a step has two halves with a product between them: p is the
product of the state for the gates r and z, (rows, 2 H), and q that of the reset state r h for the
candidate, (rows, H).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.functional.kernels.rows import as_rows
from spgru.functional.products import sums_of_rows
from spgru.moments import Moments
from spgru.recurrent.kernels.by_reference import differentiate, needs_reference
from spgru.recurrent.kernels.interface import (
    Inputs,
    Setting,
    is_differentiated,
    make_inputs,
    reference_of,
    restore,
    without_autocast,
)

__all__ = ["reset_before_scan"]


class _History(NamedTuple):
    """What was computed forward; see `Steps` for the layout of slots."""

    h_mean: Tensor
    """(slots, ..., H)"""
    h_var: Tensor
    operand_moments: Tensor
    """(slots, ..., 2 H): [h_mean^2, h_var]"""
    reset_mean: Tensor
    """(rows, ..., H) in the order of steps: r h"""
    reset_moments: Tensor
    """(rows, ..., 2 H): its mean^2 and variance"""
    products: list[Tensor]
    """p_mean, p_var, q_mean and q_var of every step; empty without gradients"""


def _run(setting: Setting, a: Inputs, keep: bool) -> _History:
    kernels, product, steps = setting.kernels, setting.product, setting.steps
    size = a.h_mean.shape[-1]
    image = a.h_mean.shape[1:-1]
    rows_each = a.h_mean.shape[1:-1].numel()

    def empty(count: int, width: int) -> Tensor:
        return a.h_mean.new_empty(count, *image, width)

    # Without gradients nobody reads the operands of an earlier step.
    rows = sum(steps.sizes) if keep else steps.sequences
    history = _History(
        empty(steps.total, size), empty(steps.total, size),
        empty(steps.total if keep else steps.sequences, 2 * size),
        empty(rows, size), empty(rows, 2 * size), [],
    )  # fmt: skip
    steps.put_initial(history.h_mean, a.h_mean)
    steps.put_initial(history.h_var, a.h_var)
    initial_moments = torch.cat([a.h_mean**2, a.h_var], -1)
    if keep:
        steps.put_initial(history.operand_moments, initial_moments)
        operand_moments = steps.split_slots(history.operand_moments)
        reset_mean: Any = history.reset_mean.split(steps.sizes)
        reset_moments: Any = history.reset_moments.split(steps.sizes)
    else:
        history.operand_moments.copy_(initial_moments)
        operand_moments = (history.operand_moments,) * (steps.count + 1)
        reset_mean = (history.reset_mean,) * steps.count
        reset_moments = (history.reset_moments,) * steps.count
    x_mean, x_var = steps.split(a.x_mean), steps.split(a.x_var)
    h_mean, h_var = steps.split_slots(history.h_mean), steps.split_slots(history.h_var)
    z_mean, z_var = torch.empty_like(a.h_mean), torch.empty_like(a.h_mean)
    weights = [
        product.pack(weight[part], steps.sequences * rows_each)
        for part in (slice(0, 2 * size), slice(2 * size, None))
        for weight in (a.weight, a.weight_moments)
    ]
    for k, (t, n) in enumerate(zip(steps.times, steps.sizes, strict=True)):
        numbers = {"rows": n * rows_each, "size": size}
        p_mean = product.forward(h_mean[k][:n], weights[0])
        p_var = product.forward(operand_moments[k][:n], weights[1])
        kernels["gates_forward"](
            x_mean=x_mean[t], x_var=x_var[t], p_mean=p_mean, p_var=p_var, bias=a.bias,
            bias_var=a.bias_var, h_mean=h_mean[k], h_var=h_var[k], z_mean=z_mean, z_var=z_var,
            reset_mean=reset_mean[k], reset_moments=reset_moments[k], **numbers,
        )  # fmt: skip
        q_mean = product.forward(reset_mean[k][:n], weights[2])
        q_var = product.forward(reset_moments[k][:n], weights[3])
        kernels["update_forward"](
            x_mean=x_mean[t], x_var=x_var[t], q_mean=q_mean, q_var=q_var, bias=a.bias,
            bias_var=a.bias_var, coherence=a.coherence, z_mean=z_mean, z_var=z_var,
            h_mean=h_mean[k], h_var=h_var[k],
            new_mean=h_mean[k + 1], new_var=h_var[k + 1], operand_moments=operand_moments[k + 1],
            **numbers,
        )  # fmt: skip
        if keep:
            history.products.extend((p_mean, p_var, q_mean, q_var))
    return history


def _backward(
    setting: Setting, a: Inputs, history: _History, out_mean: Tensor, out_var: Tensor, needed: Any
) -> Inputs:
    kernels, product, steps = setting.kernels, setting.product, setting.steps
    size = a.h_mean.shape[-1]
    rows_each = a.h_mean.shape[1:-1].numel()
    x_mean_grad, x_var_grad = torch.empty_like(a.x_mean), torch.empty_like(a.x_var)
    # p and q lie in the order of steps.
    places = a.x_mean.shape[:-1]
    p_mean_grad, p_var_grad = (a.x_mean.new_empty(*places, 2 * size) for _ in range(2))
    q_mean_grad, q_var_grad = (a.x_mean.new_empty(*places, size) for _ in range(2))
    # Of all sequences: those that a step does not work on keep what they have, 0 or the gradient
    # of their initial state.
    carried_mean, carried_var = torch.zeros_like(a.h_mean), torch.zeros_like(a.h_mean)
    by_mean = torch.zeros_like(a.h_mean)
    by_moments = a.h_mean.new_zeros(*a.h_mean.shape[:-1], 2 * size)
    by_reset_mean, by_reset_moments = torch.empty_like(by_mean), torch.empty_like(by_moments)
    # Of every step, since what a step adds to it is known there alone.
    by_coherence = a.h_mean.new_zeros(*places, size) if needed[10] else None
    coherence_grad: Any = [None] * steps.count
    if by_coherence is not None:
        coherence_grad = by_coherence.split(steps.sizes)
    in_time = [
        steps.split(part)
        for part in (a.x_mean, a.x_var, out_mean, out_var, x_mean_grad, x_var_grad)
    ]
    in_steps = [
        part.split(steps.sizes)
        for part in (
            history.reset_mean, history.reset_moments, p_mean_grad, p_var_grad, q_mean_grad,
            q_var_grad,
        )
    ]  # fmt: skip
    h_mean, h_var, operand_moments = (steps.split_slots(part) for part in history[:3])
    for_gates, for_candidate = slice(0, 2 * size), slice(2 * size, None)
    for k in reversed(range(steps.count)):
        t, n = steps.times[k], steps.sizes[k]
        p_mean, p_var, q_mean, q_var = history.products[4 * k : 4 * k + 4]
        x_mean, x_var, out_m, out_v, x_m_grad, x_v_grad = (part[t] for part in in_time)
        reset_mean, reset_moments, p_m_grad, p_v_grad, q_m_grad, q_v_grad = (
            part[k] for part in in_steps
        )
        both: dict[str, Any] = {
            "x_mean": x_mean, "x_var": x_var, "p_mean": p_mean, "p_var": p_var, "bias": a.bias,
            "bias_var": a.bias_var, "h_mean": h_mean[k], "h_var": h_var[k],
            "x_mean_grad": x_m_grad, "x_var_grad": x_v_grad, "p_mean_grad": p_m_grad,
            "p_var_grad": p_v_grad, "carried_mean": carried_mean, "carried_var": carried_var,
            "rows": n * rows_each, "size": size,
        }  # fmt: skip
        kernels["update_backward"](
            **both, coherence=a.coherence, q_mean=q_mean, q_var=q_var,
            new_mean=h_mean[k + 1], out_mean=out_m,
            out_var=out_v, by_operand_mean=by_mean, by_operand_moments=by_moments,
            q_mean_grad=q_m_grad, q_var_grad=q_v_grad, coherence_grad=coherence_grad[k],
        )  # fmt: skip
        kernels["gates_backward"](
            **both,
            by_reset_mean=product.by_input(
                q_m_grad, reset_mean, a.weight[for_candidate], by_reset_mean[:n]
            ),
            by_reset_moments=product.by_input(
                q_v_grad, reset_moments, a.weight_moments[for_candidate], by_reset_moments[:n]
            ),
        )
        found = (
            product.by_input(p_m_grad, h_mean[k][:n], a.weight[for_gates], by_mean[:n]),
            product.by_input(
                p_v_grad, operand_moments[k][:n], a.weight_moments[for_gates], by_moments[:n]
            ),
        )
        if steps.are_equal:  # not all products can write into memory that they are given
            by_mean, by_moments = found
    by_square, by_spread = by_moments.split(size, -1)
    by_h_mean = by_mean + 2 * a.h_mean * by_square + carried_mean
    by_weight, by_weight_moments = (
        torch.cat(
            [
                product.by_weight(p_grad, steps.before(operand), weight[for_gates]),
                product.by_weight(q_grad, reset, weight[for_candidate]),
            ]
        )
        for p_grad, operand, q_grad, reset, weight in (
            (p_mean_grad, history.h_mean, q_mean_grad, history.reset_mean, a.weight),
            (
                p_var_grad, history.operand_moments, q_var_grad, history.reset_moments,
                a.weight_moments,
            ),
        )
    )  # fmt: skip
    by_bias, by_bias_var = None, None
    if a.bias is not None:
        p_sums, q_sums = (
            sums_of_rows(p_mean_grad, p_var_grad), sums_of_rows(q_mean_grad, q_var_grad),
        )  # fmt: skip
        by_bias, by_bias_var = map(torch.cat, zip(p_sums, q_sums, strict=True))
    return Inputs(
        x_mean_grad, x_var_grad, by_weight, by_weight_moments, by_bias, by_bias_var,
        by_h_mean, by_spread + carried_var, None, None,
        None if by_coherence is None else by_coherence.flatten(0, -2).sum(0),
    )  # fmt: skip


class _ResetBeforeScan(torch.autograd.Function):
    """`_run`, and its adjoint."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Any) -> Any:
        a = Inputs(*tensors)
        history = _run(setting, a, keep=True)
        ctx.save_for_backward(*a, *history[:5], *history.products)
        ctx.setting = setting
        # Copies, because a user may change them in place, and what was kept must stay.
        return tuple(setting.steps.after(part).clone() for part in history[:2])

    @staticmethod
    def backward(ctx: Any, *out: Tensor) -> Any:
        saved, setting = ctx.saved_tensors, ctx.setting
        a = Inputs(*saved[:11])
        with without_autocast(a.weight):
            needed = ctx.needs_input_grad[1:]
            if needs_reference(*out):
                return None, *differentiate(reference_of(setting), a, needed, out)
            history = _History._make((*saved[11:16], list(saved[16:])))
            out_mean, out_var = (as_rows(grad) for grad in out)
            return None, *_backward(setting, a, history, out_mean, out_var, needed)


def reset_before_scan(
    setting: Setting, inputs: Moments, state: tuple[Moments, ...], shape: tuple[int, ...],
    dtype: torch.dtype,
) -> tuple[Moments, tuple[Moments, ...]]:  # fmt: skip
    """`spgru.recurrent.kernels.scan.kernel_scan` of the GRU that resets before the product."""
    steps, a = setting.steps, make_inputs(inputs, state, setting.prepared, setting.steps)
    differentiable = is_differentiated(a)
    if differentiable:
        mean, var = _ResetBeforeScan.apply(setting, *a)
    else:
        history = _run(setting, a, keep=False)
        mean, var = (steps.after(part).detach() for part in history[:2])
    return restore(mean, var, (), shape, state, steps, dtype, differentiable)
