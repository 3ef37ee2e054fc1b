"""Which implementation runs a layer over time.

`"reference"` is `scan`, which does everything and runs everywhere. `"triton"` is one kernel for
all steps, or one a step, for GPUs; `"compiled"` is C for CPUs, compiled when first needed. `"auto"`
takes the fastest that supports the case; a backend asked for by name is obeyed or refused. Where
neurons are recorded there is no choice to make: that is the reference's work. So are plain numbers
(weights drawn or held at their means), but for the GRU on a GPU, which has a kernel.

Kernels give first derivatives. For second ones use `backend="reference"`.
"""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgru.checks import has_triton, is_transformed
from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.linear import WeightedSum
from spgru.recurrent.scan import Neurons, Step, scan

__all__ = ["BACKENDS", "Backend", "Kernel", "Scan", "run"]

Backend = Literal["auto", "reference", "triton", "compiled"]
BACKENDS = get_args(Backend)
Kernel = Literal["gru", "lstm", "rnn"]

Scan = tuple[Any, tuple[Any, ...], Neurons[Any]]
"""States after every step, the final state, and the neurons if they were recorded."""


def _interprets() -> bool:
    """Triton's own switch for running kernels on a CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _common_obstacle(
    inputs: Any,
    state: tuple[Any, ...],
    hidden: Affine,
    family: Family,
    rule: Rule,
    mask: Tensor | None,
) -> str | None:
    """Why no kernel can do this, None if one can."""
    weights = hidden.weight, hidden.weight_var, hidden.bias, hidden.bias_var
    if is_transformed(inputs, *state, *weights):
        return "a compiler, a transformation or a kind of tensor is at work that it does not know"
    if family.name != "gaussian":
        return f"there is no kernel for family={family.name!r}"
    if rule != "exact":
        return f"there is no kernel for rule={rule!r}"
    if mask is not None:
        return "there is no kernel for packed sequences"
    if inputs.dtype == torch.float64:
        return "kernels compute in float32, and x is float64"
    return None


def _triton_obstacle(device: torch.device) -> str | None:
    if device.type != "cuda" and not _interprets():
        return f"x is on {device.type}, and Triton needs a GPU"
    return None if has_triton() else "triton is not installed"


def _compiled_obstacle(inputs: Any, hidden: Affine) -> str | None:
    from spgru.recurrent.kernels.native import library

    if inputs.device.type != "cpu":
        return f"x is on {inputs.device.type}, and it is made for CPUs"
    if isinstance(inputs, Tensor):
        return "there is no kernel for plain numbers"
    if {inputs.dtype, hidden.weight.dtype} != {torch.float32} or torch.is_autocast_enabled("cpu"):
        return "it computes in float32 alone"
    return library.obstacle()


def _choose(
    backend: Backend, obstacle: str | None, inputs: Any, hidden: Affine
) -> Literal["reference", "triton", "compiled"]:
    """The implementation to use, or a refusal of the one that was asked for."""
    if backend == "reference":
        return "reference"
    if backend == "auto":
        if obstacle is not None:
            return "reference"
        if inputs.device.type == "cuda" and _triton_obstacle(inputs.device) is None:
            return "triton"
        return "reference" if _compiled_obstacle(inputs, hidden) else "compiled"
    own = (
        _triton_obstacle(inputs.device)
        if backend == "triton"
        else _compiled_obstacle(inputs, hidden)
    )
    if obstacle or own:
        raise ValueError(
            f"backend={backend!r} is not possible: {obstacle or own}; use backend='auto'"
        )
    return backend


def run(
    kernel: Kernel,
    step: Step[Any],
    inputs: Any,
    state: tuple[Any, ...],
    hidden: Affine,
    family: Family,
    rule: Rule,
    backend: Backend = "auto",
    obstacle: str | None = None,
    weighted_sum: WeightedSum | None = None,
    reverse: bool = False,
    mask: Tensor | None = None,
    record: bool = False,
) -> Scan:
    """`scan` of a step, or a kernel that is faster and equal.

    Args:
        kernel: whose kernel
        step: the reference
        inputs: (T, *batch, gates H), the products with x, bias included
        state: (*batch, H) each
        hidden: H -> gates H
        obstacle: why a layer as it is configured has no kernel, if so
        weighted_sum: None for products of matrices, else the convolution of the reference
    """
    # Plain numbers have a kernel for the GRU in Triton only.
    on_gpu = inputs.device.type == "cuda" or (backend == "triton" and _interprets())
    if record or (isinstance(inputs, Tensor) and not (kernel == "gru" and on_gpu)):
        return scan(step, inputs, state, reverse, mask, record)
    obstacle = obstacle or _common_obstacle(inputs, state, hidden, family, rule, mask)
    chosen = _choose(backend, obstacle, inputs, hidden)
    if chosen == "reference":
        return scan(step, inputs, state, reverse, mask)
    return _run_kernel(chosen, kernel, inputs, state, hidden, weighted_sum, reverse)


def _run_kernel(
    backend: Literal["triton", "compiled"],
    kernel: Kernel,
    inputs: Any,
    state: tuple[Any, ...],
    hidden: Affine,
    weighted_sum: WeightedSum | None,
    reverse: bool,
) -> Scan:
    # Imported when first needed: Triton takes a second, and need not be there.
    from spgru.recurrent.kernels.products import Convolution, Matrix, PackedMatrix, Product
    from spgru.recurrent.kernels.scan import kernel_scan

    product: Product = Matrix() if weighted_sum is None else Convolution()
    if backend == "compiled" and weighted_sum is None and PackedMatrix.is_possible(hidden.weight):
        product = PackedMatrix()
    if isinstance(inputs, Tensor):
        from spgru.recurrent.kernels.plain_gru import plain_gru_scan

        plain, last = plain_gru_scan(inputs, state[0], hidden, product, reverse)
        return plain, (last,), {}
    cells: Any
    if backend == "triton":
        from spgru.recurrent.kernels import triton_cells as cells
    else:
        from spgru.recurrent.kernels.native import cells
    cell = {"gru": cells.GRU, "lstm": cells.LSTM, "rnn": cells.RNN}[kernel]
    output, final = kernel_scan(cell, inputs, state, hidden, product, reverse)
    return output, final, {}
