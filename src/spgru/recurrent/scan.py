"""A step repeated along time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spgru.moments import Moments, Value, stack

__all__ = ["Neurons", "scan", "split_last"]

Neurons = dict[str, Value]
"""Every neuron of one step by name: gates, candidate, and the new "state" (and "cell")."""

Step = Callable[[Value, tuple[Value, ...]], Neurons[Value]]


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
) -> tuple[Value, tuple[Value, ...], Neurons[Value]]:
    """Apply `step` at every time.

    Args:
        step: from inputs and state to neurons
        inputs: (T, *batch, G)
        state: initial state, each (*batch, ...)
        reverse: from the last time to the first
        mask: (T, *batch, 1); where False the state is left alone (sequences that have ended)
        record: also return all neurons, not only the states

    Returns:
        the state after every step (T, *batch, H), the final state, and the neurons (T, *batch, H)
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
    return recorded["state"], state, recorded if record else {}
