"""Which implementation runs a cell over time.

`"reference"` is `scan`, which does everything and runs everywhere. `"triton"` is one kernel for
all steps, or one a step, for GPUs; `"compiled"` is C for CPUs, compiled when first needed. `"auto"`
takes the fastest that supports the case; a backend asked for by name is obeyed or refused, with the
reason. `explain` tells which one it is, and why it is no kernel.

Kernels compute in float32 at least. On a CPU that holds for layers of 16 bits and under autocast
too: inputs and weights are converted once and only the result is rounded, which is more exact than
arithmetic of 16 bits. Where gradients are differentiated again (`create_graph=True`) or are several
at once (`is_grads_batched=True`), they are computed by the reference.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from spgru.checks import has_triton, is_differentiated_forward, is_transformed
from spgru.functional import Affine
from spgru.functional.products import Matrix, SameConvolution
from spgru.moments import Moments, observed_as_one
from spgru.recurrent.cell import Cell
from spgru.recurrent.exporting import run_exportable
from spgru.recurrent.operator import run_as_operator
from spgru.recurrent.scan import Trajectory, scan, scan_packed

__all__ = ["BACKENDS", "Backend", "Choice", "explain", "run"]

Backend = Literal["auto", "reference", "triton", "compiled"]
BACKENDS = get_args(Backend)


class Choice(NamedTuple):
    """The implementation that runs a case."""

    backend: Literal["reference", "triton", "compiled"]
    reason: str | None
    """why it is no kernel, None where it is one"""


def _interprets() -> bool:
    """Triton's own switch for running kernels on a CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _common_obstacle(cell: Cell, x: Any, state: tuple[Any, ...], record: bool) -> str | None:
    """Why no kernel can do this, None if one can."""
    hidden = cell.hidden
    if hidden.tap is not None:
        reason = _tap_obstacle(cell)
        if reason is not None:
            return reason
    if record:
        return "neurons are recorded (by trace or audit), which only the reference does"
    if cell.obstacle is not None:
        return cell.obstacle
    if cell.family.name != "gaussian":
        return f"there is no kernel for family={cell.family.name!r}"
    if cell.rule != "exact":
        return f"there is no kernel for rule={cell.rule!r}"
    if type(hidden.product) not in (Matrix, SameConvolution):
        return f"there is no kernel for products of the kind {type(hidden.product).__name__}"
    if is_transformed(x, *state, hidden.weight, hidden.weight_var, hidden.bias, hidden.bias_var):
        return (
            "kernels cannot run inside a compiler, a transform of torch.func or forward-mode "
            "derivatives, nor on subclasses of Tensor"
        )
    if x.dtype == torch.float64:
        return "kernels compute in float32, and x is float64"
    return None


def _tap_obstacle(cell: Cell) -> str | None:
    """Why no kernel can tell what becomes of a use of the weights."""
    if cell.hidden.tap is not None and cell.hidden.tap.needs_reference:
        return "the response is to be differentiated, which only the reference can be"
    if cell.name == "gru_reset_before" or type(cell.hidden.product) is not Matrix:
        return "kernels give the response of matrix products with the state only"
    if cell.hidden.weight.dtype != torch.float32:
        return "kernels give the response in float32 only"
    if cell.hidden.coherence is not None:
        return "kernels give the response without coherences only"
    return None


def _triton_obstacle(cell: Cell, x: Any) -> str | None:
    if x.device.type != "cuda" and not _interprets():
        return f"x is on {x.device.type}, and Triton needs a GPU"
    if not has_triton():
        return "triton is not installed"
    if cell.name == "gru_reset_before":
        return "there is no kernel for reset_after=False on GPUs"
    if cell.hidden.weight_var is None and cell.name != "gru":
        return "there is no kernel for weights that are drawn or held at their means"
    return None


def _compiled_obstacle(cell: Cell, x: Any) -> str | None:
    from spgru.recurrent.kernels.native import library

    if x.device.type != "cpu":
        return f"x is on {x.device.type}, and it is made for CPUs"
    if cell.hidden.weight_var is None:
        return "there is no kernel for weights that are drawn or held at their means"
    return library.obstacle()


def explain(
    cell: Cell,
    x: Tensor | Moments,
    state: tuple[Any, ...],
    backend: Backend = "auto",
    record: bool = False,
) -> Choice:
    """Who runs a cell, and why it is no kernel. An explicit backend that cannot is refused.

    Args:
        x: as for `run`
        state: as for `run`
        record: whether all neurons are to be returned
    """
    if backend == "reference":
        return Choice("reference", "backend='reference' was asked for")
    reason = _common_obstacle(cell, x, state, record)
    if backend == "auto":
        if reason is None and x.device.type == "cuda":
            reason = _triton_obstacle(cell, x)
            return Choice("triton" if reason is None else "reference", reason)
        if reason is None:
            reason = _compiled_obstacle(cell, x)
            if reason is None:
                return Choice("compiled", None)
            _warn_if_of_machine(reason)
        return Choice("reference", reason)
    if reason is None:
        own = _triton_obstacle if backend == "triton" else _compiled_obstacle
        reason = own(cell, x)
    if reason is not None:
        raise ValueError(
            f"backend={backend!r} is not possible: {reason}; use backend='auto' or 'reference'"
        )
    return Choice(backend, None)


_warned: set[str] = set()


def _warn_if_of_machine(reason: str) -> None:
    """Said once: everything works, but some ten times slower than it could."""
    from spgru.recurrent.kernels.native import library

    is_of_machine = library.platform_obstacle() is None and reason == library.obstacle()
    if is_of_machine and reason not in _warned:
        _warned.add(reason)
        text = f"spgru runs recurrent layers by its slow reference: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


@observed_as_one
def run(
    cell: Cell,
    x: Tensor | Moments,
    state: tuple[Any, ...],
    *,
    input_map: Affine | None = None,
    backend: Backend = "auto",
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    record: bool = False,
) -> Trajectory:
    """A cell along time, by its reference or by a kernel that is faster and equal.

    Args:
        x: (T, *batch, I), or (rows, I) as in the data of a `PackedSequence`
        state: (*batch, H) each; packed sequences sorted by falling length
        input_map: I -> gates H; None if x holds its results already, I = gates H
        reverse: from the last time to the first
        batch_sizes: of a `PackedSequence`, None for sequences of equal length
        record: return all neurons, not only the states
    """
    if torch.compiler.is_compiling() and not record and batch_sizes is None:
        # Not by torch.compiler.is_exporting(), which torch 2.11 says yes to in torch.compile too.
        if torch.compiler._is_exporting_flag:
            if x.shape[0] != 1:
                return run_exportable(cell, x, state, input_map, reverse)
        elif not is_differentiated_forward():
            result = run_as_operator(cell, x, state, input_map, backend, reverse)
            if result is not None:
                return result
    chosen, _ = explain(cell, x, state, backend, record)
    if chosen == "reference":
        inputs = x if input_map is None else input_map(x)
        if batch_sizes is not None:
            return scan_packed(cell.step, inputs, state, batch_sizes, reverse, record)
        return scan(cell.step, inputs, state, reverse, None, record)
    # Imported when first needed: Triton takes a second, and need not be there.
    from spgru.recurrent.kernels import front

    sizes = None if batch_sizes is None else batch_sizes.tolist()
    return front.run(chosen, cell, x, state, input_map, sizes, reverse)
