"""Calls of a frozen layer on a GPU, recorded as CUDA graphs and replayed.

Within `spgru.frozen` nothing but the inputs changes from call to call; the third with the same
shapes is recorded. Models whose whole pass is known to be a function of its input are recorded as a
whole. `spgru.nn.training_replay` does the same for calls with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spgru.modes import Frozen, frozen_of
from spgru.moments import Moments
from spgru.nn.cache import Snapshot
from spgru.nn.layer import Layer, layers_of
from spgru.nn.recordings import (
    Call,
    Recordings,
    Signature,
    arguments,
    copies,
    describe,
    describe_module,
)
from spgru.nn.training_replay import replayed_training

__all__ = ["replayed", "replayed_module"]

# The first call makes what the weights imply, the second compiles what is still missing.
_CALLS_BEFORE = 2
# Of a few shapes, as in serving.
_MOST = 8

Forward = Callable[[Any, Any], Any]


def replayed(layer: Layer, forward: Forward, input: Any, hx: Any) -> Any:
    """What `forward(input, hx)` gives, by a CUDA graph where the call is one of many alike.

    Args:
        forward: the layer's own, which has no side effects and draws no random numbers
    """
    if torch.compiler.is_compiling():
        return forward(input, hx)
    frozen = frozen_of(layer)
    if torch.is_grad_enabled():
        if frozen is not None:
            return forward(input, hx)
        return replayed_training(layer, forward, input, hx)
    if frozen is None or frozen.learns:
        return forward(input, hx)
    call = describe(layer, input, hx)
    if call is None:
        return forward(input, hx)
    with _recordings(frozen, "recordings", _CALLS_BEFORE) as recordings:
        graph = recordings.graph_of(
            call, layer, layer.weight_sources(), lambda: _record([layer], forward, call)
        )
        if graph is not None:
            return graph(call.tensors)
    return forward(input, hx)


def replayed_module(
    module: nn.Module, forward: Callable[[Any], Moments], input: Any, key: Any
) -> Moments:
    """`replayed` for a whole pass of a module whose layers are all frozen.

    The layers alone leave the operations between them, and after the last one, to be launched one
    by one.

    Args:
        forward: has no side effects, draws no random numbers and reads nothing but the input, the
            layers and the buffers of the module
        key: what else the answer depends on
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return forward(input)
    layers = [layer for _, layer in layers_of(module)]
    states = [frozen_of(layer) for layer in layers]
    if not states or any(state is None or state.learns for state in states):
        return forward(input)
    call = describe_module(module, layers, input, key)
    if call is None:
        return forward(input)
    first: Any = states[0]
    sources = [*module.buffers(), *(s for layer in layers for s in layer.weight_sources())]
    # Sooner than the layers, whose graphs inside of this one nobody would replay.
    with _recordings(first, module, _CALLS_BEFORE - 1) as recordings:
        graph = recordings.graph_of(
            call, module, sources, lambda: _record(layers, lambda x, _: (forward(x), None), call)
        )
        if graph is not None:
            found: Moments = graph(call.tensors)[0]
            return found
    return forward(input)


@contextmanager
def _recordings(frozen: Frozen, key: Any, after: int) -> Iterator[Recordings[_Graph]]:
    """Those that the block has under this key, while nobody else uses them."""
    found: Recordings[_Graph] = frozen.cache.setdefault(key, Recordings(Snapshot, after, _MOST))
    with found.lock:
        yield found


def _record(layers: list[Layer], forward: Forward, call: Call) -> _Graph:
    with ExitStack() as stack:
        for layer in layers:
            # What the graph reads is cached by the block, as the graph is.
            stack.enter_context(layer.capturing_by_block())
        return _Graph(forward, call)


class _Graph:
    """One recorded call."""

    def __init__(self, forward: Forward, call: Call) -> None:
        self._inputs = [tensor.clone() for tensor in call.tensors]
        # What a library sets up in a thread that uses it first cannot be set up while recording.
        forward(*arguments(self._inputs, call.kinds))
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may go on using the GPU.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            result = forward(*arguments(self._inputs, call.kinds))
            self._results, self._signature = Signature.of(result)

    def __call__(self, tensors: list[Tensor]) -> Any:
        for static, tensor in zip(self._inputs, tensors, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        return self._signature.result(copies(self._results))
