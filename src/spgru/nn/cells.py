"""`GRUCell`, `LSTMCell` and `RNNCell`: single steps with the signatures of `torch.nn`."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import Any, Literal, Self, Unpack

import torch
from torch import Tensor, nn

from spgru.checks import check_features
from spgru.functional import Affine
from spgru.moments import Moments, certain
from spgru.nn.layer import Layer, Options
from spgru.nn.recurrent import check_nonlinearity, require_reset_after
from spgru.nn.sequence import Step
from spgru.nn.weight import StandardDeviation, WeightShape
from spgru.recurrent import lstm_step, make_gru_step, rnn_step

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class _Cell(Layer):
    """Base of the cells: one step, one layer.

    The arguments before `device` are those of `torch.nn`; for the others see `spgru.nn.Layer`.
    """

    gates: int
    state_names: tuple[str, ...] = ("state",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        specs = [
            WeightShape("weight_ih", (rows, input_size), input_size, bound),
            WeightShape("weight_hh", (rows, hidden_size), hidden_size, bound),
        ]
        if bias:
            specs.append(WeightShape("bias_ih", (rows,), input_size, bound))
            specs.append(WeightShape("bias_hh", (rows,), hidden_size, bound))
        self._add_weights(specs)

    @abstractmethod
    def _step(self, hidden: Affine) -> Step: ...

    def _state(self, hx: Any, x: Tensor | Moments) -> tuple[Any, ...]:
        """One value per state name, checked if given, else zeros; (*batch, hidden_size) each."""
        shape = (*x.shape[:-1], self.hidden_size)
        if hx is None:
            zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
            values: tuple[Any, ...] = (zeros,) * len(self.state_names)
        else:
            values = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        if len(values) != len(self.state_names):
            raise TypeError(f"hx must hold {len(self.state_names)} values, got {len(values)}")
        for value in values:
            self._check("hx", value)
            if tuple(value.shape) != shape:
                raise ValueError(
                    f"hx has shape {tuple(value.shape)} but the input asks for {shape}"
                )
        return tuple(
            self._enter(certain(value) if isinstance(value, Tensor) else value) for value in values
        )

    def forward(self, input: Tensor | Moments, hx: Any = None) -> Any:
        """(B, input_size) or (input_size,) and the state before -> the state after"""
        self._check("input", input)
        if input.ndim not in (1, 2):
            raise ValueError(
                f"input has {input.ndim} dimensions; pass one time step, (B, I) or (I,)"
            )
        check_features("input", input, self.input_size, "input_size")
        state = self._state(hx, input)
        inputs = self._affine("weight_ih", "bias_ih")(self._enter(input))
        hidden = self._affine("weight_hh", "bias_hh")
        neurons = self._step(hidden)(inputs, state)
        if self._is_recorded:
            over_time = {name: value.unsqueeze(0) for name, value in neurons.items()}
            self._record("", over_time, 0)
        after = tuple(self._leave(neurons[name]) for name in self.state_names)
        return after if len(after) > 1 else after[0]

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {name: getattr(module, name) for name in ("input_size", "hidden_size", "bias")}

    def extra_repr(self) -> str:
        bias = "" if self.bias else "bias=False, "
        return f"{self.input_size}, {self.hidden_size}, {bias}{self._options_repr()}"


class GRUCell(_Cell):
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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, **options)
        self.reset_after = reset_after

    def _step(self, hidden: Affine) -> Step:
        return make_gru_step(hidden, self.hidden_size, self.reset_after, self.family, self.rule)

    @classmethod
    def from_torch(
        cls, module: nn.Module, weight_std: StandardDeviation = None, **options: Any
    ) -> Self:
        """The same cell with the weights of `module` as means and `weight_std` around them."""
        require_reset_after(options.get("reset_after", True))
        return super().from_torch(module, weight_std, **options)

    def to_torch(self) -> nn.GRUCell:
        require_reset_after(self.reset_after)
        return super().to_torch()  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.reset_after else ", reset_after=False")


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell` with random weights; the state is the pair (h, c)."""

    gates = 4
    torch_class = nn.LSTMCell
    state_names = ("state", "cell")

    def _step(self, hidden: Affine) -> Step:
        return partial(
            lstm_step, hidden=hidden, projection=None, family=self.family, rule=self.rule
        )


class RNNCell(_Cell):
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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, **options)
        self.nonlinearity = check_nonlinearity(nonlinearity, self.family, self.rule)

    def _step(self, hidden: Affine) -> Step:
        return partial(
            rnn_step,
            hidden=hidden,
            nonlinearity=self.nonlinearity,
            family=self.family,
            rule=self.rule,
        )

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {**_Cell._torch_arguments(module), "nonlinearity": module.nonlinearity}

    def extra_repr(self) -> str:
        shown = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}"
        return super().extra_repr() + shown
