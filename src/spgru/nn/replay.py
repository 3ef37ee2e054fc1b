"""Calls of a frozen layer on a GPU, recorded as CUDA graphs and replayed.

Launching the kernels of a small layer one by one takes the host several times longer than the GPU
needs for them. Within `spgru.frozen` nothing but the inputs changes from call to call, so the work
of a call can be recorded and launched as a whole.

Only calls that repeat are recorded: the third with the same shapes is. Inputs are copied to where
the graph reads them and results from where it writes them, so results belong to the caller.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spgru.checks import is_transformed, values_are_checked
from spgru.modes import Frozen, frozen_of, is_intercepted, weight_mode
from spgru.moments import Moments
from spgru.nn.cache import Snapshot
from spgru.nn.layer import Layer
from spgru.recurrent.operator import flatten, unflatten

__all__ = ["replayed"]

# The first call makes what the weights imply, the second compiles what is still missing.
_CALLS_BEFORE = 2
# Graphs of one layer, each with memory for what its call computes: of a few shapes, as in serving.
_MOST = 8


class _Graph:
    """One recorded call."""

    def __init__(self, forward: Callable[..., Any], tensors: list[Tensor], kinds: str) -> None:
        self._inputs = [tensor.clone() for tensor in tensors]
        # What a library sets up in a thread that uses it first cannot be set up while recording.
        forward(*_arguments(self._inputs, kinds))
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may go on using the GPU.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            output, final = forward(*_arguments(self._inputs, kinds))
            values = [output, *final] if isinstance(final, tuple) else [output, final]
            self._results, self._kinds = flatten(values)
        self._has_pair = isinstance(final, tuple)

    def __call__(self, tensors: list[Tensor]) -> Any:
        for static, tensor in zip(self._inputs, tensors, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        results = [torch.empty_like(result) for result in self._results]
        torch._foreach_copy_(results, self._results)
        output, *final = unflatten(results, self._kinds)
        return output, tuple(final) if self._has_pair else final[0]


class _Calls:
    """Those of one kind: shapes, dtypes and settings."""

    def __init__(self) -> None:
        self.count = 0
        self.weights: Snapshot | None = None
        self.graph: _Graph | None = None


class _Replays:
    """Of one layer within one block."""

    def __init__(self) -> None:
        # Copying in, launching and copying out are one: contexts, and so blocks, can be handed to
        # other threads.
        self.lock = threading.Lock()
        self.calls: OrderedDict[Any, _Calls] = OrderedDict()


def replayed(layer: Layer, forward: Callable[..., Any], input: Any, hx: Any) -> Any:
    """What `forward(input, hx)` gives, by a CUDA graph where the call is one of many alike.

    Args:
        forward: the layer's own, which has no side effects and draws no random numbers
    """
    if torch.compiler.is_compiling():
        return forward(input, hx)
    frozen = frozen_of(layer)
    if frozen is None or not _is_possible(layer, frozen, input, hx):
        return forward(input, hx)
    states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
    tensors, kinds = flatten((input, *states))
    device = tensors[0].device
    key = (
        kinds,
        *((tensor.shape, tensor.dtype) for tensor in tensors),
        torch.cuda.current_stream(device).cuda_stream,
        torch.is_inference_mode_enabled(),
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
        torch.backends.cuda.matmul.fp32_precision,
    )
    replays = frozen.cache.setdefault("replays", _Replays())
    with replays.lock:
        calls = replays.calls.get(key)
        if calls is None:
            calls = replays.calls[key] = _Calls()
            if len(replays.calls) > _MOST:
                replays.calls.popitem(last=False)
        replays.calls.move_to_end(key)
        sources = layer.weight_sources()
        if calls.weights is None or not calls.weights.is_current(sources):
            calls.weights, calls.count, calls.graph = Snapshot(sources), 0, None
        calls.count += 1
        if calls.graph is None and calls.count == _CALLS_BEFORE + 1:
            calls.graph = _record(layer, forward, tensors, kinds)
        if calls.graph is not None:
            return calls.graph(tensors)
    return forward(input, hx)


def _record(
    layer: Layer, forward: Callable[..., Any], tensors: list[Tensor], kinds: str
) -> _Graph | None:
    # What the graph reads is cached by the block, as the graph is.
    with layer.capturing_by_block():
        try:
            return _Graph(forward, tensors, kinds)
        except RuntimeError as error:
            warnings.warn(
                f"a frozen {type(layer).__name__} could not be recorded as a CUDA graph and "
                f"launches its kernels one by one: {error}",
                RuntimeWarning,
                stacklevel=5,
            )
            return None


def _is_possible(layer: Layer, frozen: Frozen, input: Any, hx: Any) -> bool:
    if frozen.learns or torch.is_grad_enabled() or weight_mode(layer) or is_intercepted(layer):
        return False
    values = (input, *(hx if isinstance(hx, tuple) else (hx,)))
    if not all(value is None or isinstance(value, (Tensor, Moments)) for value in values):
        return False  # packed, or to be refused
    device = layer._like.device
    return (
        device.type == "cuda"
        and device.index == torch.cuda.current_device()
        and not is_transformed(*values)
        and all(value is None or value.device == device for value in values)
        and not values_are_checked(layer._like)
        and not torch.cuda.is_current_stream_capturing()
    )


def _arguments(tensors: list[Tensor], kinds: str) -> tuple[Any, Any]:
    input, *states = unflatten(tensors, kinds)
    return input, None if not states else states[0] if len(states) == 1 else tuple(states)
