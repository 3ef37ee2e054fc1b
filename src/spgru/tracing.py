"""`trace`: the distribution of every neuron of a network."""

from __future__ import annotations

from typing import Any

from torch import nn

from spgru.moments import Moments, cat
from spgru.nn.layer import Record, recording

__all__ = ["Trace", "trace"]


class Trace(dict[str, dict[str, Moments]]):
    """Neurons by layer and name: `trace["l0"]["z"]`, `trace["encoder.l1_reverse"]["state"]`."""

    def __repr__(self) -> str:
        lines = [
            f"{layer}: {', '.join(neurons)}  {tuple(next(iter(neurons.values())).shape)}"
            for layer, neurons in self.items()
        ]
        return "\n".join(lines)


def trace(module: nn.Module, *inputs: Any) -> Trace:
    """Run `module(*inputs)` and return the moments of every neuron of our layers in it.

    Recurrent layers give one entry per layer and direction ("l0", "l0_reverse", ...) with the
    gates, "candidate" and "state" (for an LSTM also "cell") at every step, laid out as the input.
    Other layers give "output". Inside a larger module the layer's name comes first
    ("encoder.l0"). Calls repeated within one pass are joined along time.
    """
    with recording(module) as records:
        module(*inputs)
    return Trace({name: neurons for name, (neurons, _) in join(records).items()})


def join(records: dict[str, list[Record]]) -> dict[str, tuple[dict[str, Any], int | None]]:
    """Neurons of each layer and the dimension that is time, repeated calls joined along it."""
    calls: dict[str, list[Record]] = {}
    for layer, layer_records in records.items():
        for record in layer_records:
            name = ".".join(part for part in (layer, record.part) if part)
            calls.setdefault(name or "output", []).append(record)
    joined = {}
    for name, parts in calls.items():
        time_dim = parts[-1].time_dim
        neurons = {
            key: parts[0].neurons[key]
            if len(parts) == 1
            else cat([part.neurons[key] for part in parts], time_dim or 0)
            for key in parts[0].neurons
        }
        joined[name] = (neurons, time_dim)
    return joined
