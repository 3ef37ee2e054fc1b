"""`LSTM` and `LSTMCell` with random weights."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import nn

from spgru.nn.cells import RecurrentCell
from spgru.nn.recurrent import Recurrent
from spgru.nn.recurrent_layer import RecurrentOptions
from spgru.recurrent import Cell, lstm_cell

__all__ = ["LSTM", "LSTMCell"]


class LSTM(Recurrent):
    """`torch.nn.LSTM` with random weights. See `spgru.recurrent.lstm` for the equations.

    The arguments before `device` are `torch.nn.LSTM`'s; for those after it see `spgru.nn.Layer`.
    The state is the pair (h, c).
    """

    gates = 4
    torch_class = nn.LSTM
    state_names = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device, dtype, proj_size, **options,
        )  # fmt: skip

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        return self._output_size, self.hidden_size

    def _cell(self, part: str) -> Cell:
        projection = self._affine(f"weight_hr_{part}", "") if self.proj_size else None
        return lstm_cell(self._hidden_map(part), self.family, self.rule, projection)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**Recurrent._torch_arguments(module), "proj_size": module.proj_size}


class LSTMCell(RecurrentCell):
    """`torch.nn.LSTMCell` with random weights; the state is the pair (h, c)."""

    gates = 4
    torch_class = nn.LSTMCell
    state_names = ("h", "c")

    def _cell(self, part: str) -> Cell:
        return lstm_cell(self._hidden_map(part), self.family, self.rule)
