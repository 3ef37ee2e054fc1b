"""One step of any cell as a kernel of its own, for products that a library does."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.recurrent.kernels.layout import load_gates, load_state, store_state

__all__ = ["Launch", "launch_backward", "launch_forward", "place"]

_BLOCK = 256


class Launch:
    """A kernel as a function of tensors."""

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self.kernel, self.constants = kernel, constants

    def __call__(self, *tensors: Tensor | None, rows: int, size: int) -> None:
        assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
        count = rows * size
        # Triton launches on the current device, which need not be that of the tensors.
        with torch.cuda.device_of(tensors[0]):
            self.kernel[(triton.cdiv(count, _BLOCK),)](
                *tensors, count, size, _BLOCK, **self.constants
            )


@triton.jit
def place(count, size: tl.constexpr, block: tl.constexpr):
    """Which units this program takes: row, column and mask."""
    flat = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    return flat // size, flat % size, flat < count


@triton.jit
def _forward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var, c_mean, c_var,
    new_mean, new_var, new_c_mean, new_c_var, operand, operands,
    count, size: tl.constexpr, block: tl.constexpr, step: tl.constexpr, gates: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    state = step(
        load_gates(x_mean, None, row, column, mask, gates, size),
        load_gates(x_var, None, row, column, mask, gates, size),
        load_gates(p_mean, bias, row, column, mask, gates, size),
        load_gates(p_var, bias_var, row, column, mask, gates, size),
        load_state(h_mean, h_var, c_mean, c_var, row, column, mask, size),
    )
    store_state(
        new_mean, new_var, new_c_mean, new_c_var, operand, operands, row, column, mask, state,
        size, joined=True,
    )  # fmt: skip


@triton.jit
def _backward(
    x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var, c_mean, c_var, new_mean,
    out_mean, out_var, by_product, by_products,
    x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, carried_mean, carried_var,
    count, size: tl.constexpr, block: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, column, mask = place(count, size, block)
    step(
        x_mean, x_var, p_mean, p_var, bias, bias_var, h_mean, h_var, c_mean, c_var, new_mean,
        out_mean, out_var, by_product, by_products,
        x_mean_grad, x_var_grad, p_mean_grad, p_var_grad, carried_mean, carried_var,
        row, column, mask, size,
    )  # fmt: skip


def launch_forward(step: Any, gates: int, has_cell: bool) -> Any:
    """The kernel of a step for `spgru.recurrent.kernels.scan`."""
    launch = Launch(_forward, step=step, gates=gates)
    if has_cell:
        return launch
    none = None, None

    def without_cell(*tensors: Tensor | None, rows: int, size: int) -> None:
        launch(*tensors[:8], *none, *tensors[8:10], *none, *tensors[10:], rows=rows, size=size)

    return without_cell


def launch_backward(step: Any, has_cell: bool) -> Any:
    """The kernel of its adjoint."""
    launch = Launch(_backward, step=step)
    if has_cell:
        return launch

    def without_cell(*tensors: Tensor | None, rows: int, size: int) -> None:
        launch(*tensors[:8], None, None, *tensors[8:], rows=rows, size=size)

    return without_cell
