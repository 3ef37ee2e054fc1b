"""Which implementation runs a layer over time.

`"reference"` is `scan`, which does everything and runs everywhere. `"triton"` fuses a step into one
kernel. `"auto"` takes the fastest that supports the case; a backend asked for by name is obeyed
or refused. Where neurons are recorded there is no choice to make: that is the reference's work.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.linear import WeightedSum
from spgru.moments import Moments
from spgru.recurrent.gru import gru_step, gru_step_reset_before
from spgru.recurrent.scan import Neurons, Step, scan

__all__ = ["BACKENDS", "Backend", "Scan", "make_gru_step", "run_gru"]

Backend = Literal["auto", "reference", "triton"]
BACKENDS = get_args(Backend)

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


def make_gru_step(
    hidden: Affine,
    size: int,
    reset_after: bool,
    family: Family,
    rule: Rule,
    weighted_sum: WeightedSum | None = None,
) -> Step[Any]:
    """The reference step; `weighted_sum` as in `Affine`, None for products of matrices."""

    def product(affine: Affine) -> Any:
        return affine if weighted_sum is None else partial(affine, weighted_sum=weighted_sum)

    if reset_after:
        return partial(gru_step, hidden=product(hidden), family=family, rule=rule)
    return partial(
        gru_step_reset_before,
        hidden_rz=product(hidden.rows(0, 2 * size)),
        hidden_c=product(hidden.rows(2 * size, 3 * size)),
        family=family,
        rule=rule,
    )


def run_gru(
    inputs: Any,
    state: tuple[Any],
    hidden: Affine,
    reset_after: bool,
    family: Family,
    rule: Rule,
    backend: Backend = "auto",
    weighted_sum: WeightedSum | None = None,
    reverse: bool = False,
    mask: Tensor | None = None,
    record: bool = False,
) -> Scan:
    """A GRU over time: `scan` of `gru_step`, or what is faster and equal.

    Args:
        inputs: (T, *batch, 3 H), the products with x, bias included
        state: (h,), (*batch, H)
        hidden: H -> 3 H
        weighted_sum: None for products of matrices, else the convolution of the reference
    """
    (h,) = state
    if not record:
        obstacle = _obstacle(inputs, family, rule, mask)
        if obstacle is None and not reset_after:
            obstacle = "there is no kernel for reset_after=False"
        if _use_kernel(backend, inputs.device.type == "cuda", obstacle):
            from spgru.recurrent.kernels.gru import gru_scan
            from spgru.recurrent.kernels.plain_gru import plain_gru_scan
            from spgru.recurrent.kernels.products import Convolution, Matrix

            run: Any = gru_scan if isinstance(h, Moments) else plain_gru_scan
            product = Matrix() if weighted_sum is None else Convolution()
            output, final = run(inputs, h, hidden, product, reverse)
            return output, (final,), {}
    step = make_gru_step(hidden, h.shape[-1], reset_after, family, rule, weighted_sum)
    return scan(step, inputs, state, reverse, mask, record)
