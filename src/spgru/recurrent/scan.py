"""A step repeated along time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.moments import Moments, Value, stack

__all__ = ["Neurons", "Step", "Trajectory", "scan", "scan_packed", "split_last"]

Neurons = dict[str, Value]
"""Every neuron of one step by name: gates, candidate, and the new "state" (and "cell")."""

Step = Callable[[Value, tuple[Value, ...]], Neurons[Value]]
"""One step of a cell: from inputs and state to neurons."""


class Trajectory(NamedTuple):
    """What a cell gives along time."""

    output: Any
    """the state after every step, (T, *batch, H), or (rows, H) for packed sequences"""
    final: tuple[Any, ...]
    """the final state, (*batch, H) each"""
    neurons: Neurons[Any]
    """every neuron (T, *batch, H) by name if they were recorded, else empty"""


def split_last(x: Value, sizes: list[int]) -> tuple[Value, ...]:
    """Parts of the given sizes along the last dimension."""
    return torch.split(x, sizes, -1) if isinstance(x, Tensor) else x.split(sizes, -1)


def _where(mask: Tensor, a: Value, b: Value) -> Value:
    if isinstance(a, Tensor):
        return torch.where(mask, a, b)
    return Moments(torch.where(mask, a.mean, b.mean), torch.where(mask, a.var, b.var))


def scan(
    step: Step[Value],
    inputs: Value,
    state: tuple[Value, ...],
    reverse: bool = False,
    mask: Tensor | None = None,
    record: bool = False,
) -> Trajectory:
    """Apply `step` at every time.

    Args:
        step: from inputs and state to neurons
        inputs: (T, *batch, G)
        state: initial state, each (*batch, ...)
        reverse: from the last time to the first
        mask: (T, *batch, 1); where False the state is left alone (sequences that have ended)
        record: also return all neurons, not only the states
    """
    names = ("state", "cell")[: len(state)]
    # Unbound once: indexing a tensor at every step costs more than a small step itself.
    steps = inputs.unbind(0)
    history = []
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        neurons = step(steps[t], state)
        if mask is not None:
            for name, old in zip(names, state, strict=True):
                neurons[name] = _where(mask[t], neurons[name], old)
        state = tuple(neurons[name] for name in names)
        history.append(neurons if record else {"state": neurons["state"]})
    if reverse:
        history.reverse()
    recorded = {name: stack([neurons[name] for neurons in history]) for name in history[0]}
    return Trajectory(recorded["state"], state, recorded if record else {})


def scan_packed(
    step: Step[Any],
    inputs: Any,
    state: tuple[Any, ...],
    batch_sizes: Tensor,
    reverse: bool = False,
    record: bool = False,
) -> Trajectory:
    """`scan` of sequences of several lengths, by padding and a mask.

    Args:
        inputs: (rows, G), laid out as the data of a `PackedSequence`
        state: (B, H) each, sequences sorted by falling length
        batch_sizes: (T,) on the CPU, how many sequences have a step t

    Returns:
        the output as packed rows; neurons are padded, (T, B, H)
    """
    exists = torch.arange(int(batch_sizes[0])) < batch_sizes[:, None]
    places = exists.flatten().nonzero().squeeze(1).to(inputs.device)
    padded = _each(lambda part: _placed(part, places, exists.shape), inputs)
    mask = exists.unsqueeze(-1).to(inputs.device)
    output, final, neurons = scan(step, padded, state, reverse, mask, record)
    return Trajectory(_each(lambda part: part.flatten(0, 1)[places], output), final, neurons)


def _each(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    return function(x) if isinstance(x, Tensor) else Moments(function(x.mean), function(x.var))


def _placed(rows: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """Packed rows (N, G) at their places in zeros (T, B, G)."""
    zeros = rows.new_zeros(shape.numel(), rows.shape[-1])
    return zeros.index_copy(0, places, rows).view(*shape, rows.shape[-1])
