"""Base of `GRUCell`, `LSTMCell` and `RNNCell`: single steps with the signatures of `torch.nn`."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from spgru.checks import check_features
from spgru.modes import watch
from spgru.moments import Moments
from spgru.nn.recurrent_layer import RecurrentLayer, RecurrentOptions
from spgru.nn.weight import WeightShape
from spgru.recurrent import Choice, explain, single_step

__all__ = ["RecurrentCell"]


class RecurrentCell(RecurrentLayer):
    """One step of one layer.

    The arguments before `device` are those of `torch.nn`; for the others see `spgru.nn.Layer` and
    `RecurrentLayer`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(device, dtype, **options)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        specs = [
            WeightShape("weight_ih", (rows, input_size), input_size, bound),
            WeightShape(
                "weight_hh",
                (rows, hidden_size),
                hidden_size,
                bound,
                passed_on=self._passed_on(hidden_size),
            ),
        ]
        if bias:
            specs.append(WeightShape("bias_ih", (rows,), input_size, bound))
            specs.append(WeightShape("bias_hh", (rows,), hidden_size, bound))
        self._add_weights(specs)

    def forward(self, input: Tensor | Moments, hx: Any = None) -> Any:
        """(B, input_size) or (input_size,) and the state before -> the state after"""
        state = self._states(input, hx)
        x = self._enter(input)
        if self._is_recorded:
            batched = x if x.ndim > 1 else x.unsqueeze(0)
            before = tuple(value if x.ndim > 1 else value.unsqueeze(0) for value in state)
            _, after, neurons = self._run_part("", batched.unsqueeze(0), before)
            if x.ndim == 1:
                after = tuple(value.squeeze(0) for value in after)
                neurons = {name: value.squeeze(1) for name, value in neurons.items()}
            self._record("", neurons, 0)
        else:
            input_map = self._input_map("")
            after = single_step(self._cell(""), x, state, input_map, self.backend)
            watch(self, after[0])
        return self._pack_state(tuple(self._leave(value) for value in after))

    def _states(self, x: Tensor | Moments, hx: Any) -> tuple[Any, ...]:
        """(*batch, hidden_size) each"""
        self._check("input", x)
        if x.ndim not in (1, 2):
            raise ValueError(f"input has {x.ndim} dimensions; pass one time step, (B, I) or (I,)")
        check_features("input", x, self.input_size, "input_size")
        shapes = ((*x.shape[:-1], self.hidden_size),) * len(self.state_names)
        return self._initial_state(hx, shapes, x, "batch if the input has one, hidden_size")

    def backend_for(self, input: Tensor | Moments, hx: Any = None) -> Choice:
        """Which backend a call with these arguments takes, and why it is no kernel."""
        with self._undoing_draws():
            state, x = self._states(input, hx), self._enter(input)
            return explain(self._cell(""), x, state, self.backend, self._is_recorded)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {name: getattr(module, name) for name in ("input_size", "hidden_size", "bias")}

    def extra_repr(self) -> str:
        bias = "" if self.bias else "bias=False, "
        return f"{self.input_size}, {self.hidden_size}, {bias}{self._options_repr()}"
