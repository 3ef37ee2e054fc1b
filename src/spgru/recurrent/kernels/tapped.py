"""A scan whose weights are watched: what every single use of W changes, for many outputs at once.

`spgru.recurrent.kernels.scan` sums the weights' gradients over steps and sequences; here those of
the products with the state come out step by step and sequence by sequence, as gradients of probes
(zeros that could have been added to the products).

Gradients of K outputs come as a batch (`torch.func.vmap` of `torch.autograd.grad`). The adjoint of
a step is linear in what comes in, and its coefficients depend on what was computed forward alone.
So they are computed once, for all steps by two calls of the kernel of a step (four for an LSTM),
each with a gradient of 1 in one place; the K gradients then cost a multiplication and an addition
for each coefficient, and the products with W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch

from spgru.moments import Moments
from spgru.recurrent.kernels.scan import Inputs, Setting, _copied, _History, _run
from spgru.recurrent.kernels.steps import Steps

__all__ = ["tapped_scan"]


def tapped_scan(setting: Setting, a: Inputs) -> tuple[Tensor, ...]:
    """The outputs of a scan; its map of the state tells of every use."""
    hidden, rows = setting.cell.hidden, a.x_mean.shape
    assert hidden.tap is not None
    # Without memory: only their gradients are wanted.
    probes = [a.x_mean.new_zeros(()).expand(rows).requires_grad_() for _ in range(2)]
    h_mean, h_var, *outputs = _TappedScan.apply(setting, *probes, *a)
    hidden.tap(hidden, Moments(h_mean, h_var), *probes)
    return tuple(outputs)


class _TappedScan(torch.autograd.Function):
    """The state before every step, in the order of steps; and what a scan gives."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Any) -> Any:
        a, steps = Inputs(*tensors[2:]), setting.steps
        history = _run(setting, a, keep=True)
        ctx.linear = _Linear(setting, a, history)
        outputs = [_copied(steps.after(part), part) for part in history[:2]]
        finals = [
            _copied(steps.final_of(part), part) for part in history[2:4] if part is not None
        ]
        before = [steps.before(part).detach() for part in history[:2]]
        ctx.mark_non_differentiable(*before)
        return *before, *outputs, *finals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # Gradients of what is before steps are there by rule, and are nothing.
        found = _rows_of_batch(ctx.linear.backward, grads[2:])
        x_mean, x_var, p_mean, p_var, *states = found
        no_weights = (None,) * 4
        padding = (None,) * (4 - len(states))
        return None, p_mean, p_var, x_mean, x_var, *no_weights, *states, *padding


def _rows_of_batch(function: Any, grads: tuple[Tensor, ...]) -> list[Tensor]:
    """`function` of (rows, K, ...) gradients, K a batch of `torch.func.vmap` or, without one, 1.

    By hand, since the vmap rule of a `torch.autograd.Function` costs a third of a millisecond a
    call, more than a step of a small network.
    """
    levels = [_functorch.maybe_get_level(grad) for grad in grads]
    level = max(levels)
    if level == -1:
        return [part.squeeze(1) for part in function(*(grad.unsqueeze(1) for grad in grads))]
    parts = []
    for grad, own in zip(grads, levels, strict=True):
        if own == -1:
            parts.append(grad.unsqueeze(1))
        else:
            parts.append(_functorch.get_unwrapped(grad).movedim(_functorch.maybe_get_bdim(grad), 1))
    with torch._C._DisableFuncTorch():
        found = function(*parts)
    return [_functorch._add_batch_dim(part, 1, level) for part in found]


class _Coefficients(NamedTuple):
    """What a step gives for a gradient of 1 in one place; rows in the order of steps."""

    x_mean: Tensor
    """(rows, 1, gates, H)"""
    x_var: Tensor
    p_mean: Tensor
    p_var: Tensor
    carried_mean: Tensor
    """(rows, 1, H)"""
    carried_var: Tensor


