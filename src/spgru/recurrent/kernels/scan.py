"""A layer over time: all steps in one kernel, or products by a library and a kernel for the rest.

Forward, a step is two products (of the mean, and of [mean^2, var] with [W.var, W.var + W^2]) and
what the cell makes of them. Backward it is the cell's adjoint, which recomputes the gates from what
the products gave, and two products; the weights' gradients wait for the end, where all steps are
one large product.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.kernels.rows import as_rows
from spgru.moments import Moments
from spgru.recurrent.kernels.products import (
    Matrix,
    Product,
    product_dtype,
    refuse_what_kernels_cannot,
    result_dtype,
    sum_of_rows,
)

__all__ = ["Cell", "kernel_scan"]


_SMALL = 2**15

Pair = tuple[Tensor, Tensor]
"""Of the mean, and of the variance or of [mean^2, var]."""


class Kernel(Protocol):
    def __call__(self, *tensors: Tensor | None, rows: int, size: int) -> None: ...


class Cell(NamedTuple):
    """What tells GRU, LSTM and RNN apart."""

    forward: Kernel
    """kernel of a step: its input, the state before, the state after, the next products' inputs"""
    backward: Kernel
    """kernel of its adjoint"""
    gates: int
    has_cell: bool
    """whether a second state goes from step to step beside the first, as in an LSTM"""
    one_gradient: bool
    """whether the products with x and with h only ever appear as their sum"""
    persistent: Any = None
    """kernels of all steps at once, `spgru.recurrent.kernels.persistent`, where there are any"""


def _run(
    cell: Cell,
    product: Product,
    order: range,
    keep: bool,
    x_mean: Tensor,
    x_var: Tensor,
    prepared: Tensor,
    prepared_joint: Tensor,
    weight: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    bias_var: Tensor | None,
    *state: Tensor,
) -> tuple[Any, tuple[Tensor, ...], Tensor, Tensor, list[Tensor]]:
    """All steps; rows are (*batch,), H is the last dimension, x are the products with the input.

    Args:
        keep: whether a backward pass will need the products

    Returns:
        how it was done, the states before every step and after the last; the mean rounded for the
        products, [mean^2, var] likewise (or the variance, if the steps were one kernel and nothing
        is kept), and the products
    """
    steps = len(x_mean)
    size, low = state[0].shape[-1], weight.dtype
    rows = state[0].numel() // size
    rounded = low != torch.float32
    room = steps + 1, *state[0].shape[:-1]
    states = tuple(part.new_empty(*room, size, dtype=torch.float32) for part in state)
    operand = states[0].new_empty(*room, size, dtype=low) if rounded else states[0]
    plan = _plan(cell, product, rows, size, weight)
    if plan is not None:
        shape = steps if keep else 1, *x_mean.shape[1:]
        products = [x_mean.new_empty(shape, dtype=low) for _ in range(2)]
        # Only a backward pass wants the squares, and only rounded variances are a thing apart.
        operands = states[1]
        if keep or rounded:
            operands = operands.new_empty(*room, (2 if keep else 1) * size, dtype=low)
        no_cell = () if cell.has_cell else (None, None)
        fits = cell.persistent.forward(
            x_mean, x_var, prepared, prepared_joint, bias, bias_var, *products,
            *state, *no_cell, *states, *no_cell,
            operand if rounded else None, operands if keep or rounded else None,
            plan=plan, order=order, rows=rows, size=size, weight=weight, joined=keep,
            p_step=products[0][0].numel() if keep else 0,
        )  # fmt: skip
        if fits:
            return plan, states, operand, operands, products
    operands = states[0].new_empty(*room, 2 * size, dtype=low)
    products = _forward_by_step(
        cell, product, order, keep, (x_mean, x_var), (prepared, prepared_joint),
        (bias, bias_var), state, states, operand, operands,
    )  # fmt: skip
    return None, states, operand, operands, products


