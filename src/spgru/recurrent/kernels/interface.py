"""What a scan by kernels is given and gives: its cell, its tensors in rows, and the way back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spgru.functional.kernels.rows import as_rows
from spgru.moments import Moments
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.by_reference import PreparedMap, reference_scan
from spgru.recurrent.kernels.prepared import Prepared
from spgru.recurrent.kernels.products import StepProduct
from spgru.recurrent.kernels.steps import Steps

__all__ = [
    "CellKernels", "Inputs", "Setting", "copied", "is_differentiated", "make_inputs",
    "reference_of", "restore", "without_autocast",
]  # fmt: skip


class StepKernel(Protocol):
    def __call__(self, *, rows: int, size: int, **tensors: Tensor | None) -> None: ...


class CellKernels(NamedTuple):
    """The kernels of one cell."""

    forward: StepKernel
    """a step without its products"""
    backward: StepKernel
    """its adjoint"""
    has_cell: bool
    """whether a second state goes from step to step beside the first, as in an LSTM"""
    one_gradient: bool
    """whether the products with x and with h only ever appear as their sum"""
    persistent: Any = None
    """kernels of all steps at once, where there are any"""


class Setting(NamedTuple):
    """What a scan knows beside tensors."""

    kernels: Any
    cell: Cell
    product: StepProduct
    steps: Steps
    prepared: Prepared


class Inputs(NamedTuple):
    """The tensors by which a scan is differentiated, each contiguous."""

    x_mean: Tensor
    """(rows, ..., gates H), rows in the order of time"""
    x_var: Tensor
    weight: Tensor
    weight_moments: Tensor
    bias: Tensor | None
    bias_var: Tensor | None
    h_mean: Tensor
    """(B, ..., H), the initial state"""
    h_var: Tensor
    c_mean: Tensor | None
    """the initial cell of an LSTM"""
    c_var: Tensor | None
    coherence: Tensor | None
    """(H,)"""


def without_autocast(weight: Tensor) -> AbstractContextManager[Any]:
    """Where a kernel's own products run: their dtypes are chosen already."""
    device = weight.device.type
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def is_differentiated(a: Inputs) -> bool:
    return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in a)


def copied(part: Tensor, original: Tensor) -> Tensor:
    """A tensor of its own memory, copied only if it lies in the original's."""
    base = part._base
    shares = base is not None and (base is original or base is original._base)
    return part.clone() if shares else part


def reference_of(setting: Setting) -> Any:
    """The outputs of a scan as a function of its inputs, by torch's own operations."""

    def outputs_of(*tensors: Any) -> list[Tensor]:
        a = Inputs(*tensors)
        hidden = PreparedMap(
            setting.product, a.weight, a.weight_moments, a.bias, a.bias_var, a.coherence
        )
        state: tuple[Moments, ...] = (Moments(a.h_mean, a.h_var),)
        if a.c_mean is not None and a.c_var is not None:
            state += (Moments(a.c_mean, a.c_var),)
        x = Moments(a.x_mean.float(), a.x_var.float())
        output, final, _ = reference_scan(setting.cell, hidden, x, state, setting.steps)
        return [*output, *(part for moments in final[1:] for part in moments)]

    return outputs_of


def _shaped(part: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view only where there is something to do, since each is a node for a backward pass."""
    return part if part.shape == shape else part.view(shape)


def make_inputs(
    inputs: Moments, state: tuple[Moments, ...], prepared: Prepared, steps: Steps
) -> Inputs:
    """Everything as kernels read it.

    Args:
        inputs: (T, *batch, gates H), or (rows, gates H)
        state: (*batch, H) each
    """
    h, *cells = state
    batch = h.shape[:-1] or torch.Size([1])
    rows = sum(steps.batch_sizes), *batch[1:]
    x_mean, x_var = (_shaped(as_rows(part), (*rows, part.shape[-1])) for part in inputs)
    parts = [
        _shaped(as_rows(part.float()), (*batch, part.shape[-1])) for m in (h, *cells) for part in m
    ]
    weights = prepared.weight, prepared.weight_moments, prepared.bias, prepared.bias_var
    padding = [None] * (4 - len(parts))
    return Inputs._make((x_mean, x_var, *weights, *parts, *padding, prepared.coherence))


def restore(
    mean: Tensor, var: Tensor, cells: Any, shape: tuple[int, ...], state: tuple[Moments, ...],
    steps: Steps, dtype: torch.dtype, differentiable: bool,
) -> tuple[Moments, tuple[Moments, ...]]:  # fmt: skip
    """Output rows as (*shape, H), and the final state."""
    batch = state[0].shape[:-1]
    output = Moments(mean, var).to(dtype)
    ends = [steps.final(part) for part in output]
    if differentiable:
        ends = [copied(part, whole) for part, whole in zip(ends, output, strict=True)]
        ends += [part.to(dtype) for part in cells]
    else:
        # In one piece of memory of their own, which is one copy; detached, because torch lets
        # nobody write to a view that was made without gradients.
        joined = torch.stack([*ends, *(part.to(dtype) for part in cells)])
        ends = [joined[k].detach() for k in range(len(joined))]
    ends = [part.view(*batch, part.shape[-1]) for part in ends]
    shape = *shape, mean.shape[-1]
    final = tuple(Moments(*ends[k : k + 2]) for k in range(0, len(ends), 2))
    return Moments(output.mean.view(shape), output.var.view(shape)), final
