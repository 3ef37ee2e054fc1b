"""Calls of a frozen layer on a GPU, recorded as CUDA graphs and replayed.

Within `spgru.frozen` nothing but the inputs changes from call to call; the third with the same
shapes is recorded. `spgru.nn.training_replay` does the same for calls with gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spgru.modes import frozen_of
from spgru.nn.cache import Snapshot
from spgru.nn.layer import Layer
from spgru.nn.recordings import Call, Recordings, Signature, arguments, copies, describe
from spgru.nn.training_replay import replayed_training

__all__ = ["replayed"]

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
    recordings: Recordings[_Graph] = frozen.cache.setdefault(
        "recordings", Recordings(Snapshot, _CALLS_BEFORE, _MOST)
    )

    def record() -> _Graph:
        # What the graph reads is cached by the block, as the graph is.
        with layer.capturing_by_block():
            return _Graph(forward, call)

    with recordings.lock:
        graph = recordings.graph_of(call, layer, layer.weight_sources(), record)
        if graph is not None:
            return graph(call.tensors)
    return forward(input, hx)


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