class _Scan(torch.autograd.Function):
    """`_run`, and its adjoint."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, product: Product, order: range, *tensors: Any) -> Any:
        plan, states, operand, operands, products = _run(cell, product, order, True, *tensors)
        x_mean, x_var, _, _, weight, weights, bias, bias_var, *_ = tensors
        ctx.save_for_backward(
            x_mean, x_var, weight, weights, bias, bias_var, operand, operands, *states, *products
        )
        ctx.cell, ctx.product, ctx.order, ctx.states = cell, product, order, len(states)
        ctx.plan = plan
        # Copies, because a user may change them in place, and what was kept must stay.
        mean, var = (
            part[1:].flip(0) if order.step < 0 else part[1:].clone() for part in states[:2]
        )
        return mean, var, *(part[-1].clone() for part in states[2:])

    @staticmethod
    def backward(ctx: Any, out_mean: Tensor, out_var: Tensor, *final: Tensor) -> Any:
        refuse_what_kernels_cannot(out_mean, out_var, *final)
        x_mean, x_var, weight, weights, bias, bias_var, operand, operands, *rest = ctx.saved_tensors
        states, products = rest[: ctx.states], rest[ctx.states :]
        cell, product, order = ctx.cell, ctx.product, ctx.order
        out_mean, out_var = as_rows(out_mean), as_rows(out_var)
        size = states[0].shape[-1]
        rows = states[0][0].numel() // size
        x_grads = torch.empty_like(x_mean), torch.empty_like(x_var)
        # The products with h run in the order of steps, those with x in that of time.
        shared = cell.one_gradient and order.step > 0 and x_mean.dtype == operand.dtype
        p_grads = x_grads
        if not shared:
            p_grads = (
                x_grads[0].new_empty(x_mean.shape, dtype=operand.dtype),
                x_grads[1].new_empty(x_var.shape, dtype=operand.dtype),
            )
        # Of the states that go from step to step, beside what their products pass on. A cell's
        # own gradient from outside is that of its last value.
        carried = [as_rows(grad).clone() for grad in final]
        carried = carried or [torch.zeros_like(part[0]) for part in states]
        fits = False
        if ctx.plan is not None:
            by_product = torch.zeros_like(states[0][0])
            by_products = torch.zeros_like(operands[0], dtype=torch.float32)
            fits = cell.persistent.backward(
                x_mean, x_var, *products, bias, bias_var,
                *states, *(() if cell.has_cell else (None, None)), out_mean, out_var,
                weight, weights, by_product, by_products, *x_grads,
                *((None, None) if shared else p_grads), *carried,
                plan=ctx.plan, order=order, rows=rows, size=size, weight=weight,
            )  # fmt: skip
            if not fits:
                products = [part for pair in zip(*products, strict=True) for part in pair]
        if not fits:
            by_product, by_products = _backward_by_step(
                cell, product, order, (x_mean, x_var), products, (weight, weights),
                (bias, bias_var), states, operand, operands, (out_mean, out_var),
                x_grads, None if shared else p_grads, carried,
            )  # fmt: skip
        by_square, by_spread = by_products.split(size, -1)
        by_state = [by_product + 2 * states[0][0] * by_square, by_spread.float()]
        if cell.has_cell:
            by_state += carried
        else:
            by_state = [a + b for a, b in zip(by_state, carried, strict=True)]
        return (
            None, None, None, *x_grads, None, None,
            *(
                product.by_weight(grad, x[:-1], matrix) if needed else None
                for grad, x, matrix, needed in (
                    (p_grads[0], operand, weight, ctx.needs_input_grad[7]),
                    (p_grads[1], operands, weights, ctx.needs_input_grad[8]),
                )
            ),
            *(None if bias is None else sum_of_rows(grad).float() for grad in p_grads),
            *by_state,
        )  # fmt: skip


def _plan(cell: Cell, product: Product, rows: int, size: int, weight: Tensor) -> Any:
    """How all steps fit into one kernel, None where they do not: then each has its own."""
    if cell.persistent is None or not isinstance(product, Matrix):
        return None
    if weight.dtype == torch.bfloat16 and not weight.is_cuda:
        return None  # Triton's interpreter multiplies the bits of bfloat16
    if rows * size > _SMALL and weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # launches cost nothing in a graph, and a library's large products are better
    return cell.persistent.plan(rows, size, weight.device)


def _forward_by_step(
    cell: Cell, product: Product, order: range, keep: bool, x: Pair, prepared: Pair,
    biases: tuple[Tensor | None, Tensor | None], first: tuple[Tensor, ...],
    states: tuple[Tensor, ...], operand: Tensor, operands: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Fills `states`, `operand` and `operands`; gives the products if they are to be kept."""
    size = states[0].shape[-1]
    rows = states[0][0].numel() // size
    rounded = operand is not states[0]
    for part, value in zip(states, first, strict=True):
        part[0] = value
    if rounded:
        operand[0] = first[0]
    operands[0] = torch.cat([first[0] ** 2, first[1]], -1)
    # Taken apart once: indexing at every step would cost as much as a small step itself.
    x_means, x_vars = x[0].unbind(0), x[1].unbind(0)
    each_state = list(zip(*(part.unbind(0) for part in states), strict=True))
    each_operand, each_operands = operand.unbind(0), operands.unbind(0)
    products: list[Tensor] = []
    for k, t in enumerate(order):
        p_mean = product.forward(each_operand[k], prepared[0])
        p_var = product.forward(each_operands[k], prepared[1])
        cell.forward(
            x_means[t], x_vars[t], p_mean, p_var, *biases, *each_state[k], *each_state[k + 1],
            each_operand[k + 1] if rounded else None, each_operands[k + 1], rows=rows, size=size,
        )  # fmt: skip
        if keep:
            products += (p_mean, p_var)
    return products


