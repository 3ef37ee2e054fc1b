"""From a cell and its input to the kernels that run it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.products import Matrix
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.interface import Setting
from spgru.recurrent.kernels.prepared import prepare, product_dtype, result_dtype
from spgru.recurrent.kernels.products import StepProduct, step_product
from spgru.recurrent.kernels.scan import kernel_scan
from spgru.recurrent.kernels.steps import Steps
from spgru.recurrent.scan import Trajectory

__all__ = ["run"]


@lru_cache(maxsize=128)
def _equal_steps(count: int, sequences: int, reverse: bool) -> Steps:
    return Steps([sequences] * count, reverse)


def run(
    backend: Literal["triton", "compiled"],
    cell: Cell,
    x: Any,
    state: tuple[Any, ...],
    input_map: Affine | None,
    batch_sizes: list[int] | None,
    reverse: bool,
) -> Trajectory:
    """`spgru.recurrent.run` for a case that has a kernel."""
    if backend == "compiled":
        dtype = result_dtype(cell.hidden.weight)
        is_autocast = torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False) if is_autocast else nullcontext():
            return _run_compiled(cell, x, state, input_map, batch_sizes, reverse, dtype)
    from spgru.recurrent.kernels.triton import cells

    steps = _steps(len(x), state, batch_sizes, reverse)
    product = _product(cell, pack=False)
    inputs = x
    if input_map is not None:
        # In rows, which is how kernels read the result.
        is_matrix = type(input_map.product) is Matrix
        inputs = input_map(x.flatten(0, -2) if is_matrix and x.ndim > 2 else x)
    if isinstance(inputs, Tensor):
        from spgru.recurrent.kernels.triton.plain_gru import plain_gru_scan

        plain, last = plain_gru_scan(cell, product, inputs, state[0], steps, x.shape[:-1])
        return Trajectory(plain, (last,), {})
    weight = cell.hidden.weight
    rows = state[0].mean.numel() // state[0].shape[-1]
    prepared = prepare(cell.hidden, product, product_dtype(weight), rows)
    setting = Setting(cells.KERNELS[cell.name], cell, product, steps, prepared)
    return Trajectory(*kernel_scan(setting, inputs, state, x.shape[:-1], result_dtype(weight)), {})


def _run_compiled(
    cell: Cell, x: Any, state: tuple[Any, ...], input_map: Affine | None,
    batch_sizes: list[int] | None, reverse: bool, dtype: torch.dtype,
) -> Trajectory:  # fmt: skip
    """In float32, whatever the dtype of the layer: what comes in is converted once."""
    from spgru.recurrent.kernels.native import cells
    from spgru.recurrent.kernels.native.whole_steps import whole_steps
    from spgru.recurrent.kernels.reset_before import reset_before_scan

    if (
        input_map is not None
        and batch_sizes is None
        and x.dtype == torch.float32 == dtype
        and not torch.is_grad_enabled()
    ):
        whole = whole_steps(cell, input_map, x.shape[1:-1].numel(), x.shape[0])
        if whole is not None:
            return Trajectory(*whole.sequence(x, state, reverse), {})
    x = x.to(torch.float32)
    inputs = x if input_map is None else input_map.to(torch.float32)(x)
    steps = _steps(len(x), state, batch_sizes, reverse)
    product = _product(cell, pack=cell.name != "gru_reset_before")
    rows = state[0].mean.numel() // state[0].shape[-1]
    prepared = prepare(cell.hidden, product, torch.float32, rows)
    if cell.name == "gru_reset_before":
        setting = Setting(cells.RESET_BEFORE, cell, product, steps, prepared)
        return Trajectory(*reset_before_scan(setting, inputs, state, x.shape[:-1], dtype), {})
    setting = Setting(cells.KERNELS[cell.name], cell, product, steps, prepared)
    return Trajectory(*kernel_scan(setting, inputs, state, x.shape[:-1], dtype), {})


def _product(cell: Cell, pack: bool) -> StepProduct:
    product = step_product(cell.hidden.product, cell.hidden.weight, pack)
    if product is None:
        raise ValueError(f"kernels cannot do products of the kind {type(cell.hidden.product)}")
    return product


def _steps(
    count: int, state: tuple[Any, ...], batch_sizes: list[int] | None, reverse: bool
) -> Steps:
    if batch_sizes is not None:
        return Steps(batch_sizes, reverse)
    h = state[0]
    return _equal_steps(count, h.shape[0] if h.ndim > 1 else 1, reverse)
