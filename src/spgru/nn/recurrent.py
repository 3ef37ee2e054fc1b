"""`GRU`, `LSTM` and `RNN` with random weights."""

from __future__ import annotations

from typing import Any, Literal, Self, Unpack

import torch
from torch import nn

from spgru.checks import check_choice
from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.nn.sequence import Recurrent, RecurrentOptions
from spgru.nn.weight import StandardDeviation
from spgru.recurrent import Cell, gru_cell, lstm_cell, rnn_cell

__all__ = ["GRU", "LSTM", "RNN"]


class GRU(Recurrent):
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

    def _cell(self, hidden: Affine, part: str) -> Cell:
        return gru_cell(hidden, self.hidden_size, self.family, self.rule, self.reset_after)

    @classmethod
    def from_torch(
        cls, module: nn.Module, weight_std: StandardDeviation = None, **options: Any
    ) -> Self:
        """The same layer with the weights of `module` as means and `weight_std` around them."""
        require_reset_after(options.get("reset_after", True))
        return super().from_torch(module, weight_std, **options)

    def to_torch(self) -> nn.GRU:
        require_reset_after(self.reset_after)
        return super().to_torch()  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.reset_after else ", reset_after=False")


def require_reset_after(reset_after: bool) -> None:
    if not reset_after:
        raise ValueError(
            "torch.nn has no GRU with reset_after=False; use reset_after=True to convert"
        )


class LSTM(Recurrent):
    """`torch.nn.LSTM` with random weights. See `spgru.recurrent.lstm` for the equations.

    The arguments before `device` are `torch.nn.LSTM`'s; for those after it see `spgru.nn.Layer`.
    The state is the pair (h, c).
    """

    gates = 4
    torch_class = nn.LSTM

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

    def _unpack_state(self, hx: Any) -> tuple[Any, ...]:
        return require_pair(hx)

    def _pack_state(self, state: list[Any]) -> Any:
        return tuple(state)

    def _cell(self, hidden: Affine, part: str) -> Cell:
        projection = self._affine(f"weight_hr_{part}", "") if self.proj_size else None
        return lstm_cell(hidden, self.family, self.rule, projection)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**Recurrent._torch_arguments(module), "proj_size": module.proj_size}


def require_pair(hx: Any) -> tuple[Any, ...]:
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise TypeError(
            f"hx of an LSTM must be the pair (h_0, c_0), got {type(hx).__name__}; "
            "pass hx=(h_0, c_0)"
        )
    return tuple(hx)


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

    def _cell(self, hidden: Affine, part: str) -> Cell:
        return rnn_cell(hidden, self.family, self.rule, self.nonlinearity)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**Recurrent._torch_arguments(module), "nonlinearity": module.nonlinearity}

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
