"""One step of a stream, without the work that a sequence needs."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from spgru.checks import is_transformed
from spgru.functional import Affine
from spgru.moments import Moments, observed_as_one
from spgru.recurrent.backend import Backend, explain, run
from spgru.recurrent.cell import Cell

__all__ = ["single_step"]


@observed_as_one
def single_step(
    cell: Cell,
    x: Tensor | Moments,
    state: tuple[Any, ...],
    input_map: Affine,
    backend: Backend = "auto",
) -> tuple[Any, ...]:
    """The state after one step, each (*batch, H); `run` for a sequence of one step.

    Small batches on a CPU without gradients are one call of C. It is fastest if `cell.hidden` and
    `input_map` are the same objects at every step, as for frozen weights.

    Args:
        x: (*batch, I)
        state: (*batch, H) each
        input_map: I -> gates H
    """
    if not torch.is_grad_enabled() and x.dtype is torch.float32:
        steps = _in_one_call(cell, x, state, input_map, backend)
        if steps is not None:
            return steps.step(x, state)  # type: ignore[no-any-return]
    return run(cell, x.unsqueeze(0), state, input_map=input_map, backend=backend).final


def _in_one_call(
    cell: Cell, x: Tensor | Moments, state: tuple[Any, ...], input_map: Affine, backend: Backend
) -> Any:
    """The step as one call of C, None where there is none or something else is faster."""
    # Asked first: nothing that computes constants may be imported inside a transform.
    if is_transformed(x, *state):
        return None
    native = _native()
    # Cached with the weights once `explain` has found that C can take them.
    is_known = native.WholeSteps in cell.hidden.cache and backend in ("auto", "compiled")
    if not is_known and explain(cell, x, state, backend).backend != "compiled":
        return None
    return native.whole_steps(cell, input_map, x.shape[:-1].numel(), 1)


@cache
def _native() -> Any:
    """Imported when first needed, and not looked up again at every step."""
    from spgru.recurrent.kernels.native import whole_steps

    return whole_steps
