"""A scan whose weights are tapped: what every single use of W changes, for many outputs at once.

`spgru.recurrent.kernels.scan` sums the weights' gradients over steps and sequences; here those of
the products with the state come out step by step and sequence by sequence, as gradients of probes
(zeros that could have been added to the products).

Gradients of K outputs come as a batch (`torch.func.vmap` of `torch.autograd.grad`). The adjoint of
a step is linear in what comes in, and its coefficients depend on what was computed forward alone.
So they are computed once, for all steps by two calls of the kernel of a step (four for an LSTM),
each with a gradient of 1 in one place; the K gradients then cost a multiplication and an addition
for each coefficient, and the products with W. What first order leaves of the variance is a form of
the same gradients (`remainders`), whose coefficients are computed once for all scans by one map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgru.functional.tapped import rows_of_batch
from spgru.moments import Moments
from spgru.recurrent.kernels.interface import Inputs, Setting, copied
from spgru.recurrent.kernels.remainders import (
    Coefficients,
    Values,
    evaluate_forms,
    remainder_forms,
)
from spgru.recurrent.kernels.scan import _History, _run
from spgru.recurrent.kernels.steps import Steps

__all__ = ["step_coefficients", "tapped_scan"]

# Up to here the weights of a step lie in a processor's own cache, and one call of C is faster than
# a library's products.
_MOST_UNITS = 64


def tapped_scan(setting: Setting, a: Inputs) -> tuple[Tensor, ...]:
    """The outputs of a scan; its map of the state tells of every use."""
    hidden, rows = setting.cell.hidden, a.x_mean.shape
    assert hidden.tap is not None
    if a.weight.is_cpu and a.h_mean.shape[-1] <= _MOST_UNITS and _has_compiled():
        hidden.tap.will_add(hidden, setting.steps.sequences)
        return tuple(_TappedScan.apply(setting, None, None, *a)[2:])
    # Without memory: only their gradients are wanted.
    probes = [a.x_mean.new_zeros(()).expand(rows).requires_grad_() for _ in range(2)]
    h_mean, h_var, *outputs = _TappedScan.apply(setting, *probes, *a)
    hidden.tap.note(hidden, Moments(h_mean, h_var), *probes)
    return tuple(outputs)


class _TappedScan(torch.autograd.Function):
    """The state before every step, in the order of steps; and what a scan gives."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, *tensors: Any) -> Any:
        a, steps = Inputs(*tensors[2:]), setting.steps
        history = _run(setting, a, keep=True)
        ctx.linear = _Linear(setting, a, history, has_probes=tensors[0] is not None)
        outputs = [copied(steps.after(part), part) for part in history[:2]]
        finals = [copied(steps.final_of(part), part) for part in history[2:4] if part is not None]
        before = [steps.before(part).detach() for part in history[:2]]
        ctx.mark_non_differentiable(*before)
        return *before, *outputs, *finals

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # Gradients of what is before steps are there by rule, and are nothing.
        linear, needs_x_var = ctx.linear, ctx.needs_input_grad[4]
        backward = linear.backward if ctx.needs_input_grad[1] else linear.backward_compiled
        found = rows_of_batch(lambda *out: backward(needs_x_var, *out), grads[2:])
        if not ctx.needs_input_grad[1]:
            found = [None, None, *found]  # type: ignore[list-item]
        states = found[4 if needs_x_var else 3 :]
        x_grads = [*found[2:4]] if needs_x_var else [found[2], None]
        no_weights = (None,) * 4
        padding = (None,) * (4 - len(states))
        return None, *found[:2], *x_grads, *no_weights, *states, *padding, None


