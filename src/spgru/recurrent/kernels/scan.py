"""A layer over time: all steps in one kernel, or products by a library and a kernel for the rest.

Forward, a step is two products (of the mean, and of [mean^2, var] with [W.var, W.var + g W^2]) and
what the cell makes of them. Backward it is the cell's adjoint, which recomputes the gates from what
the products gave, and two products; the weights' gradients wait for the end, where all steps are
one large product.

Names: x is the product with the input and p the product with the state, both (rows, gates H); an
operand is what a product with the state takes, `operand_mean` h.mean and `operand_moments`
[h.mean^2, h.var]; `by_...` and `..._grad` are gradients.
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
    copied,
    is_differentiated,
    make_inputs,
    reference_of,
    restore,
    without_autocast,
)
from spgru.recurrent.kernels.products import MatrixStep
from spgru.recurrent.kernels.steps import Steps

__all__ = ["kernel_scan"]

# Units of a state up to which a persistent kernel is used inside a CUDA graph, 32 rows of 1024
# units: in a graph launches cost nothing, and a library's products of more rows are faster.
_MOST_CAPTURED = 32 * 1024


class _History(NamedTuple):
    """What was computed forward."""

    h_mean: Tensor
    """(slots, ..., H), see `Steps`, float32"""
    h_var: Tensor
    c_mean: Tensor | None
    c_var: Tensor | None
    operand_mean: Tensor
    """h_mean in the dtype of the products"""
    operand_moments: Tensor
    """[h_mean^2, h_var] likewise; the variance alone if steps were one kernel without gradients"""
    p_mean: list[Tensor]
    """of every step, or of all at once if they were one kernel; empty without gradients"""
    p_var: list[Tensor]
    plan: Any
    """how the steps were one kernel, None if they were not"""


def _run(setting: Setting, a: Inputs, keep: bool) -> _History:
    """All steps.

    Args:
        keep: whether a backward pass will need the products
    """
    kernels, steps = setting.kernels, setting.steps
    size, low = a.h_mean.shape[-1], a.weight.dtype
    room = steps.total, *a.h_mean.shape[1:-1]
    is_rounded = low != torch.float32

    def empty(width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return a.h_mean.new_empty(*room, width, dtype=dtype)

    h_mean, h_var = empty(size), empty(size)
    c_mean, c_var = (empty(size), empty(size)) if kernels.has_cell else (None, None)
    operand_mean = empty(size, low) if is_rounded else h_mean
    plan = _plan(setting, a)
    if plan is not None:
        # Only a backward pass reads the squares, and only rounded variances need their own memory.
        operand_moments = h_var
        if keep or is_rounded:
            operand_moments = empty((2 if keep else 1) * size, low)
        times = steps.count if keep else 1
        shape = times * steps.sequences, *a.x_mean.shape[1:]
        p_mean, p_var = (a.x_mean.new_empty(shape, dtype=low) for _ in range(2))
        fits = kernels.persistent.forward(
            plan, steps, keeps_products=keep,
            x_mean=a.x_mean, x_var=a.x_var, weight=a.weight, weight_moments=a.weight_moments,
            gain=setting.prepared.gain, bias=a.bias, bias_var=a.bias_var,
            coherence=a.coherence, p_mean=p_mean, p_var=p_var,
            first_h_mean=a.h_mean, first_h_var=a.h_var, first_c_mean=a.c_mean,
            first_c_var=a.c_var, h_mean=h_mean, h_var=h_var, c_mean=c_mean, c_var=c_var,
            operand_mean=operand_mean if is_rounded else None,
            operand_moments=operand_moments if keep or is_rounded else None,
        )  # fmt: skip
        if fits:
            return _History(
                h_mean, h_var, c_mean, c_var, operand_mean, operand_moments, [p_mean], [p_var], plan
            )
    if keep:
        operand_moments = empty(2 * size, low)
    else:  # without gradients nobody reads those of an earlier step
        operand_moments = a.h_mean.new_empty(*a.h_mean.shape[:-1], 2 * size, dtype=low)
    history = _History(
        h_mean, h_var, c_mean, c_var, operand_mean, operand_moments, [], [], None
    )  # fmt: skip
    _forward_by_step(setting, a, history, keep)
    return history


def _plan(setting: Setting, a: Inputs) -> Any:
    """How all steps fit into one kernel, None where they do not: then each has its own."""
    persistent = setting.kernels.persistent
    if persistent is None or type(setting.product) is not MatrixStep or not setting.steps.are_equal:
        return None
    weight, count = a.weight, a.h_mean.numel()
    if weight.dtype == torch.bfloat16 and not weight.is_cuda:
        return None  # Triton's interpreter multiplies the bits of bfloat16
    if count > _MOST_CAPTURED and weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    size = a.h_mean.shape[-1]
    return persistent.plan(count // size, size, weight.device)


def _split_states(steps: Steps, history: _History) -> list[Any]:
    """h_mean, h_var, c_mean and c_var of every slot."""
    none = [None] * (steps.count + 1)
    return [none if buffer is None else steps.split_slots(buffer) for buffer in history[:4]]


def _forward_by_step(setting: Setting, a: Inputs, history: _History, keep: bool) -> None:
    """Fills the history: with products if they are to be kept."""
    kernels, product, steps, prepared = (
        setting.kernels, setting.product, setting.steps, setting.prepared,
    )  # fmt: skip
    size = a.h_mean.shape[-1]
    rows_each = a.h_mean.shape[1:-1].numel()
    is_rounded = history.operand_mean is not history.h_mean
    for buffer, initial in zip(history[:4], a[6:10], strict=True):
        if buffer is not None and initial is not None:
            steps.put_initial(buffer, initial)
    if is_rounded:
        steps.put_initial(history.operand_mean, a.h_mean)
    initial_moments = torch.cat([a.h_mean**2, a.h_var], -1)
    if keep:
        steps.put_initial(history.operand_moments, initial_moments)
    # Taken apart once: indexing at every step would cost as much as a small step itself.
    x_mean, x_var = steps.split(a.x_mean), steps.split(a.x_var)
    h_mean, h_var, c_mean, c_var = _split_states(steps, history)
    operand_mean = steps.split_slots(history.operand_mean) if is_rounded else h_mean
    moments: Any = history.operand_moments
    if keep:
        operand_moments = steps.split_slots(moments)
    else:
        operand_moments = (moments,) * (steps.count + 1)
        # One memory for all steps: rows that join find their initial moments there.
        moments.copy_(initial_moments)
    is_whole = steps.are_equal
    for k, (t, n) in enumerate(zip(steps.times, steps.sizes, strict=True)):
        mean, both = operand_mean[k], operand_moments[k]
        if not is_whole:
            mean, both = mean[:n], both[:n]
        p_mean = product.forward(mean, prepared.packed_weight)
        p_var = product.forward(both, prepared.packed_moments)
        kernels.forward(
            x_mean=x_mean[t], x_var=x_var[t], p_mean=p_mean, p_var=p_var,
            bias=a.bias, bias_var=a.bias_var, coherence=a.coherence,
            h_mean=h_mean[k], h_var=h_var[k], c_mean=c_mean[k], c_var=c_var[k],
            new_mean=h_mean[k + 1], new_var=h_var[k + 1],
            new_c_mean=c_mean[k + 1], new_c_var=c_var[k + 1],
            operand_mean=operand_mean[k + 1] if is_rounded else None,
            operand_moments=operand_moments[k + 1], rows=n * rows_each, size=size,
        )  # fmt: skip
        if keep:
            history.p_mean.append(p_mean)
            history.p_var.append(p_var)


def _backward(
    setting: Setting, a: Inputs, history: _History, out_mean: Tensor, out_var: Tensor,
    final_cell: tuple[Tensor, ...], needed: Any,
) -> Inputs:  # fmt: skip
    """The gradients of the inputs; `needed` says which of the weights' are."""
    kernels, steps = setting.kernels, setting.steps
    size, low = a.h_mean.shape[-1], a.weight.dtype
    # The products with h lie in the order of steps, those with x in the order of time.
    is_shared = kernels.one_gradient and not steps.reverse and a.x_mean.dtype == low
    x_grads = torch.empty_like(a.x_mean), torch.empty_like(a.x_var)
    p_grads = x_grads
    if not is_shared:
        p_grads = torch.empty_like(a.x_mean, dtype=low), torch.empty_like(a.x_var, dtype=low)
    # Of the states that go from step to step, beside what their products pass on. The gradient of
    # a cell's last value comes from outside.
    zeros = a.h_mean.new_zeros(5, *a.h_mean.shape)  # in one launch
    carried = [as_rows(grad).clone() for grad in final_cell] or [zeros[0], zeros[1]]
    kept_p = None if is_shared else p_grads
    # Of every step, since what a step adds to it is known there alone.
    by_coherence = a.h_mean.new_zeros(*a.x_mean.shape[:-1], size) if needed[10] else None
    fits = False
    if history.plan is not None:
        by_mean, by_moments = zeros[2], zeros[3:].view(*a.h_mean.shape[:-1], 2 * size)
        fits = kernels.persistent.backward(
            history.plan, steps,
            x_mean=a.x_mean, x_var=a.x_var, p_mean=history.p_mean[0], p_var=history.p_var[0],
            bias=a.bias, bias_var=a.bias_var, coherence=a.coherence,
            h_mean=history.h_mean, h_var=history.h_var,
            c_mean=history.c_mean, c_var=history.c_var, out_mean=out_mean, out_var=out_var,
            weight=a.weight, weight_moments=a.weight_moments, gain=setting.prepared.gain,
            by_operand_mean=by_mean, by_operand_moments=by_moments,
            x_mean_grad=x_grads[0], x_var_grad=x_grads[1],
            p_mean_grad=None if kept_p is None else kept_p[0],
            p_var_grad=None if kept_p is None else kept_p[1],
            coherence_grad=by_coherence, carried_mean=carried[0], carried_var=carried[1],
        )  # fmt: skip
    if not fits:
        by_mean, by_moments = _backward_by_step(
            setting, a, history, (out_mean, out_var), x_grads, kept_p, by_coherence, carried
        )
    by_h: Any = None, None
    if needed[6] or needed[7]:
        by_square, by_spread = by_moments.split(size, -1)
        by_h = by_mean + 2 * a.h_mean * by_square, by_spread.float()
        if not kernels.has_cell:
            by_h = by_h[0] + carried[0], by_h[1] + carried[1]
    by_cell: Any = carried if kernels.has_cell else (None, None)
    by_weight, by_weight_moments = (
        setting.product.by_weight(grad, steps.before(operand), weight) if is_needed else None
        for grad, operand, weight, is_needed in (
            (p_grads[0], history.operand_mean, a.weight, needed[2]),
            (p_grads[1], history.operand_moments, a.weight_moments, needed[3]),
        )
    )
    by_bias, by_bias_var = None, None
    if a.bias is not None:
        by_bias, by_bias_var = (part.float() for part in sums_of_rows(*p_grads))
    return Inputs._make(
        (
            *x_grads, by_weight, by_weight_moments, by_bias, by_bias_var, *by_h, *by_cell,
            None if by_coherence is None else by_coherence.flatten(0, -2).sum(0),
        )
    )  # fmt: skip


