"""How layers run within a `with` block: on drawn weights, on means, recorded, or frozen.

A mode belongs to the block and not to the modules: it is kept in a `ContextVar`, so other threads
and other asyncio tasks that run the same modules at the same time do not see it, and blocks nest.
Each mode is a mapping from layers to what applies to them; a layer that is not in it runs as usual.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "Drawn", "Frozen", "Record", "WeightMode", "enter_frozen", "enter_recording", "enter_weights",
    "frozen_of", "record", "records_of", "weight_mode",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Weights are drawn at random."""

    generator: torch.Generator
    draws: Mapping[str, Tensor] | None
    """by name, one draw for the whole block; None to draw again at every time step"""


class AtMean:
    """Weights are their means."""


WeightMode = Drawn | AtMean


class Record(NamedTuple):
    """The neurons of one part of a layer ("l0", "l0_reverse", or "") during one call."""

    part: str
    neurons: dict[str, Any]
    time_dim: int | None


@dataclass(slots=True, eq=False)
class Frozen:
    """What the weights of one layer imply, computed once per block."""

    learns: bool
    """whether gradients reach the weights through what is kept"""
    kept: dict[Any, Any]


_NONE: Mapping[Any, Any] = MappingProxyType({})
_weights: ContextVar[Mapping[nn.Module, WeightMode]] = ContextVar("weights", default=_NONE)
_records: ContextVar[Mapping[nn.Module, tuple[list[Record], ...]]] = ContextVar(
    "records", default=_NONE
)
_frozen: ContextVar[Mapping[nn.Module, Frozen]] = ContextVar("frozen", default=_NONE)


class _ThreadLocal(threading.local):
    """What torch.compile reads, which cannot trace a ContextVar: the mode entered last.

    It differs from the ContextVar only where asyncio tasks of one thread interleave.
    """

    def __init__(self) -> None:
        # Set here and not on the class: only so does a compiler guard on them.
        self.weights: Mapping[nn.Module, WeightMode] = {}
        self.records: Mapping[nn.Module, tuple[list[Record], ...]] = {}
        self.frozen: Mapping[nn.Module, Frozen] = {}


_traced = _ThreadLocal()


@contextmanager
def _entered(variable: ContextVar[Any], additions: Mapping[nn.Module, Any]) -> Iterator[None]:
    name = variable.name
    if torch.compiler.is_compiling():  # a block inside the compiled code
        before = getattr(_traced, name)
        setattr(_traced, name, {**before, **additions})
        try:
            yield
        finally:
            setattr(_traced, name, before)
        return
    token = variable.set({**variable.get(), **additions})
    setattr(_traced, name, variable.get())
    try:
        yield
    finally:
        variable.reset(token)
        setattr(_traced, name, variable.get())


def _weights_now() -> Mapping[nn.Module, WeightMode]:
    return _traced.weights if torch.compiler.is_compiling() else _weights.get()


def _records_now() -> Mapping[nn.Module, tuple[list[Record], ...]]:
    return _traced.records if torch.compiler.is_compiling() else _records.get()


def _frozen_now() -> Mapping[nn.Module, Frozen]:
    return _traced.frozen if torch.compiler.is_compiling() else _frozen.get()


def weight_mode(layer: nn.Module) -> WeightMode | None:
    """How the weights of this layer are to be taken; None for their moments."""
    return _weights_now().get(layer)


def records_of(layer: nn.Module) -> tuple[list[Record], ...]:
    """Lists that wait for the neurons of this layer, one for each enclosing block."""
    return _records_now().get(layer, ())


def record(layer: nn.Module, part: str, neurons: dict[str, Any], time_dim: int | None) -> None:
    """Hand the neurons of one call to every enclosing `enter_recording` block."""
    for records in records_of(layer):
        records.append(Record(part, neurons, time_dim))


def frozen_of(layer: nn.Module) -> Frozen | None:
    """Where to keep what the weights of this layer imply, None where nothing may be kept."""
    return _frozen_now().get(layer)


def enter_weights(modes: Mapping[nn.Module, WeightMode]) -> Any:
    """Block in which these layers take their weights so; an inner block replaces an outer one."""
    return _entered(_weights, modes)


def enter_recording(lists: Mapping[nn.Module, list[Record]]) -> Any:
    """Block in which these layers record their neurons, for outer blocks too."""
    outer = _records_now()
    return _entered(_records, {layer: (*outer.get(layer, ()), own) for layer, own in lists.items()})


def enter_frozen(layers: Iterable[nn.Module], learns: bool) -> Any:
    """Block in which these layers keep what their weights imply.

    A layer that an outer block keeps already stays with that one, unless it learns and this block
    must not.
    """
    outer = _frozen_now()
    return _entered(
        _frozen,
        {
            layer: Frozen(learns, {})
            for layer in layers
            if layer not in outer or (outer[layer].learns and not learns)
        },
    )
