"""How layers run within a `with` block: drawn, at mean, recorded, watched, frozen, other gains.

A mode belongs to the block and not to the modules: it is kept in a `ContextVar`, so other threads
and other asyncio tasks that run the same modules at the same time do not see it, and blocks nest.
(A generator that yields inside a block shows its mode to whoever runs in between; and a backward
pass that runs a checkpointed part again, later or in a GPU's own thread, is outside the block.)
Each mode is a mapping from layers to what applies to them; a layer that is not in it runs as usual.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.functional.linear import Tap
from spgru.moments import Moments

__all__ = [
    "Drawn", "Frozen", "Record", "Responding", "WeightMode", "check_followed", "enter_frozen",
    "enter_gains", "enter_recording", "enter_watching", "enter_weights", "frozen_of", "gains_of",
    "is_intercepted", "record", "records_of", "watch", "weight_mode",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Weights are drawn at random."""

    generator: torch.Generator
    draws: Mapping[str, Tensor] | None
    """by name, one draw for the whole block; None to draw again at every time step"""


class AtMean:
    """Weights are their means."""


@dataclass(frozen=True, slots=True, eq=False)
class Responding:
    """Weights keep their moments, and what becomes of every use is noted; see `spgru.response`."""

    values: Mapping[str, Moments]
    """by name, as they are to be taken"""
    tap: Callable[[str, str], Tap] | None
    """what is told of the uses of a weight and a bias; None where nobody asks"""
    kept: dict[Any, Any]
    """maps made of them"""
    needs_grad: bool = True
    """whether sources are followed by autograd, and so not under `no_grad`"""


WeightMode = Drawn | AtMean | Responding


class Record(NamedTuple):
    """The neurons of one part of a layer ("l0", "l0_reverse", or "") during one call."""

    part: str
    neurons: dict[str, Any]
    time_dim: int | None


@dataclass(slots=True, eq=False)
class Frozen:
    """What the weights of one layer imply, computed once per block."""

    learns: bool
    """whether gradients reach the weights through what is cached"""
    cache: dict[Any, Any]


_NONE: Mapping[Any, Any] = MappingProxyType({})
_Stacks = Mapping[nn.Module, tuple[Any, ...]]
"""For each layer what the enclosing blocks say of it, the innermost last."""

_weights: ContextVar[_Stacks] = ContextVar("weights", default=_NONE)
_records: ContextVar[_Stacks] = ContextVar("records", default=_NONE)
_frozen: ContextVar[_Stacks] = ContextVar("frozen", default=_NONE)
_gains: ContextVar[_Stacks] = ContextVar("gains", default=_NONE)
_watched: ContextVar[_Stacks] = ContextVar("watched", default=_NONE)


class _ThreadLocal(threading.local):
    """What torch.compile reads, which cannot trace a ContextVar: the mode entered last.

    It differs from the ContextVar only where asyncio tasks of one thread interleave.
    """

    def __init__(self) -> None:
        # Set here and not on the class: only so does a compiler guard on them.
        self.weights: _Stacks = {}
        self.records: _Stacks = {}
        self.frozen: _Stacks = {}
        self.gains: _Stacks = {}
        self.watched: _Stacks = {}


_traced = _ThreadLocal()


@contextmanager
def _entered(variable: ContextVar[_Stacks], states: Mapping[nn.Module, Any]) -> Iterator[None]:
    _put(variable, _with(_now(variable), states))
    try:
        yield
    finally:
        # Only what this block added: generators may end in another order than they began.
        _put(variable, _without(_now(variable), states))


def _now(variable: ContextVar[_Stacks]) -> _Stacks:
    if torch.compiler.is_compiling():
        traced: _Stacks = getattr(_traced, variable.name)
        return traced
    return variable.get()


def _put(variable: ContextVar[_Stacks], stacks: _Stacks) -> None:
    setattr(_traced, variable.name, stacks)
    if not torch.compiler.is_compiling():
        variable.set(stacks)


def _with(stacks: _Stacks, states: Mapping[nn.Module, Any]) -> _Stacks:
    added = {layer: (*stacks.get(layer, ()), state) for layer, state in states.items()}
    return {**stacks, **added}


def _without(stacks: _Stacks, states: Mapping[nn.Module, Any]) -> _Stacks:
    left = dict(stacks)
    for layer, state in states.items():
        rest = tuple(other for other in left.pop(layer, ()) if other is not state)
        if rest:
            left[layer] = rest
    return left


