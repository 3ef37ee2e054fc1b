"""One step of any cell as a kernel of its own, for products that a library does."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from spgru.recurrent.kernels.triton.launch import Launcher
from spgru.recurrent.kernels.triton.layout import load_along, load_gates, load_state, store_state

__all__ = ["StepLauncher", "place", "step_kernels"]

_BLOCK = 256


@triton.jit
def place(count, size: tl.constexpr, block: tl.constexpr):
    """Which units this program takes: row, column and mask."""
    flat = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    return flat // size, flat % size, flat < count


@triton.jit
def _forward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var,
    new_mean, new_var, new_c_mean, new_c_var, operand_mean, operand_moments,
    count, size: tl.constexpr, block: tl.constexpr, step: tl.constexpr, gates: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    state = step(
        load_gates(x_mean, None, row, column, mask, gates, size),
        load_gates(x_var, None, row, column, mask, gates, size),
        load_gates(p_mean, bias, row, column, mask, gates, size),
        load_gates(p_var, bias_var, row, column, mask, gates, size),
        load_state(h_mean, h_var, c_mean, c_var, row, column, mask, size),
        load_along(coherence, column, mask, size),
    )
    store_state(
        new_mean, new_var, new_c_mean, new_c_var, operand_mean, operand_moments, row, column, mask,
        state, size, joined=True,
    )  # fmt: skip


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var, new_mean,
    out_mean, out_var, by_operand_mean, by_operand_moments,
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, coherence_grad, carried_mean, carried_var,
    count, size: tl.constexpr, block: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    step(
        x_mean, x_var, p_mean, p_var, bias, bias_var, coherence, h_mean, h_var, c_mean, c_var,
        new_mean, out_mean, out_var, by_operand_mean, by_operand_moments,
        x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, coherence_grad, carried_mean, carried_var,
        row, column, mask, size,
    )  # fmt: skip


class StepLauncher:
    """A kernel of one step, called by the names of its tensors.

    Args:
        kernel: `_forward`, `_backward` or one whose arguments are laid out like theirs
        constants: what the kernel is compiled for
    """

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._launch, self._constants = Launcher(kernel), constants

    def __call__(self, *, rows: int, size: int, **tensors: Tensor | None) -> None:
        count = rows * size
        numbers = {"count": count, "size": size, "block": _BLOCK, **self._constants}
        self._launch(-(-count // _BLOCK), tensors, numbers)


def step_kernels(forward: Any, backward: Any, gates: int) -> tuple[StepLauncher, StepLauncher]:
    """The kernels of a cell's step and of its adjoint."""
    return (
        StepLauncher(_forward, step=forward, gates=gates),
        StepLauncher(_backward, step=backward),
    )
