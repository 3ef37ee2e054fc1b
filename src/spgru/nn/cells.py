"""`GRUCell`, `LSTMCell` and `RNNCell`: single steps with the signatures of `torch.nn`."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from spgru.checks import check_features
from spgru.families import Family, Parameterization
from spgru.functional import Affine, Rule
from spgru.moments import Moments, certain
from spgru.nn.layer import Layer, Record
from spgru.nn.recurrent import Step
from spgru.nn.rnn import check_nonlinearity, make_gru_step, require_reset_after
from spgru.recurrent import lstm_step, rnn_step

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class _Cell(Layer):
    """Base of the cells: one step, one layer.

    The arguments before `device` are those of `torch.nn`; for the others see `spgru.nn.Layer`.
    """

    gates: int
    torch_class: type[nn.RNNCellBase]
    state_names: tuple[str, ...] = ("state",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        family: str | Family,
        rule: Rule,
        parameterization: Parameterization,
        weight_std: float | None,
    ) -> None:
        super().__init__(family, rule, parameterization, weight_std, device, dtype)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        self._add_weight("weight_ih", (rows, input_size), input_size, bound)
        self._add_weight("weight_hh", (rows, hidden_size), hidden_size, bound)
        if bias:
            self._add_weight("bias_ih", (rows,), input_size, bound)
            self._add_weight("bias_hh", (rows,), hidden_size, bound)

    @abstractmethod
    def _step(self, hidden: Affine) -> Step: ...

    def _state(self, hx: Any, x: Tensor | Moments) -> tuple[Any, ...]:
        """One value per state name, checked if given, else zeros; (*batch, hidden_size) each."""
        shape = (*x.shape[:-1], self.hidden_size)
        if hx is None:
            zeros = torch.zeros(shape, dtype=x.dtype, device=x.device)
            values: tuple[Any, ...] = (zeros,) * len(self.state_names)
        else:
            values = hx if isinstance(hx, tuple) else (hx,)
        if len(values) != len(self.state_names):
            raise TypeError(f"hx must hold {len(self.state_names)} values, got {len(values)}")
        for value in values:
            self._check("hx", value)
            if tuple(value.shape) != shape:
                raise ValueError(f"hx has shape {tuple(value.shape)} but x asks for {shape}")
        return tuple(
            self._enter(certain(value) if isinstance(value, Tensor) else value) for value in values
        )

    def forward(self, x: Tensor | Moments, hx: Any = None) -> Any:
        """(B, input_size) or (input_size,) and the state before -> the state after"""
        self._check("x", x)
        check_features("x", x, self.input_size, "input_size")
        if x.ndim not in (1, 2):
            raise ValueError(f"x has {x.ndim} dimensions; pass one time step, (B, I) or (I,)")
        state = self._state(hx, x)
        inputs = Affine.of(self._value("weight_ih"), self._value("bias_ih"))(self._enter(x))
        hidden = Affine.of(self._value("weight_hh"), self._value("bias_hh"))
        neurons = self._step(hidden)(inputs, state)
        if self._records is not None:
            over_time = {name: value.unsqueeze(0) for name, value in neurons.items()}
            self._records.append(Record("", over_time, 0))
        after = tuple(self._leave(neurons[name]) for name in self.state_names)
        return after if len(after) > 1 else after[0]

    @classmethod
    def from_torch(
        cls, module: nn.RNNCellBase, weight_std: float | None = None, **options: Any
    ) -> Self:
        """The same cell with the weights of `module` as means and `weight_std` around them."""
        if not isinstance(module, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.from_torch takes a torch.nn.{cls.torch_class.__name__}, "
                f"got {type(module).__name__}"
            )
        cell = cls(
            **cls._torch_arguments(module),
            device=module.weight_ih.device,
            dtype=module.weight_ih.dtype,
            weight_std=weight_std,
            **options,
        )
        return cell._take_means(module)

    def to_torch(self) -> Any:
        """The `torch.nn` cell with the means as weights."""
        like = self._like
        target = self.torch_class(
            **self._torch_arguments(self), device=like.device, dtype=like.dtype
        )
        return self._give_means(target)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        """The constructor's arguments, read off a cell of ours or of `torch.nn`."""
        return {name: getattr(module, name) for name in ("input_size", "hidden_size", "bias")}

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, {self._options_repr()}"


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
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias, device, dtype, family, rule, parameterization,
            weight_std,
        )  # fmt: skip
        self.reset_after = reset_after

    def _step(self, hidden: Affine) -> Step:
        return make_gru_step(hidden, self.hidden_size, self.reset_after, self.family, self.rule)

    def to_torch(self) -> nn.GRUCell:
        require_reset_after(self.reset_after)
        return super().to_torch()  # type: ignore[no-any-return]


class LSTMCell(_Cell):
    """`torch.nn.LSTMCell` with random weights; the state is the pair (h, c)."""

    gates = 4
    torch_class = nn.LSTMCell
    state_names = ("state", "cell")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias, device, dtype, family, rule, parameterization,
            weight_std,
        )  # fmt: skip

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
        *,
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, bias, device, dtype, family, rule, parameterization,
            weight_std,
        )  # fmt: skip
        self.nonlinearity = check_nonlinearity(nonlinearity, self.family)

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
