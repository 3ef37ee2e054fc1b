"""What sequences, single cells and convolutional cells share: backend, states, and running."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.checks import check_choice
from spgru.functional import Affine
from spgru.modes import Drawn, watch, weight_mode
from spgru.moments import Moments, cat, certain
from spgru.nn.layer import Layer, Options
from spgru.recurrent import BACKENDS, Backend, Cell, Trajectory, run

__all__ = ["RecurrentLayer", "RecurrentOptions"]


class RecurrentOptions(Options, total=False):
    """The keyword arguments of recurrent layers beyond those of `torch.nn`."""

    backend: Backend


class RecurrentLayer(Layer):
    """A layer with a state.

    Its weights come in parts, each a cell with weights of its own ("l0", "l1_reverse"); a layer of
    one cell has the one part "".

    Args:
        backend: `"reference"`, `"triton"` (GPUs), `"compiled"` (CPUs), or `"auto"` for the fastest
            that supports the case; see `spgru.recurrent.backend`
    """

    gates: int
    """Rows of weight_ih in units of the hidden size."""
    state_names: tuple[str, ...] = ("h",)

    def __init__(
        self,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        backend: Backend = "auto",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        check_choice("backend", backend, BACKENDS)
        self.backend = backend

    @abstractmethod
    def _cell(self, part: str) -> Cell:
        """The equations with the weights of one part."""

    def _passed_on(self, size: int) -> int:
        """Units whose state a step passes on by a gate: all of a GRU or LSTM, none of a plain
        network. Other families and the printed formulas do it in another way."""
        has_gate = self.gates > 1 and self.family.name == "gaussian" and self.rule == "exact"
        return size if has_gate else 0

    def _hidden_map(self, part: str) -> Affine:
        """The map of the state, H -> gates H."""
        return self._affine(_join("weight_hh", part), _join("bias_hh", part))

    def _input_map(self, part: str) -> Affine:
        """The map of the input, I -> gates H."""
        return self._affine(_join("weight_ih", part), _join("bias_ih", part))

    # -- states -------------------------------------------------------------------------------

    @classmethod
    def _unpack_state(cls, hx: Any) -> tuple[Any, ...]:
        """One value for each name of a state."""
        if len(cls.state_names) == 1:
            return (hx,)
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise TypeError(
                f"hx of an LSTM must be the pair (h_0, c_0), got {type(hx).__name__}; "
                "pass hx=(h_0, c_0)"
            )
        return tuple(hx)

    @classmethod
    def _pack_state(cls, state: tuple[Any, ...]) -> Any:
        return state[0] if len(cls.state_names) == 1 else tuple(state)

    def _initial_state(
        self, hx: Any, shapes: tuple[tuple[int, ...], ...], like: Tensor | Moments, layout: str
    ) -> tuple[Any, ...]:
        """The state in the form of the weights, moments or numbers: checked if given, else zeros.

        Args:
            shapes: of each value
            layout: the dimensions in words, for the error
        """
        given = (None,) * len(shapes) if hx is None else self._unpack_state(hx)
        state = []
        for name, shape, value in zip(self.state_names, shapes, given, strict=True):
            if value is None:
                both = torch.zeros((2, *shape), dtype=like.dtype, device=like.device)
                value = Moments(*both.unbind(0))
            else:
                self._check(f"hx ({name})", value)
                if tuple(value.shape) != shape:
                    raise ValueError(
                        f"hx ({name}) has shape {tuple(value.shape)} but must have {shape}: "
                        f"{layout}"
                    )
                value = certain(value) if isinstance(value, Tensor) else value
            state.append(self._enter(value))
        return tuple(state)

    @contextmanager
    def _undoing_draws(self) -> Iterator[None]:
        """A block that leaves the generator of drawn weights as it was, for a mere question."""
        mode = weight_mode(self)
        before = mode.generator.get_state() if isinstance(mode, Drawn) else None
        try:
            yield
        finally:
            if isinstance(mode, Drawn) and before is not None:
                mode.generator.set_state(before)

    # -- running ------------------------------------------------------------------------------

    def _run_part(
        self,
        part: str,
        x: Any,
        state: tuple[Any, ...],
        reverse: bool = False,
        batch_sizes: Tensor | None = None,
    ) -> Trajectory:
        """One part along time; see `spgru.recurrent.run`."""
        if self._redraws and (batch_sizes is not None or x.shape[0] > 1):
            return self._run_redrawing(part, x, state, reverse, batch_sizes)
        # Drawn weights depend on the order in which they are asked for: first the input's.
        input_map = self._input_map(part)
        found = run(
            self._cell(part), x, state, input_map=input_map, backend=self.backend,
            reverse=reverse, batch_sizes=batch_sizes, record=self._is_recorded,
        )  # fmt: skip
        watch(self, found.output)
        return found

    def _run_redrawing(
        self,
        part: str,
        x: Any,
        state: tuple[Any, ...],
        reverse: bool,
        batch_sizes: Tensor | None,
    ) -> Trajectory:
        """Step by step, since every run of one step draws its own weights."""
        steps = x.unbind(0) if batch_sizes is None else x.split(batch_sizes.tolist())
        outputs, history = [], []
        for now in reversed(steps) if reverse else steps:
            # Of packed sequences the first are still there, or there already.
            count, batch = len(now), state[0].shape[0]
            before = tuple(value[:count] for value in state)
            output, after, neurons = self._run_part(part, now.unsqueeze(0), before, reverse)
            state = tuple(
                cat([new, old[count:]]) if count < batch else new
                for new, old in zip(after, state, strict=True)
            )
            outputs.append(output if batch_sizes is None else output.squeeze(0))
            if count < batch:
                padding = (0, 0, 0, batch - count)
                neurons = {name: F.pad(value, padding) for name, value in neurons.items()}
            history.append(neurons)
        if reverse:
            outputs.reverse()
            history.reverse()
        neurons = {name: cat([step[name] for step in history]) for name in history[0]}
        return Trajectory(cat(outputs), state, neurons)


def _join(name: str, part: str) -> str:
    return f"{name}_{part}" if part else name
