"""Gradients of a kernel by its reference, where they are to be differentiated again or are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.checks import is_transformed
from spgru.functional.products import Product
from spgru.moments import Moments
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.steps import Steps
from spgru.recurrent.scan import Trajectory, scan, scan_packed

__all__ = ["PreparedMap", "differentiate", "needs_reference", "reference_scan"]


def needs_reference(*gradients: Tensor | None) -> bool:
    """Whether a backward pass is to be differentiated again, or stands for several at once."""
    # Gradients are recorded in a backward pass only where a second one is to come.
    return torch.is_grad_enabled() or is_transformed(*gradients)


class PreparedMap(NamedTuple):
    """The map of a state as a function of the tensors that a kernel is differentiated by."""

    product: Product
    weight: Tensor
    weight_moments: Tensor
    bias: Tensor | None
    bias_var: Tensor | None
    coherence: Tensor | None

    def __call__(self, h: Moments) -> Moments:
        moments = torch.cat([h.mean**2, h.var], -1)
        return Moments(
            self.product(h.mean, self.weight.float(), self.bias),
            self.product(moments, self.weight_moments.float(), self.bias_var),
        )

    def rows(self, start: int, stop: int) -> PreparedMap:
        """The map to outputs `start` to `stop` only."""
        bias, bias_var = (
            None if part is None else part[start:stop] for part in (self.bias, self.bias_var)
        )
        return self._replace(
            weight=self.weight[start:stop],
            weight_moments=self.weight_moments[start:stop],
            bias=bias,
            bias_var=bias_var,
        )


def reference_scan(
    cell: Cell, hidden: Any, inputs: Any, state: tuple[Any, ...], steps: Steps
) -> Trajectory:
    """The cell along time with the map `hidden` in place of its own.

    Args:
        inputs: (rows, ..., gates H) in the order of time
        state: (B, ..., H) each
    """
    step = cell.equation(hidden)
    if not steps.are_equal:
        return scan_packed(step, inputs, state, torch.tensor(steps.batch_sizes), steps.reverse)
    shape = steps.count, steps.sequences, *inputs.shape[1:]
    output, final, neurons = scan(step, inputs.reshape(*shape), state, steps.reverse)
    return Trajectory(output.reshape(-1, *output.shape[2:]), final, neurons)


def differentiate(
    outputs_of: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor],
) -> list[Tensor | None]:
    """Gradients of the inputs that are needed, None for the others."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because one input may have been made from another, which autograd must not follow.
        views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        outputs = outputs_of(*views)
    wanted = [view for view, need in zip(views, needed, strict=True) if need and view is not None]
    found = iter(
        torch.autograd.grad(outputs, wanted, gradients, create_graph=again, allow_unused=True)
    )
    return [
        next(found) if need and view is not None else None
        for view, need in zip(views, needed, strict=True)
    ]
