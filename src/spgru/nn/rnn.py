"""`RNN` and `RNNCell` with random weights."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import nn

from spgru.checks import check_choice
from spgru.families import Family
from spgru.functional import Rule
from spgru.nn.cells import RecurrentCell
from spgru.nn.recurrent import Recurrent
from spgru.nn.recurrent_layer import RecurrentOptions
from spgru.recurrent import Cell, rnn_cell

__all__ = ["RNN", "RNNCell"]


class RNN(Recurrent):
    """`torch.nn.RNN` with random weights. See `spgru.recurrent.rnn` for the equation.

    The arguments before `device` are `torch.nn.RNN`'s; for those after it see `spgru.nn.Layer`.
    """

    gates = 1
    torch_class = nn.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            device, dtype, **options,
        )  # fmt: skip
        self.nonlinearity = check_nonlinearity(nonlinearity, self.family, self.rule)

    def _cell(self, part: str) -> Cell:
        return rnn_cell(self._hidden_map(part), self.family, self.rule, self.nonlinearity)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**Recurrent._torch_arguments(module), "nonlinearity": module.nonlinearity}

    def extra_repr(self) -> str:
        shown = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}"
        return super().extra_repr() + shown


class RNNCell(RecurrentCell):
    """`torch.nn.RNNCell` with random weights."""

    gates = 1
    torch_class = nn.RNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, **options)
        self.nonlinearity = check_nonlinearity(nonlinearity, self.family, self.rule)

    def _cell(self, part: str) -> Cell:
        return rnn_cell(self._hidden_map(part), self.family, self.rule, self.nonlinearity)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**RecurrentCell._torch_arguments(module), "nonlinearity": module.nonlinearity}

    def extra_repr(self) -> str:
        shown = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}"
        return super().extra_repr() + shown


def check_nonlinearity(
    nonlinearity: Literal["tanh", "relu"], family: Family, rule: Rule
) -> Literal["tanh", "relu"]:
    check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
    if nonlinearity == "relu" and family.name != "gaussian":
        raise ValueError(
            f"nonlinearity='relu' is not defined for family={family.name!r}, whose activation is "
            "c (1 - exp(-gamma x)); leave nonlinearity out or use family='gaussian'"
        )
    if nonlinearity == "relu" and rule == "paper":
        raise ValueError(
            "rule='paper' has no formula for nonlinearity='relu'; use rule='exact', which is exact"
        )
    return nonlinearity