class _Linear:
    """The adjoint of a scan."""

    def __init__(self, setting: Setting, a: Inputs, history: _History) -> None:
        self.setting, self.a, self.history = setting, a, history
        self._columns: list[_Coefficients] | None = None

    def backward(self, out_mean: Tensor, out_var: Tensor, *by_cell: Tensor) -> list[Tensor]:
        """(rows, K, H) in the order of time, (B, K, H) each -> gradients likewise.

        Of the products with x in the order of time, of those with h in the order of steps, of the
        initial state.
        """
        if self._columns is None:
            self._columns = self._differentiate()
        setting, a, steps = self.setting, self.a, self.setting.steps
        size, sequences = a.h_mean.shape[-1], steps.sequences
        gates = a.x_mean.shape[-1] // size
        batch = max(part.shape[1] for part in (out_mean, out_var, *by_cell))
        is_shared = setting.kernels.one_gradient
        grads = [
            out_mean.new_zeros(len(a.x_mean), batch, gates, size)
            for _ in range(2 if is_shared else 4)
        ]
        by_mean, by_var = (out_mean.new_zeros(sequences, batch, size) for _ in range(2))
        cells = [part.expand(-1, batch, -1).clone() for part in by_cell]
        out_means, out_vars = (part.split(steps.batch_sizes) for part in (out_mean, out_var))
        starts = _starts(steps.sizes)
        h_mean = steps.before(self.history.h_mean)
        weight, weight_moments = a.weight, a.weight_moments
        for k in reversed(range(_last_step(steps, out_mean, out_var, bool(cells)) + 1)):
            t, n, at = steps.times[k], steps.sizes[k], slice(starts[k], starts[k + 1])
            by_mean[:n] += out_means[t]
            by_var[:n] += out_vars[t]
            incoming = [by_mean[:n], by_var[:n], *(part[:n] for part in cells)]
            by_units = [part.unsqueeze(2) for part in incoming]
            for place, grad in enumerate(grads):
                _combine(grad[at], by_units, [column[place][at] for column in self._columns])
            carried = [
                _combine(None, incoming, [column[4 + part][at] for column in self._columns])
                for part in range(2)
            ]
            p_mean, p_var = (part[at].flatten(2).flatten(0, 1) for part in grads[-2:])
            new_mean = torch.mm(p_mean, weight).view(n, batch, size)
            by_square, new_var = (
                torch.mm(p_var, weight_moments).view(n, batch, 2 * size).split(size, -1)
            )
            new_mean.addcmul_(h_mean[at].unsqueeze(1), by_square, value=2)
            if cells:
                cells[0][:n], cells[1][:n] = carried
            else:
                new_mean += carried[0]
                new_var = new_var + carried[1]
            by_mean[:n], by_var[:n] = new_mean, new_var
        grads = [part.flatten(2) for part in grads]
        x_grads = [_in_order_of_time(steps, part) for part in grads[:2]]
        return [*x_grads, *grads[-2:], by_mean, by_var, *cells]

    def _differentiate(self) -> list[_Coefficients]:
        setting, a, history, steps = self.setting, self.a, self.history, self.setting.steps
        size = a.h_mean.shape[-1]
        x_mean, x_var = (_in_order_of_steps(steps, part) for part in (a.x_mean, a.x_var))
        p_mean, p_var = torch.cat(history.p_mean), torch.cat(history.p_var)
        states = [None if part is None else steps.before(part) for part in history[:4]]
        h_mean, h_var, c_mean, c_var = states
        assert h_mean is not None
        zeros, ones = torch.zeros_like(h_mean), torch.ones_like(h_mean)
        no_moments = h_mean.new_zeros(*h_mean.shape[:-1], 2 * size)
        places = 4 if setting.kernels.has_cell else 2
        columns = []
        for place in range(places):
            incoming = [ones if place == other else zeros for other in range(4)]
            carried = [part.clone() for part in incoming[2:]]
            x_grads = torch.empty_like(x_mean), torch.empty_like(x_var)
            p_grads = x_grads
            if not setting.kernels.one_gradient:
                p_grads = torch.empty_like(x_mean), torch.empty_like(x_var)
            is_shared = p_grads is x_grads
            setting.kernels.backward(
                x_mean=x_mean, x_var=x_var, p_mean=p_mean, p_var=p_var,
                bias=a.bias, bias_var=a.bias_var, h_mean=h_mean, h_var=h_var,
                c_mean=c_mean, c_var=c_var, new_mean=zeros,
                out_mean=incoming[0], out_var=incoming[1],
                by_operand_mean=zeros, by_operand_moments=no_moments,
                x_mean_grad=x_grads[0], x_var_grad=x_grads[1],
                p_mean_grad=None if is_shared else p_grads[0],
                p_var_grad=None if is_shared else p_grads[1],
                carried_mean=carried[0], carried_var=carried[1],
                rows=h_mean.numel() // size, size=size,
            )  # fmt: skip
            by_gate = [part.unflatten(-1, (-1, size)).unsqueeze(1) for part in (*x_grads, *p_grads)]
            columns.append(_Coefficients(*by_gate, *(part.unsqueeze(1) for part in carried)))
        return columns


def _combine(out: Tensor | None, parts: list[Tensor], coefficients: list[Tensor]) -> Tensor:
    """The sum of products."""
    result = torch.mul(parts[0], coefficients[0], out=out)
    for part, coefficient in zip(parts[1:], coefficients[1:], strict=True):
        result.addcmul_(part, coefficient)
    return result


def _starts(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _last_step(steps: Steps, out_mean: Tensor, out_var: Tensor, has_cell: bool) -> int:
    """The last step whose result has a gradient: there is nothing to do after it."""
    if has_cell or steps.count == 1 or not out_mean.is_cpu:
        return steps.count - 1
    has_gradient = (out_mean != 0).flatten(1).any(1) | (out_var != 0).flatten(1).any(1)
    by_time = [bool(part.any()) for part in has_gradient.split(steps.batch_sizes)]
    return max((k for k, t in enumerate(steps.times) if by_time[t]), default=0)


def _in_order_of_steps(steps: Steps, rows: Tensor) -> Tensor:
    if not steps.reverse:
        return rows
    return torch.cat([steps.split(rows)[t] for t in steps.times])


def _in_order_of_time(steps: Steps, rows: Tensor) -> Tensor:
    if not steps.reverse:
        return rows
    return torch.cat(rows.split(steps.sizes)[::-1])