class _Linear:
    """The adjoint of a scan."""

    def __init__(self, setting: Setting, a: Inputs, history: _History, has_probes: bool) -> None:
        self.setting, self.a, self.history, self.has_probes = setting, a, history, has_probes
        self.coefficients: Coefficients
        self.forms: Tensor
        """see `remainder_forms`; (pairs, rows, H), rows in the order of steps"""
        tap = setting.cell.hidden.tap
        assert tap is not None
        self._alike: list[_Linear] = tap.scans()
        self._alike.append(self)

    def backward(
        self, needs_x_var: bool, out_mean: Tensor, out_var: Tensor, *by_cell: Tensor
    ) -> list[Tensor]:
        """(rows, K, H) in the order of time, (B, K, H) each -> gradients likewise.

        Of the products with h in the order of steps, of those with x in the order of time (by the
        variance where it is needed), of the initial state.
        """
        steps = self.setting.steps
        batch, last, states = self._start(out_mean, out_var, by_cell)
        is_shared = self.setting.kernels.one_gradient and not steps.reverse
        count = 2 if is_shared else 4 if needs_x_var else 3
        shape = len(self.a.x_mean), batch, self.a.x_mean.shape[-1]
        grads = [out_mean.new_empty(shape) for _ in range(count)]
        if last < steps.count - 1:
            for part in grads:
                part[_starts(steps.sizes)[last + 1] :] = 0
        self._run(out_mean, out_var, grads, states, last)
        x_grads = grads[:2] if is_shared else grads[2:]
        return [*grads[:2], *x_grads[: 2 if needs_x_var else 1], *states]

    def backward_compiled(
        self, needs_x_var: bool, out_mean: Tensor, out_var: Tensor, *by_cell: Tensor
    ) -> list[Tensor]:
        """The same by one call of C, which sums the gradients by the weights up itself."""
        from spgru.recurrent.kernels.native.functions import many_adjoints

        a, steps, hidden = self.a, self.setting.steps, self.setting.cell.hidden
        batch, last, states = self._start(out_mean, out_var, by_cell)
        shape = len(a.x_mean), batch, a.x_mean.shape[-1]
        x_grads = [out_mean.new_empty(shape) for _ in range(2 if needs_x_var else 1)]
        if last < steps.count - 1:
            for part in x_grads:
                part[_starts(steps.sizes)[last + 1] :] = 0
        assert hidden.tap is not None
        many_adjoints(
            steps, last, coefficients=self.coefficients,
            h_mean=steps.before(self.history.h_mean), h_var=steps.before(self.history.h_var),
            weight=a.weight, weight_moments=a.weight_moments, slope=hidden.second_moment_slope(),
            out=(out_mean, out_var), states=states, x_grads=x_grads,
            sums=hidden.tap.add_to(hidden, steps.sequences, batch),
            forms=self.forms, remainder=hidden.tap.remainder(hidden, steps.sequences, batch),
        )  # fmt: skip
        return [*x_grads, *states]

    def _start(
        self, out_mean: Tensor, out_var: Tensor, by_cell: tuple[Tensor, ...]
    ) -> tuple[int, int, list[Tensor]]:
        """Number of outputs, the last step with a gradient, gradients of the state after it."""
        steps, size = self.setting.steps, self.a.h_mean.shape[-1]
        batch = max(part.shape[1] for part in (out_mean, out_var, *by_cell))
        last = steps.count - 1 if by_cell else _last_step(steps, out_mean, out_var)
        states = [out_mean.new_zeros(steps.sequences, batch, size) for _ in range(2)]
        states += [
            part.expand(-1, batch, -1).clone(memory_format=torch.contiguous_format)
            for part in by_cell
        ]
        return batch, last, states

    def _run(
        self, out_mean: Tensor, out_var: Tensor, grads: list[Tensor], states: list[Tensor],
        last: int,
    ) -> None:  # fmt: skip
        """Fills `grads` and `states` from step `last` on."""
        a, steps, c = self.a, self.setting.steps, self.coefficients
        size, batch = a.h_mean.shape[-1], states[0].shape[1]
        out_means, out_vars = (part.split(steps.batch_sizes) for part in (out_mean, out_var))
        starts, by_time = _starts(steps.sizes), _starts(steps.batch_sizes)
        h_mean = steps.before(self.history.h_mean)
        by_mean, by_var, *cells = states
        hidden = self.setting.cell.hidden
        assert hidden.tap is not None
        remainder = hidden.tap.remainder(hidden, steps.sequences, batch)
        for k in reversed(range(last + 1)):
            t, n, at = steps.times[k], steps.sizes[k], slice(starts[k], starts[k + 1])
            by_mean[:n] += out_means[t]
            by_var[:n] += out_vars[t]
            incoming = [part[:n] for part in states]
            remainder[:n] += evaluate_forms(self.forms[:, at], incoming)
            p_mean, p_var = (part[at] for part in grads[:2])
            _combine(p_mean, incoming, c.p_mean[:, at])
            _combine(p_var, incoming, c.p_var[:, at])
            there = slice(by_time[t], by_time[t] + n)
            for grad, coefficients in zip(grads[2:], (c.x_mean, c.x_var), strict=False):
                _combine(grad[there], incoming, coefficients[:, at])
            carried = [torch.empty_like(by_mean[:n]) for _ in range(2)]
            _combine(carried[0], incoming, c.carried_mean[:, at])
            _combine(carried[1], incoming, c.carried_var[:, at])
            new_mean = torch.mm(p_mean.flatten(0, 1), a.weight).view(n, batch, size)
            moments = torch.mm(p_var.flatten(0, 1), a.weight_moments).view(n, batch, 2 * size)
            by_square, new_var = moments.split(size, -1)
            by_mean[:n] = torch.addcmul(new_mean, h_mean[at].unsqueeze(1), by_square, value=2)
            by_var[:n] = new_var
            for old, new in zip(cells or states, carried, strict=True):
                old[:n] = new if cells else old[:n] + new

    def prepare(self) -> None:
        """Compute `coefficients` and `forms`, for all scans by this map at once.

        What reads itself back has a scan for every step, and a call costs as much as a small step.
        """
        setting = self.setting
        parts = [scan._values() for scan in self._alike]
        joined: list[Any] = [
            None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)
        ]
        bias = self.a.bias, self.a.bias_var
        coefficients = step_coefficients(setting.kernels, *bias, *joined)
        if self.a.bias is not None and self.a.bias_var is not None:
            joined[2:4] = joined[2] + self.a.bias, joined[3] + self.a.bias_var
        values, weight_var = Values(*joined), setting.cell.hidden.weight_var
        assert weight_var is not None
        # Who is told of every use by probes knows the remainder of the products.
        product_var = None if self.has_probes else values.h_var @ weight_var.T
        forms = remainder_forms(setting.cell.name, values, coefficients, product_var)
        rows = [len(part[0]) for part in parts]
        split = [part.split(rows, 1) for part in (*coefficients, forms)]
        for scan, own in zip(self._alike, zip(*split, strict=True), strict=True):
            scan.coefficients, scan.forms = Coefficients._make(own[:-1]), own[-1]

    def _values(self) -> list[Any]:
        """Products with x and h, states before the step; rows in the order of steps."""
        a, history, steps = self.a, self.history, self.setting.steps
        x = [_in_order_of_steps(steps, part) for part in (a.x_mean, a.x_var)]
        p = [torch.cat(part) for part in (history.p_mean, history.p_var)]
        states = [None if part is None else steps.before(part) for part in history[:4]]
        return [*x, *p, *states]