def _backward_by_step(
    cell: Cell, product: Product, order: range, x: Pair, products: list[Tensor], weights: Pair,
    biases: tuple[Tensor | None, Tensor | None], states: list[Tensor], operand: Tensor,
    operands: Tensor, out: Pair, x_grads: Pair, p_grads: Pair | None, carried: list[Tensor],
) -> Pair:  # fmt: skip
    """Fills `x_grads`, `p_grads` and `carried`; gives the gradients of the first operands.

    Args:
        p_grads: None where they are `x_grads`
    """
    size = states[0].shape[-1]
    rows = states[0][0].numel() // size
    by_product, by_products = torch.zeros_like(operand[0]), torch.zeros_like(operands[0])
    for k in reversed(range(len(order))):
        t = order[k]
        of_x = x_grads[0][t], x_grads[1][t]
        of_p = of_x if p_grads is None else (p_grads[0][k], p_grads[1][k])
        cell.backward(
            x[0][t], x[1][t], products[2 * k], products[2 * k + 1], *biases,
            *(part[k] for part in states), states[0][k + 1], out[0][t], out[1][t],
            by_product, by_products, *of_x, *((None, None) if p_grads is None else of_p), *carried,
            rows=rows, size=size,
        )  # fmt: skip
        by_product = product.by_input(of_p[0], operand[k], weights[0])
        by_products = product.by_input(of_p[1], operands[k], weights[1])
    return by_product, by_products


def kernel_scan(
    cell: Cell,
    inputs: Moments,
    state: tuple[Moments, ...],
    hidden: Affine,
    product: Product,
    reverse: bool,
) -> tuple[Moments, tuple[Moments, ...]]:
    """`scan` of a step for Gaussian moments and the exact rule.

    Args:
        inputs: (T, *batch, gates H)
        state: (*batch, H) each
        hidden: H -> gates H, as products or convolutions

    Returns:
        the state after every step (T, *batch, H), and the final state
    """
    low, steps = product_dtype(hidden.weight), inputs.shape[0]
    order = range(steps - 1, -1, -1) if reverse else range(steps)
    weight = hidden.keep(("weight", low), lambda: hidden.weight.to(low))
    weights = weight, hidden.joined(low)
    rows = state[0].mean.numel() // state[0].shape[-1]
    prepared = hidden.keep(
        (type(product), low), lambda: [product.prepare(weight, rows) for weight in weights]
    )
    biases = hidden.keep(
        "biases",
        lambda: [
            None if bias is None else as_rows(bias.float())
            for bias in (hidden.bias, hidden.bias_var)
        ],
    )
    arguments = (
        as_rows(inputs.mean), as_rows(inputs.var), *prepared, *weights, *biases,
        *(as_rows(part) for moments in state for part in moments),
    )  # fmt: skip
    keep = torch.is_grad_enabled() and any(
        argument is not None and argument.requires_grad for argument in arguments
    )
    dtype = result_dtype(hidden.weight)
    if not keep:
        plan, states, *rounded, _ = _run(cell, product, order, False, *arguments)
        parts = rounded if plan is not None and dtype == low else states[:2]
        # Detached, because torch lets nobody write to a view that was made without gradients.
        mean, var = (part[1:].flip(0) if reverse else part[1:].detach() for part in parts)
        output = Moments(mean, var).to(dtype)
        end = output[0 if reverse else -1]
        last = torch.stack([end.mean, end.var, *(part[-1].to(dtype) for part in states[2:])])
        ends = [last[k].detach() for k in range(len(states))]
        return output, tuple(Moments(*ends[k : k + 2]) for k in range(0, len(ends), 2))
    mean, var, *others = _Scan.apply(cell, product, order, *arguments)
    output = Moments(mean, var).to(dtype)
    end = output[0 if reverse else -1]
    final = [Moments(end.mean.clone(), end.var.clone())]
    if cell.has_cell:
        final.append(Moments(*others).to(dtype))
    return output, tuple(final)
