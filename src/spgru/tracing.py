"""`trace`: the distribution of every neuron of a network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from spgru.modes import Record
from spgru.moments import Moments, cat, certain, stack
from spgru.nn.contexts import recording

__all__ = ["Trace", "trace"]


class Trace(dict[str, dict[str, Moments]]):
    """Neurons by layer and name: `trace["l0"]["z"]`, `trace["encoder.l1_reverse"]["state"]`."""

    def __repr__(self) -> str:
        lines = [
            f"{layer}: {', '.join(neurons)}  {tuple(next(iter(neurons.values())).shape)}"
            for layer, neurons in self.items()
        ]
        return "\n".join(lines)


def trace(module: nn.Module, *inputs: Any, **options: Any) -> Trace:
    """Run `module(*inputs, **options)` and return the moments of every neuron of our layers in it.

    Recurrent layers give one entry per layer and direction ("l0", "l0_reverse", ...) with the
    gates, "candidate" and "state" (for an LSTM also "cell") at every step, laid out as the input
    (a packed one as the padded batch it came from, padding being certain zeros). Other layers give
    "output". Inside a larger module the layer's name comes first ("encoder.l0"). Calls repeated
    within one pass are joined along time, or, where their shapes differ, numbered.
    """
    with recording(module) as records:
        module(*inputs, **options)
    return Trace(
        {
            # While weights are numbers, so are neurons.
            name: {key: certain(v) if isinstance(v, Tensor) else v for key, v in neurons.items()}
            for name, (neurons, _) in join(records).items()
        }
    )


Joined = dict[str, tuple[dict[str, Any], int | None]]
"""Neurons by name and the dimension that is time, None where there is none, by layer."""


def join(records: dict[str, list[Record]]) -> Joined:
    """All calls of each layer as one record."""
    calls: dict[str, list[Record]] = {}
    for layer, layer_records in records.items():
        for record in layer_records:
            name = ".".join(part for part in (layer, record.part) if part)
            calls.setdefault(name or "output", []).append(record)
    joined: Joined = {}
    for name, parts in calls.items():
        if len(parts) == 1 or not _alike(parts):
            for number, part in enumerate(parts, start=1):
                label = name if len(parts) == 1 else f"{name} (call {number})"
                joined[label] = (part.neurons, part.time_dim)
            continue
        # A layer without a time of its own that is called repeatedly is called step by step.
        time_dim = parts[0].time_dim
        together = stack if time_dim is None else cat
        neurons = {
            key: together([part.neurons[key] for part in parts], time_dim or 0)
            for key in parts[0].neurons
        }
        joined[name] = (neurons, time_dim or 0)
    return {
        name: (neurons, _find_time(neurons, t, joined)) for name, (neurons, t) in joined.items()
    }


def _alike(parts: list[Record]) -> bool:
    """Whether the calls have one shape, time aside."""

    def shape(part: Record) -> list[int]:
        sizes = list(next(iter(part.neurons.values())).shape)
        if part.time_dim is not None:
            del sizes[part.time_dim]
        return sizes

    return all(shape(part) == shape(parts[0]) for part in parts)


def _find_time(neurons: dict[str, Any], time_dim: int | None, joined: Joined) -> int | None:
    """The time dimension of a feed-forward layer: that of a recurrent layer of the same layout."""
    if time_dim is not None:
        return time_dim
    shape = next(iter(neurons.values())).shape
    for others, other_time in joined.values():
        state = others.get("state")
        if state is not None and len(shape) == state.ndim and shape[:-1] == state.shape[:-1]:
            return other_time
    return None
