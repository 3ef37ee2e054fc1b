"""`GRU` and `GRUCell` with random weights."""

from __future__ import annotations

from typing import Any, Self, Unpack

import torch
from torch import nn

from spgru.nn.cells import RecurrentCell
from spgru.nn.recurrent import Recurrent
from spgru.nn.recurrent_layer import RecurrentLayer, RecurrentOptions
from spgru.nn.weight import StandardDeviation
from spgru.recurrent import Cell, gru_cell

__all__ = ["GRU", "GRUCell"]


class _GRUEquations(RecurrentLayer):
    """What the layer and the cell share: the equations, in either form."""

    hidden_size: int
    reset_after: bool

    def _cell(self, part: str) -> Cell:
        hidden = self._hidden_map(part)
        return gru_cell(hidden, self.hidden_size, self.family, self.rule, self.reset_after)

    @classmethod
    def from_torch(
        cls, module: nn.Module, weight_std: StandardDeviation = None, **options: Any
    ) -> Self:
        """The same layer with the weights of `module` as means and `weight_std` around them."""
        _require_reset_after(options.get("reset_after", True))
        return super().from_torch(module, weight_std, **options)

    def to_torch(self) -> Any:
        _require_reset_after(self.reset_after)
        return super().to_torch()

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.reset_after else ", reset_after=False")


class GRU(_GRUEquations, Recurrent):
    """`torch.nn.GRU` with random weights. See `spgru.recurrent.gru` for the equations.

    `reset_after=True` is the GRU of `torch.nn` and cuDNN, `reset_after=False` the paper's. The
    other arguments before `device` are `torch.nn.GRU`'s; for those after it see `spgru.nn.Layer`.
    """

    gates = 3
    torch_class = nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device, dtype, **options,
        )  # fmt: skip
        self.reset_after = reset_after


class GRUCell(_GRUEquations, RecurrentCell):
    """`torch.nn.GRUCell` with random weights; `reset_after=False` is the paper's form."""

    gates = 3
    torch_class = nn.GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, **options)
        self.reset_after = reset_after


def _require_reset_after(reset_after: bool) -> None:
    if not reset_after:
        raise ValueError(
            "torch.nn has no GRU with reset_after=False; use reset_after=True to convert"
        )
