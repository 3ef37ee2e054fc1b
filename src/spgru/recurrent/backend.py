"""Which implementation runs a layer over time.

`"reference"` is `scan`, which does everything and runs everywhere. `"triton"` fuses a step into one
kernel. `"auto"` takes the fastest that supports the case; a backend asked for by name is obeyed
or refused. Where neurons are recorded there is no choice to make: that is the reference's work. So
are plain numbers (weights drawn or held at their means), but for the GRU, which has a kernel.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.linear import WeightedSum
from spgru.recurrent.scan import Neurons, Step, scan

__all__ = ["BACKENDS", "Backend", "Kernel", "Scan", "run"]

Backend = Literal["auto", "reference", "triton"]
BACKENDS = get_args(Backend)
Kernel = Literal["gru", "lstm", "rnn"]

Scan = tuple[Any, tuple[Any, ...], Neurons[Any]]
"""States after every step, the final state, and the neurons if they were recorded."""


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _interprets() -> bool:
    """Triton's own switch for running kernels on a CPU, slowly, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _obstacle(inputs: Any, family: Family, rule: Rule, mask: Tensor | None) -> str | None:
    """Why a kernel cannot do this, None if it can."""
    if inputs.device.type != "cuda" and not _interprets():
        return f"x is on {inputs.device.type}, and Triton needs a GPU"
    if not _has_triton():
        return "triton is not installed"
    if family.name != "gaussian":
        return f"there is no kernel for family={family.name!r}"
    if rule != "exact":
        return f"there is no kernel for rule={rule!r}"
    if mask is not None:
        return "there is no kernel for packed sequences"
    if inputs.dtype == torch.float64:
        return "kernels compute in float32, and x is float64"
    return None


def _use_kernel(backend: Backend, on_gpu: bool, obstacle: str | None) -> bool:
    if backend == "triton" and obstacle is not None:
        raise ValueError(f"backend='triton' is not possible: {obstacle}; use backend='auto'")
    # Compiled code is fused by the compiler, which does not see through our kernels.
    is_choice = on_gpu and obstacle is None and not torch.compiler.is_compiling()
    return backend == "triton" or (backend == "auto" and is_choice)


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
    is_plain = isinstance(inputs, Tensor)
    if not record and (kernel == "gru" or not is_plain):
        obstacle = obstacle or _obstacle(inputs, family, rule, mask)
        if _use_kernel(backend, inputs.device.type == "cuda", obstacle):
            return _run_kernel(kernel, inputs, state, hidden, weighted_sum, reverse)
    return scan(step, inputs, state, reverse, mask, record)


def _run_kernel(
    kernel: Kernel,
    inputs: Any,
    state: tuple[Any, ...],
    hidden: Affine,
    weighted_sum: WeightedSum | None,
    reverse: bool,
) -> Scan:
    # Imported when first needed: Triton takes a second.
    from spgru.recurrent.kernels.gru import GRU
    from spgru.recurrent.kernels.lstm import LSTM
    from spgru.recurrent.kernels.plain_gru import plain_gru_scan
    from spgru.recurrent.kernels.products import Convolution, Matrix
    from spgru.recurrent.kernels.rnn import RNN
    from spgru.recurrent.kernels.scan import kernel_scan

    product = Matrix() if weighted_sum is None else Convolution()
    if isinstance(inputs, Tensor):
        plain, last = plain_gru_scan(inputs, state[0], hidden, product, reverse)
        return plain, (last,), {}
    cell = {"gru": GRU, "lstm": LSTM, "rnn": RNN}[kernel]
    output, final = kernel_scan(cell, inputs, state, hidden, product, reverse)
    return output, final, {}
