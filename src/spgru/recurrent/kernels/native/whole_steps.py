"""Steps of a cell in one call of C, products included, for small batches without gradients.

Calling a library for every product, and making the views it wants, costs more than such a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.products import Matrix
from spgru.moments import Moments
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.native.functions import bind

__all__ = ["WholeSteps", "whole_steps"]

_GATES = {"gru": 3, "gru_reset_before": 3, "lstm": 4, "rnn": 1}
# Where one thread here is faster than a library with its calls, on an EPYC with one thread, GRU.
# A single step of 4 rows, I = H = 256 (2**21.6 multiplications) takes 280 us here and 690 there. A
# step in a sequence, whose input products a library does at once, takes of 1 row and H = 256
# (2**19.6) 63 and 134 us, of 2 rows and H = 128 48 and 79 us, but of 8 rows and H = 64 61 and 54.
_MOST_IN_STEP, _MOST_IN_SEQUENCE, _MOST_ROWS_IN_SEQUENCE = 2**22, 2**20, 2


class WholeSteps:
    """The steps of one cell with its weights, ready to be called.

    Args:
        cell: with a product by matrices and weights of float32 on the CPU that have variances
        input_map: I -> gates H, likewise
    """

    def __init__(self, cell: Cell, input_map: Affine) -> None:
        self.input_map = input_map
        hidden = cell.hidden
        self.inputs, self.size = input_map.weight.shape[1], hidden.weight.shape[1]
        self.states = 2 if cell.name == "lstm" else 1
        gates = _GATES[cell.name]
        width = gates * self.size
        self.multiplications = 2 * width * (self.inputs + self.size)
        self._scratch = 4 * width + 4 * self.size
        # Kept with the pointers, so that what they point to stays.
        self._weights = [
            _checked(name, part, shape)
            for name, part, shape in (
                ("input weight", input_map.weight, (width, self.inputs)),
                ("input weight_var", input_map.weight_var, (width, self.inputs)),
                ("input gain", _number(input_map.gain), (width,)),
                ("input bias", input_map.bias, (width,)),
                ("input bias_var", input_map.bias_var, (width,)),
                ("weight", hidden.weight, (width, self.size)),
                ("weight_var", hidden.weight_var, (width, self.size)),
                ("gain", _number(hidden.gain), (width,)),
                ("bias", hidden.bias, (width,)),
                ("bias_var", hidden.bias_var, (width,)),
                ("coherence", _number(hidden.coherence), (self.size,)),
            )
        ]
        self._pointers = [None if part is None else part.data_ptr() for part in self._weights]
        self._call = bind(f"{cell.name}_steps")

    def step(self, x: Tensor | Moments, state: tuple[Moments, ...]) -> tuple[Moments, ...]:
        """(*batch, I) and (*batch, H) each -> the state after, (*batch, H) each."""
        batch = state[0].shape[:-1]
        after = self._run(x, state, (*batch, self.inputs), batch.numel(), 1, False)
        if len(after) == 2:
            return (Moments(after[0], after[1]),)
        return Moments(after[0], after[1]), Moments(after[2], after[3])

    def sequence(
        self, x: Tensor | Moments, state: tuple[Moments, ...], reverse: bool
    ) -> tuple[Moments, tuple[Moments, ...]]:
        """(T, *batch, I) and (*batch, H) each -> the state after every step, and the final one."""
        batch, count = state[0].shape[:-1], x.shape[0]
        after = self._run(x, state, (count, *batch, self.inputs), batch.numel(), count, reverse)
        ends = [part[0 if reverse else -1].clone() for part in after]
        final = tuple(Moments(*ends[k : k + 2]) for k in range(0, len(ends), 2))
        return Moments(after[0], after[1]), final

    def _run(
        self, x: Tensor | Moments, state: tuple[Moments, ...], x_shape: tuple[int, ...],
        rows: int, count: int, reverse: bool,
    ) -> list[Tensor]:  # fmt: skip
        """Mean and variance of every state after every step."""
        x_mean, x_var = (x, None) if isinstance(x, Tensor) else (x.mean, x.var)
        h_shape = (*state[0].shape[:-1], self.size)
        x_mean = _checked("x", x_mean, x_shape)
        x_var = None if x_var is None else _checked("x.var", x_var, x_shape)
        before = [_checked("state", part, h_shape) for moments in state for part in moments]
        if len(before) != 2 * self.states:
            raise ValueError(f"state has {len(state)} parts but the cell has {self.states}")
        new_shape = (*x_shape[:-1], self.size)
        after = [torch.empty(new_shape, dtype=torch.float32) for _ in before]
        scratch = torch.empty(rows * self._scratch, dtype=torch.float32)
        no_cell = (None,) * (4 - len(before))
        self._call(
            x_mean.data_ptr(), None if x_var is None else x_var.data_ptr(), *self._pointers,
            *(part.data_ptr() for part in before), *no_cell,
            *(part.data_ptr() for part in after), *no_cell,
            scratch.data_ptr(), rows, self.inputs, self.size, count, reverse,
        )  # fmt: skip
        return after


def _number(gain: Tensor | None) -> Tensor | None:
    return None if gain is None else gain.detach().to(torch.float32)


def _checked(name: str, part: Any, shape: tuple[int, ...]) -> Any:
    """A tensor that C may read, copied if it is not contiguous; None stays None."""
    if part is None:
        return None
    if part.dtype is not torch.float32 or not part.is_cpu or part.shape != shape:
        raise ValueError(
            f"{name} must be float32 on the CPU of shape {shape}, got {tuple(part.shape)} of "
            f"{part.dtype} on {part.device}"
        )
    return part if part.is_contiguous() and not part.is_neg() else part.resolve_neg().contiguous()


def whole_steps(cell: Cell, input_map: Affine, rows: int, count: int) -> WholeSteps | None:
    """`count` steps of so many rows, None where it would not be faster or is not possible.

    It is kept with the cell's weights. To be used without gradients only.
    """
    hidden = cell.hidden
    kept: Any = hidden.cache.get(WholeSteps)
    if kept is None or kept.input_map is not input_map:
        if (
            hidden.weight_var is None
            or input_map.weight_var is None
            or type(hidden.product) is not Matrix
            or type(input_map.product) is not Matrix
            or {hidden.weight.dtype, input_map.weight.dtype} != {torch.float32}
        ):
            return None
        kept = hidden.cache[WholeSteps] = WholeSteps(cell, input_map)
    work = rows * kept.multiplications
    if count == 1:
        return kept if work <= _MOST_IN_STEP else None
    return kept if work <= _MOST_IN_SEQUENCE and rows <= _MOST_ROWS_IN_SEQUENCE else None
