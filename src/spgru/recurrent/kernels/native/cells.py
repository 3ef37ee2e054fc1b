"""GRU, LSTM and RNN of `cells.c` for `spgru.recurrent.kernels.scan`."""

from __future__ import annotations

from torch import Tensor

from spgru.recurrent.kernels.native.library import Function
from spgru.recurrent.kernels.scan import Cell

__all__ = ["GRU", "LSTM", "RNN"]


class _Forward(Function):
    def __call__(self, *tensors: Tensor | None, rows: int, size: int) -> None:
        # All is float32 here: the next product reads the state itself, not a rounded copy.
        *others, _, operands = tensors
        super().__call__(*others, operands, rows=rows, size=size)


def _cell(name: str, gates: int, has_cell: bool = False) -> Cell:
    forward, backward = _Forward(f"{name}_forward"), Function(f"{name}_backward")
    return Cell(forward, backward, gates, has_cell, one_gradient=False)


GRU = _cell("gru", 3)
LSTM = _cell("lstm", 4, has_cell=True)
RNN = _cell("rnn", 1)
