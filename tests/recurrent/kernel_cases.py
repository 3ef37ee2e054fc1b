"""Problems that the tests of kernels share: cells, their inputs, gradients of everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from spgru import Moments
from spgru.families import get
from spgru.functional import Affine
from spgru.functional.products import MATRIX, SAME_CONVOLUTION
from spgru.recurrent import Cell, gru_cell, lstm_cell, rnn_cell, run
from spgru.recurrent.kernels.native import library

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_COMPILED = DEVICE == "cpu" and library.obstacle() is None
# In the interpreter Triton's kernels run on a CPU too; on a GPU there is only Triton.
KERNELS = ["triton", "compiled"] if HAS_COMPILED else ["triton"]
needs_compiled = pytest.mark.skipif(not HAS_COMPILED, reason="needs a CPU and a C compiler")

GAUSSIAN = get("gaussian")


def _gru(hidden: Affine, size: int, reset_after: bool = True) -> Cell:
    return gru_cell(hidden, size, GAUSSIAN, reset_after=reset_after)


# Name -> how to make the cell, gates, states.
CELLS: dict[str, tuple[Callable[[Affine, int], Cell], int, int]] = {
    "gru": (_gru, 3, 1),
    "gru_reset_before": (partial(_gru, reset_after=False), 3, 1),
    "lstm": (lambda hidden, size: lstm_cell(hidden, GAUSSIAN), 4, 2),
    "rnn": (lambda hidden, size: rnn_cell(hidden, GAUSSIAN), 1, 1),
}


def leaves(
    cell: str, inputs: tuple[int, ...], batch: tuple[int, ...], weight: tuple[int, ...], bias: bool
) -> list[Tensor]:
    """Moments of inputs, weight, bias and states, float64, over all sizes of variance.

    Args:
        inputs: the shape before the last dimension, (T, *batch) or (rows,)
    """

    def pair(*shape: int, mean: float, var: float) -> list[Tensor]:
        noise = torch.randn(2, *shape, dtype=torch.float64)
        return [mean * noise[0], var * noise[1].exp()]

    _, gates, states = CELLS[cell]
    size, fan = weight[1], torch.Size(weight[1:]).numel()
    found = [
        *pair(*inputs, gates * size, mean=1, var=0.3),
        *pair(*weight, mean=fan**-0.5, var=0.2 / fan),
        *pair(gates * size, mean=0.1, var=0.01),
    ]
    for _ in range(states):
        found += pair(*batch, size, mean=0.5, var=0.1)
    return found if bias else [*found[:4], *found[6:]]


def results_and_gradients(
    cell: str, start: list[Tensor], bias: bool, dtype: torch.dtype, backend: Any, **options: Any
) -> list[Tensor]:
    """All outputs of `run`, and the gradient of every leaf for fixed gradients of the outputs."""
    make_cell, _, states = CELLS[cell]
    inputs = [x.to(DEVICE, dtype).detach().clone().requires_grad_() for x in start]
    pairs = [Moments(*inputs[k : k + 2]) for k in range(0, len(inputs), 2)]
    x, weight, *rest = pairs
    product = MATRIX if weight.ndim == 2 else SAME_CONVOLUTION
    hidden = Affine.of(weight, rest.pop(0) if bias else None, product)
    assert len(rest) == states
    output, final, _ = run(
        make_cell(hidden, weight.shape[1]), x, tuple(rest), backend=backend, **options
    )
    results = [part for moments in (output, *final) for part in moments]
    generator = torch.Generator().manual_seed(1)
    pull = [torch.randn(part.shape, dtype=torch.float64, generator=generator) for part in results]
    grads = torch.autograd.grad(results, inputs, [p.to(DEVICE, dtype) for p in pull])
    return [*(part.detach() for part in results), *grads]


def relative_error(found: Tensor, truth: Tensor) -> float:
    return ((found.double() - truth).norm() / truth.norm()).item()


def tree_moments(tree: Any) -> list[Moments]:
    return [tree] if isinstance(tree, Moments) else [m for part in tree for m in tree_moments(part)]


def gradients(layer: torch.nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
