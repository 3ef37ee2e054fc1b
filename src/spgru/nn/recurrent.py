"""The part of GRU, LSTM and RNN that is not their equations: layers, directions, packing, time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from spgru.checks import check_features
from spgru.functional.algebra import dropout
from spgru.modes import watch
from spgru.moments import Moments, cat, stack
from spgru.nn.packing import Packing, unpack
from spgru.nn.recurrent_layer import RecurrentLayer, RecurrentOptions
from spgru.nn.replay import replayed
from spgru.nn.weight import WeightShape
from spgru.recurrent import Choice, explain, single_step

__all__ = ["Recurrent"]


class _Arguments(NamedTuple):
    """What was passed to a call, checked and laid out for running."""

    x: Any
    """(T, B, I), or (N, I) rows of packed sequences"""
    state: tuple[Any, ...]
    """(layers D, B, size) each"""
    packing: Packing | None
    batched: bool
    """whether the input has a batch"""
    swap: bool
    """whether the input has its batch first"""


class Recurrent(RecurrentLayer):
    """Base of `GRU`, `LSTM` and `RNN`: everything but the step.

    The arguments before `device` are those of `torch.nn`; for the others see `spgru.nn.Layer` and
    `RecurrentLayer`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        proj_size: int = 0,
        **options: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(device, dtype, **options)
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout must lie in [0, 1], got {dropout}")
        if dropout and num_layers == 1:
            warnings.warn(
                f"dropout={dropout} acts between layers and num_layers is 1: it does nothing",
                stacklevel=3,
            )
        if not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"proj_size must lie between 0 and hidden_size - 1 = {hidden_size - 1}, "
                f"got {proj_size}"
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self._add_weights(self._weight_shapes())

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def _state_sizes(self) -> tuple[int, ...]:
        return (self._output_size,)

    @staticmethod
    def _part(layer: int, reverse: bool) -> str:
        """Suffix that `torch.nn` gives to the weights of one layer and direction."""
        return f"l{layer}_reverse" if reverse else f"l{layer}"

    @property
    def _parts(self) -> list[str]:
        """All layers and directions, in the order of their states."""
        directions = (False, True)[: self._directions]
        return [self._part(layer, way) for layer in range(self.num_layers) for way in directions]

    def _weight_shapes(self) -> Iterator[WeightShape]:
        size = self._output_size
        bound = 1 / math.sqrt(self.hidden_size)
        rows = self.gates * self.hidden_size
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else size * self._directions
            for reverse in (False, True)[: self._directions]:
                part = self._part(layer, reverse)
                yield WeightShape(f"weight_ih_{part}", (rows, inputs), inputs, bound)
                passed_on = self._passed_on(self.hidden_size)
                yield WeightShape(
                    f"weight_hh_{part}", (rows, size), size, bound, passed_on=passed_on
                )
                if self.bias:
                    yield WeightShape(f"bias_ih_{part}", (rows,), inputs, bound)
                    yield WeightShape(f"bias_hh_{part}", (rows,), size, bound)
                if self.proj_size:
                    shape = (self.proj_size, self.hidden_size)
                    yield WeightShape(f"weight_hr_{part}", shape, self.hidden_size, bound)

    # -- the sequence -------------------------------------------------------------------------

    def forward(self, input: Any, hx: Any = None) -> tuple[Moments, Any]:
        """Run along a sequence.

        Args:
            input: Tensor or Moments (T, B, I), (B, T, I) with `batch_first`, or (T, I); or a
                `PackedSequence`, or Moments of two of them
            hx: initial state as `torch.nn` shapes it, Tensor or Moments; None for zeros

        Returns:
            the output at every step, laid out as `input`, and the final state
        """
        if self.dropout and self.training:
            return self._forward(input, hx)
        result: tuple[Moments, Any] = replayed(self, self._forward, input, hx)
        return result

    def _forward(self, input: Any, hx: Any) -> tuple[Moments, Any]:
        x, state, packing, batched, swap = self._arguments(input, hx)

        def restore(sequence: Any) -> Any:
            """(T, B, H) in the layout of the input"""
            if packing is not None:
                return packing.in_order(sequence)
            if not batched:
                return sequence.squeeze(1)
            return sequence.transpose(0, 1) if swap else sequence

        batch_sizes = None if packing is None else packing.batch_sizes
        output, final = self._run(self._enter(x), state, batch_sizes, restore, 1 if swap else 0)
        output, final = self._leave(output), [self._leave(value) for value in final]
        if packing is not None:
            output = Moments(packing.close(output.mean), packing.close(output.var))  # type: ignore[arg-type]
            final = [packing.unsort(value) for value in final]
        else:
            output = restore(output)
        if not batched:
            final = [value.squeeze(1) for value in final]
        return output, self._pack_state(tuple(final))

    def _arguments(self, input: Any, hx: Any) -> _Arguments:
        """What was passed to a call, checked and laid out."""
        x, packing = unpack(input)
        self._check("input", x)
        if packing is not None and x.ndim != 2:
            raise ValueError(f"input packs sequences of {x.ndim - 1} dimensions; pack (T, I) each")
        if x.ndim not in (2, 3):
            raise ValueError(
                f"input has {x.ndim} dimensions; pass (T, B, I), (B, T, I) with batch_first, "
                "or (T, I)"
            )
        check_features("input", x, self.input_size, "input_size")
        batched = x.ndim == 3 or packing is not None
        swap = x.ndim == 3 and self.batch_first
        x = x.transpose(0, 1) if swap else x if batched else x.unsqueeze(1)
        if x.shape[0] == 0:
            raise ValueError("input is an empty sequence; pass at least one time step")
        return _Arguments(x, self._states(hx, x, batched, packing), packing, batched, swap)

    def _states(self, hx: Any, x: Any, batched: bool, packing: Packing | None) -> tuple[Any, ...]:
        """(layers D, B, size) each, packed sequences sorted by length"""
        count = self.num_layers * self._directions
        batch = x.shape[1] if packing is None else packing.batch
        shapes = tuple(
            (count, batch, size) if batched else (count, size) for size in self._state_sizes
        )
        layout = "num_layers times directions, batch if the input has one, state size"
        state = self._initial_state(hx, shapes, x, layout)
        if not batched:
            return tuple(value.unsqueeze(1) for value in state)
        if packing is not None and hx is not None:
            return tuple(packing.sort(value) for value in state)
        return state

    def backend_for(self, input: Any, hx: Any = None) -> Choice:
        """Which backend a call with these arguments takes, and why it is no kernel.

        Layers and directions choose on their own; the first that has no kernel decides, and the
        reason names it. What the call would refuse is refused: arguments that do not fit, or an
        explicit backend that cannot take them.
        """
        with self._undoing_draws():
            arguments = self._arguments(input, hx)
            x, parts = self._enter(arguments.x), self._parts
            for index, part in enumerate(parts):
                state = tuple(value[index] for value in arguments.state)
                choice = explain(self._cell(part), x, state, self.backend, self._is_recorded)
                if choice.backend == "reference":
                    break
        if choice.backend == self.backend or choice.reason is None or len(parts) == 1:
            return choice
        return Choice(choice.backend, f"layer {part}: {choice.reason}")

    def step(self, x_t: Tensor | Moments, state: Any = None) -> tuple[Moments, Any]:
        """One time step of a stream, at constant memory under `torch.no_grad()`.

        Feeding a sequence step by step, or in pieces through the layer itself, gives what one
        pass over the whole gives. With gradients enabled the state keeps the whole history alive
        for a later backward pass; `detach` it to let go.

        Args:
            x_t: (B, I) or (I,)
            state: what the last call returned; None at the start

        Returns:
            the output (B, H) or (H,), and the state to pass on
        """
        if self.bidirectional:
            raise ValueError(
                "a bidirectional layer needs the whole sequence and cannot stream; "
                "build it with bidirectional=False"
            )
        self._check("x_t", x_t)
        if x_t.ndim not in (1, 2):
            raise ValueError(f"x_t has {x_t.ndim} dimensions; pass one time step, (B, I) or (I,)")
        check_features("x_t", x_t, self.input_size, "input_size")
        if self._forward_pre_hooks or self._forward_hooks or self._is_recorded:
            # Hooks (of pruning, for instance) are called by a call of the module alone.
            time = 1 if self.batch_first and x_t.ndim == 2 else 0
            output, state = self(x_t.unsqueeze(time), state)
            return output.squeeze(time), state
        shapes = tuple((self.num_layers, *x_t.shape[:-1], size) for size in self._state_sizes)
        layers = self._initial_state(state, shapes, x_t, "num_layers, batch if x_t has one, size")
        x, finals = self._enter(x_t), []
        # Unbound and not indexed: the adjoint of an index fills a whole stack with zeros.
        by_layer = zip(*(value.unbind(0) for value in layers), strict=True)
        for layer, before in enumerate(by_layer):
            part = self._part(layer, False)
            input_map = self._input_map(part)
            finals.append(single_step(self._cell(part), x, before, input_map, self.backend))
            x = finals[-1][0]
            watch(self, x)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        # Cloned, because a user may change the output in place, and the state must stay.
        x = self._leave(x)
        output = Moments(x.mean.clone(), x.var.clone())
        if len(finals) == 1:
            final = map(self._leave, finals[0])
            after = tuple(Moments(v.mean.unsqueeze(0), v.var.unsqueeze(0)) for v in final)
        else:
            after = tuple(self._leave(stack(values)) for values in zip(*finals, strict=True))
        return output, self._pack_state(after)

    def _run(
        self,
        x: Any,
        state: tuple[Any, ...],
        batch_sizes: Tensor | None,
        restore: Callable[[Any], Any],
        time_dim: int,
    ) -> tuple[Any, list[Any]]:
        """All layers and directions: outputs (T, B, D H) and final states (layers D, B, H).

        Packed sequences, which have `batch_sizes`, go in and come out as rows: (N, I), (N, D H).
        """
        finals: list[tuple[Any, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for reverse in (False, True)[: self._directions]:
                initial = tuple(values[len(finals)] for values in state)
                part = self._part(layer, reverse)
                output, final, neurons = self._run_part(part, x, initial, reverse, batch_sizes)
                outputs.append(output)
                finals.append(final)
                if self._is_recorded:
                    laid_out = {name: restore(value) for name, value in neurons.items()}
                    self._record(part, laid_out, time_dim)
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        if len(finals) == 1:
            return x, [value.unsqueeze(0) for value in finals[0]]
        return x, [stack(values) for values in zip(*finals, strict=True)]

    def flatten_parameters(self) -> None:
        """Nothing to do; here because code written for `torch.nn` calls it."""

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        names = (
            "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout",
            "bidirectional",
        )  # fmt: skip
        return {name: getattr(module, name) for name in names}

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
            ("proj_size", 0),
        ):
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join([*parts, self._options_repr()])