def weight_mode(layer: nn.Module) -> WeightMode | None:
    """How the weights of this layer are to be taken; None for their moments."""
    stacks = _traced.weights if torch.compiler.is_compiling() else _weights.get()
    return stacks[layer][-1] if layer in stacks else None


def check_followed(layer: nn.Module) -> None:
    """Where sources are followed, refuse weights that are not among them: they would pass for
    noise."""
    stacks = _NONE if torch.compiler.is_compiling() else _weights.get()
    now = [modes[-1] for modes in stacks.values() if isinstance(modes[-1], Responding)]
    if any(torch.is_grad_enabled() or not mode.needs_grad for mode in now):
        raise RuntimeError(
            f"{type(layer).__name__} has random weights and runs, but is no part of the module "
            "that was passed; pass the module that holds all layers, and what to call by "
            "function=, or run the layer within `at_mean`"
        )


def records_of(layer: nn.Module) -> tuple[list[Record], ...]:
    """Lists that wait for the neurons of this layer, one for each enclosing block."""
    stacks = _traced.records if torch.compiler.is_compiling() else _records.get()
    return stacks.get(layer, ())


def record(layer: nn.Module, part: str, neurons: dict[str, Any], time_dim: int | None) -> None:
    """Hand the neurons of one call to every enclosing `enter_recording` block."""
    for records in records_of(layer):
        records.append(Record(part, neurons, time_dim))


def frozen_of(layer: nn.Module) -> Frozen | None:
    """The cache for what the weights of this layer imply, None where there is none."""
    stacks = _traced.frozen if torch.compiler.is_compiling() else _frozen.get()
    return stacks[layer][-1] if layer in stacks else None


def gains_of(layer: nn.Module) -> Mapping[str, Tensor] | None:
    """The gains of this layer's weights by name, in place of its own; None for its own."""
    stacks = _traced.gains if torch.compiler.is_compiling() else _gains.get()
    return stacks[layer][-1] if stacks and layer in stacks else None


def watch(layer: nn.Module, output: Any) -> None:
    """Hand the output of one call, of a recurrent layer its states, to every enclosing block.

    Unlike recording it leaves the choice of a kernel alone.
    """
    stacks = _traced.watched if torch.compiler.is_compiling() else _watched.get()
    if stacks:
        for outputs in stacks.get(layer, ()):
            outputs.append(output)


def is_intercepted(layer: nn.Module) -> bool:
    """Whether a call has to go through the layer's own code: recorded, watched, or other gains."""
    return any(layer in variable.get() for variable in (_records, _gains, _watched))


def enter_weights(modes: Mapping[nn.Module, WeightMode]) -> Any:
    """Block in which these layers take their weights so; an inner block replaces an outer one."""
    return _entered(_weights, modes)


def enter_recording(lists: Mapping[nn.Module, list[Record]]) -> Any:
    """Block in which these layers record their neurons, for outer blocks too."""
    return _entered(_records, lists)


def enter_frozen(layers: Iterable[nn.Module], learns: bool) -> Any:
    """Block in which these layers cache what their weights imply.

    A layer that is in an outer block already stays with that one, unless it learns and this block
    must not.
    """
    states = {}
    for layer in layers:
        outer = frozen_of(layer)
        if outer is None or (outer.learns and not learns):
            states[layer] = Frozen(learns, {})
    return _entered(_frozen, states)


def enter_gains(gains: Mapping[nn.Module, Mapping[str, Tensor]]) -> Any:
    """Block in which these layers have these gains, by the keys of `Layer.gains`; a missing one is
    1, a missing coherence 0."""
    return _entered(_gains, gains)


@contextmanager
def unobserved() -> Iterator[None]:
    """Block in which no layer records its neurons or hands on its output: a pass beside the one
    that is looked at."""
    variables: list[ContextVar[_Stacks]] = [_records, _watched]
    before = [_now(variable) for variable in variables]
    for variable in variables:
        _put(variable, {})
    try:
        yield
    finally:
        for variable, stacks in zip(variables, before, strict=True):
            _put(variable, stacks)


def enter_watching(lists: Mapping[nn.Module, list[Any]]) -> Any:
    """Block in which layers hand on their outputs; see `watch`."""
    return _entered(_watched, lists)