def _backward_by_step(
    setting: Setting, a: Inputs, history: _History, out: tuple[Tensor, Tensor],
    x_grads: tuple[Tensor, Tensor], p_grads: tuple[Tensor, Tensor] | None,
    by_coherence: Tensor | None, carried: list[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fills all but the first three arguments; gives the gradients of the first operands.

    Args:
        p_grads: None where they are `x_grads`
    """
    kernels, product, steps = setting.kernels, setting.product, setting.steps
    size, low = a.h_mean.shape[-1], a.weight.dtype
    rows_each = a.h_mean.shape[1:-1].numel()
    # Of all sequences: those that a step does not work on keep what they have, 0 or the gradient
    # of their initial state.
    by_mean = torch.zeros_like(a.h_mean, dtype=low)
    by_moments = by_mean.new_zeros(*by_mean.shape[:-1], 2 * size)
    x_mean, x_var, out_mean, out_var, x_mean_grad, x_var_grad = (
        steps.split(part) for part in (a.x_mean, a.x_var, *out, *x_grads)
    )
    h_mean, h_var, c_mean, c_var = _split_states(steps, history)
    operand_mean = steps.split_slots(history.operand_mean)
    operand_moments = steps.split_slots(history.operand_moments)
    p_mean: Any = history.p_mean
    p_var: Any = history.p_var
    if history.plan is not None:
        p_mean, p_var = p_mean[0].split(steps.sizes), p_var[0].split(steps.sizes)
    if p_grads is None:
        p_mean_grad, p_var_grad = x_mean_grad, x_var_grad
    else:
        p_mean_grad, p_var_grad = (tuple(part.split(steps.sizes)) for part in p_grads)
    coherence_grad: Any = [None] * steps.count
    if by_coherence is not None:
        coherence_grad = by_coherence.split(steps.sizes)
    is_whole = steps.are_equal
    for k in reversed(range(steps.count)):
        t, n = steps.times[k], steps.sizes[k]
        kernels.backward(
            x_mean=x_mean[t], x_var=x_var[t], p_mean=p_mean[k], p_var=p_var[k],
            bias=a.bias, bias_var=a.bias_var, coherence=a.coherence,
            h_mean=h_mean[k], h_var=h_var[k], c_mean=c_mean[k], c_var=c_var[k],
            new_mean=h_mean[k + 1], out_mean=out_mean[t], out_var=out_var[t],
            by_operand_mean=by_mean, by_operand_moments=by_moments,
            x_mean_grad=x_mean_grad[t], x_var_grad=x_var_grad[t],
            p_mean_grad=None if p_grads is None else p_mean_grad[k],
            p_var_grad=None if p_grads is None else p_var_grad[k],
            coherence_grad=coherence_grad[k], carried_mean=carried[0], carried_var=carried[1],
            rows=n * rows_each, size=size,
        )  # fmt: skip
        mean, moments = p_mean_grad[k], p_var_grad[k]
        if is_whole:
            by_mean = product.by_input(mean, operand_mean[k], a.weight, by_mean)
            by_moments = product.by_input(moments, operand_moments[k], a.weight_moments, by_moments)
        else:
            product.by_input(mean, operand_mean[k][:n], a.weight, by_mean[:n])
            product.by_input(moments, operand_moments[k][:n], a.weight_moments, by_moments[:n])
    return by_mean, by_moments


class _Scan(torch.autograd.Function):
    """`_run`, and its adjoint."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Any) -> Any:
        a, steps = Inputs(*tensors), setting.steps
        history = _run(setting, a, keep=True)
        ctx.save_for_backward(*a, *history[:6], *history.p_mean, *history.p_var)
        ctx.setting, ctx.plan = setting, history.plan
        # Copies, because a user may change them in place, and what was kept must stay.
        outputs = [copied(steps.after(part), part) for part in (history.h_mean, history.h_var)]
        cells = (history.c_mean, history.c_var)
        finals = [copied(steps.final_of(part), part) for part in cells if part is not None]
        return (*outputs, *finals)

    @staticmethod
    def backward(ctx: Any, out_mean: Tensor, out_var: Tensor, *final_cell: Tensor) -> Any:
        saved, setting = ctx.saved_tensors, ctx.setting
        a, rest = Inputs(*saved[:11]), saved[17:]
        needed = ctx.needs_input_grad[1:]
        with without_autocast(a.weight):
            if needs_reference(out_mean, out_var, *final_cell):
                grads = out_mean, out_var, *final_cell
                return None, *differentiate(reference_of(setting), a, needed, grads)
            half = len(rest) // 2
            products = list(rest[:half]), list(rest[half:])
            history = _History._make((*saved[11:17], *products, ctx.plan))
            out_mean, out_var = as_rows(out_mean), as_rows(out_var)
            return None, *_backward(setting, a, history, out_mean, out_var, final_cell, needed)


def kernel_scan(
    setting: Setting, inputs: Moments, state: tuple[Moments, ...], shape: tuple[int, ...],
    dtype: torch.dtype,
) -> tuple[Moments, tuple[Moments, ...]]:  # fmt: skip
    """`scan` of a step for Gaussian moments and the exact rule.

    Args:
        inputs: (*shape, gates H), or their rows (rows, gates H)
        state: (*batch, H) each
        shape: (T, *batch), or (rows,) if lengths differ
        dtype: of the results

    Returns:
        the state after every step, (*shape, H), and the final state
    """
    steps, a = setting.steps, make_inputs(inputs, state, setting.prepared, setting.steps)
    differentiable = is_differentiated(a)
    if setting.cell.hidden.tap is not None:
        from spgru.recurrent.kernels.tapped import tapped_scan  # which uses this file

        mean, var, *cells = tapped_scan(setting, a)
    elif differentiable:
        mean, var, *cells = _Scan.apply(setting, *a)
    else:
        history = _run(setting, a, keep=False)
        means, variances = history.h_mean, history.h_var
        if history.plan is not None and dtype == a.weight.dtype:
            means, variances = history.operand_mean, history.operand_moments
        mean, var = (steps.after(part).detach() for part in (means, variances))
        cells = [
            steps.final_of(part) for part in (history.c_mean, history.c_var) if part is not None
        ]
    return restore(mean, var, cells, shape, state, steps, dtype, differentiable)