def step_coefficients(
    kernels: Any, bias: Tensor | None, bias_var: Tensor | None, x_mean: Tensor, x_var: Tensor,
    p_mean: Tensor, p_var: Tensor, h_mean: Tensor, h_var: Tensor, c_mean: Tensor | None,
    c_var: Tensor | None,
) -> Coefficients:  # fmt: skip
    """Of steps whose rows are all there is; see `Values`, but p is without bias."""
    size = h_mean.shape[-1]
    zeros, ones = torch.zeros_like(h_mean), torch.ones_like(h_mean)
    no_moments = h_mean.new_zeros(*h_mean.shape[:-1], 2 * size)
    places = 4 if kernels.has_cell else 2
    is_shared = kernels.one_gradient
    x_grads = [x_mean.new_empty(places, *x_mean.shape) for _ in range(2)]
    p_grads = x_grads
    if not is_shared:
        p_grads = [x_mean.new_empty(places, *x_mean.shape) for _ in range(2)]
    carried = [h_mean.new_zeros(places, *h_mean.shape) for _ in range(2)]
    for place in range(places):
        if place >= 2:  # gradients of a cell come in where that of the step before is put
            carried[place - 2][place] = 1
        kernels.backward(
            x_mean=x_mean, x_var=x_var, p_mean=p_mean, p_var=p_var,
            bias=bias, bias_var=bias_var, coherence=None, h_mean=h_mean, h_var=h_var,
            c_mean=c_mean, c_var=c_var, new_mean=zeros,
            out_mean=ones if place == 0 else zeros, out_var=ones if place == 1 else zeros,
            by_operand_mean=zeros, by_operand_moments=no_moments,
            x_mean_grad=x_grads[0][place], x_var_grad=x_grads[1][place],
            p_mean_grad=None if is_shared else p_grads[0][place],
            p_var_grad=None if is_shared else p_grads[1][place],
            coherence_grad=None, carried_mean=carried[0][place], carried_var=carried[1][place],
            rows=h_mean.numel() // size, size=size,
        )  # fmt: skip
    return Coefficients(*x_grads, *p_grads, *carried)


def _combine(result: Tensor, incoming: list[Tensor], coefficients: Tensor) -> None:
    """The sum over places of their coefficients (places, n, gates H) times (n, K, H)."""
    size = incoming[0].shape[-1]
    by_unit = result.unflatten(-1, (-1, size))
    for place, part in enumerate(incoming):
        coefficient = coefficients[place].unflatten(-1, (-1, size)).unsqueeze(1)
        if place == 0:
            torch.mul(part.unsqueeze(2), coefficient, out=by_unit)
        else:
            by_unit.addcmul_(part.unsqueeze(2), coefficient)


def _has_compiled() -> bool:
    from spgru.recurrent.kernels.native import library

    return library.obstacle() is None


def _starts(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _last_step(steps: Steps, out_mean: Tensor, out_var: Tensor) -> int:
    """The last step whose result has a gradient: there is nothing to do after it."""
    if steps.count == 1 or steps.reverse or not out_mean.is_cpu:
        return steps.count - 1
    # From the last on: often there is one there, and the others need not be looked at.
    parts = [steps.split(part) for part in (out_mean, out_var)]
    for k in reversed(range(steps.count)):
        if any(bool(part[steps.times[k]].any()) for part in parts):
            return k
    return 0


def _in_order_of_steps(steps: Steps, rows: Tensor) -> Tensor:
    if not steps.reverse:
        return rows
    return torch.cat([steps.split(rows)[t] for t in steps.times])
