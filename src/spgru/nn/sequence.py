"""The part of GRU, LSTM and RNN that is not their equations: layers, directions, packing, state."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.checks import check_choice, check_features
from spgru.functional import Affine
from spgru.functional.algebra import dropout
from spgru.moments import Moments, cat, certain, stack
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape
from spgru.recurrent import BACKENDS, Backend, Cell, Neurons, Trajectory, run

__all__ = ["Recurrent", "RecurrentOptions"]

Step = Callable[[Any, tuple[Any, ...]], Neurons[Any]]


@dataclass(frozen=True, slots=True)
class _Packing:
    """How a packed batch was laid out, to restore the layout afterwards."""

    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None

    @staticmethod
    def open(packed: PackedSequence) -> tuple[Tensor, _Packing]:
        """The rows (N, I) of all steps, sequences sorted by falling length, and the layout."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        return data, _Packing(batch_sizes, sorted_indices, unsorted_indices)

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return int(self.batch_sizes[0])

    def close(self, rows: Tensor) -> PackedSequence:
        return PackedSequence(rows, self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def in_order(self, sequence: Any) -> Any:
        """(T, B, H) padded with certain zeros, sequences in the order they were packed from."""
        if isinstance(sequence, Moments):
            return Moments(self.in_order(sequence.mean), self.in_order(sequence.var))
        exists = torch.arange(self.batch) < self.batch_sizes[:, None]
        mask = exists.unsqueeze(-1).to(sequence.device)
        return self.unsort(torch.where(mask, sequence, 0.0))

    def sort(self, value: Any) -> Any:
        """(first, B, ...) sorted by length"""
        return value if self.sorted_indices is None else value[:, self.sorted_indices]

    def unsort(self, value: Any) -> Any:
        """(first, B, ...) in the order they were packed from"""
        return value if self.unsorted_indices is None else value[:, self.unsorted_indices]


def _same_packing(a: PackedSequence, b: PackedSequence) -> bool:
    if a.batch_sizes.tolist() != b.batch_sizes.tolist():
        return False
    if a.sorted_indices is None or b.sorted_indices is None:
        return a.sorted_indices is b.sorted_indices
    return a.sorted_indices is b.sorted_indices or torch.equal(a.sorted_indices, b.sorted_indices)


class RecurrentOptions(Options, total=False):
    """The keyword arguments of recurrent layers beyond those of `torch.nn`."""

    backend: Backend


class Recurrent(Layer):
    """Base of `GRU`, `LSTM` and `RNN`: everything but the step.

    The arguments before `device` are those of `torch.nn`; for the others see `spgru.nn.Layer`.

    Args:
        backend: `"reference"`, `"triton"` (GPUs), `"compiled"` (CPUs), or `"auto"` for the fastest
            that supports the case; see `spgru.recurrent.backend`
    """

    gates: int
    """Rows of weight_ih in units of hidden_size."""

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
        backend: Backend = "auto",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        check_choice("backend", backend, BACKENDS)
        self.backend = backend
        for name, size in (
            ("input_size", input_size),
            ("hidden_size", hidden_size),
            ("num_layers", num_layers),
        ):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
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

    def _weight_shapes(self) -> Iterator[WeightShape]:
        size = self._output_size
        bound = 1 / math.sqrt(self.hidden_size)
        rows = self.gates * self.hidden_size
        for layer in range(self.num_layers):
            inputs = self.input_size if layer == 0 else size * self._directions
            for reverse in (False, True)[: self._directions]:
                part = self._part(layer, reverse)
                yield WeightShape(f"weight_ih_{part}", (rows, inputs), inputs, bound)
                yield WeightShape(f"weight_hh_{part}", (rows, size), size, bound)
                if self.bias:
                    yield WeightShape(f"bias_ih_{part}", (rows,), inputs, bound)
                    yield WeightShape(f"bias_hh_{part}", (rows,), size, bound)
                if self.proj_size:
                    shape = (self.proj_size, self.hidden_size)
                    yield WeightShape(f"weight_hr_{part}", shape, self.hidden_size, bound)

    @abstractmethod
    def _cell(self, hidden: Affine, part: str) -> Cell:
        """The equations with the weights of one layer and direction."""

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
        x, packing = self._open(input)
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
        state = self._initial_state(hx, x, batched, packing)

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
        return output, self._pack_state(final)

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
        time = 1 if self.batch_first and x_t.ndim == 2 else 0
        output, state = self(x_t.unsqueeze(time), state)
        return output.squeeze(time), state

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
                output, final, neurons = self._run_one(x, initial, batch_sizes, layer, reverse)
                outputs.append(output)
                finals.append(final)
                if self._is_recorded:
                    laid_out = {name: restore(value) for name, value in neurons.items()}
                    self._record(self._part(layer, reverse), laid_out, time_dim)
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        if len(finals) == 1:
            return x, [value.unsqueeze(0) for value in finals[0]]
        return x, [stack(values) for values in zip(*finals, strict=True)]

    def _run_one(
        self, x: Any, state: tuple[Any, ...], batch_sizes: Tensor | None, layer: int, reverse: bool
    ) -> Trajectory:
        part = self._part(layer, reverse)
        if self._redraws and (batch_sizes is not None or x.shape[0] > 1):
            return self._run_redrawing(x, state, batch_sizes, layer, reverse)
        inputs = self._affine(f"weight_ih_{part}", f"bias_ih_{part}")
        hidden = self._affine(f"weight_hh_{part}", f"bias_hh_{part}")
        return run(
            self._cell(hidden, part), x, state, input_map=inputs, backend=self.backend,
            reverse=reverse, batch_sizes=batch_sizes, record=self._is_recorded,
        )  # fmt: skip

    def _run_redrawing(
        self, x: Any, state: tuple[Any, ...], batch_sizes: Tensor | None, layer: int, reverse: bool
    ) -> Trajectory:
        """Step by step, since every run of one step draws its own weights."""
        steps = x.unbind(0) if batch_sizes is None else x.split(batch_sizes.tolist())
        outputs, history = [], []
        for now in reversed(steps) if reverse else steps:
            # Of packed sequences the first are still there, or there already.
            count, batch = len(now), state[0].shape[0]
            before = tuple(value[:count] for value in state)
            output, after, neurons = self._run_one(now.unsqueeze(0), before, None, layer, reverse)
            state = tuple(
                cat([new, old[count:]]) if count < batch else new
                for new, old in zip(after, state, strict=True)
            )
            outputs.append(output if batch_sizes is None else output.squeeze(0))
            padding = (0, 0, 0, batch - count)
            history.append({name: F.pad(value, padding) for name, value in neurons.items()})
        if reverse:
            outputs.reverse()
            history.reverse()
        neurons = {name: cat([step[name] for step in history]) for name in history[0]}
        return Trajectory(cat(outputs), state, neurons)

    def flatten_parameters(self) -> None:
        """Nothing to do; here because code written for `torch.nn` calls it."""

    # -- layouts ------------------------------------------------------------------------------

    @staticmethod
    def _open(x: Any) -> tuple[Any, _Packing | None]:
        if isinstance(x, PackedSequence):
            return _Packing.open(x)
        if isinstance(x, Moments) and isinstance(x.mean, PackedSequence):
            if not isinstance(x.var, PackedSequence) or not _same_packing(x.mean, x.var):
                raise ValueError(
                    "input.mean is packed but input.var is not packed alike; "
                    "use spgru.pack_padded_moments"
                )
            mean, packing = _Packing.open(x.mean)
            var, _ = _Packing.open(x.var)
            return Moments(mean, var), packing
        return x, None

    def _unpack_state(self, hx: Any) -> tuple[Any, ...]:
        return (hx,)

    def _pack_state(self, state: list[Any]) -> Any:
        return state[0]

    def _initial_state(
        self, hx: Any, x: Any, batched: bool, packing: _Packing | None
    ) -> tuple[Any, ...]:
        """(layers D, B, size) each; checked if given, else zeros."""
        count = self.num_layers * self._directions
        batch = x.shape[1] if packing is None else packing.batch
        given = (None,) * len(self._state_sizes) if hx is None else self._unpack_state(hx)
        state = []
        for name, size, value in zip(("h", "c"), self._state_sizes, given, strict=False):
            if value is None:
                shape = 2, count, batch, size
                value = Moments(*torch.zeros(shape, dtype=x.dtype, device=x.device).unbind(0))
            else:
                self._check(f"hx ({name})", value)
                expected = (count, batch, size) if batched else (count, size)
                if tuple(value.shape) != expected:
                    raise ValueError(
                        f"hx ({name}) has shape {tuple(value.shape)} but must have {expected}: "
                        "num_layers times directions, batch if the input has one, state size"
                    )
                value = value if batched else value.unsqueeze(1)
                if packing is not None:
                    value = packing.sort(value)
            value = certain(value) if isinstance(value, Tensor) else value
            state.append(self._enter(value))
        return tuple(state)

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
