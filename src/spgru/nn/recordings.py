"""What calls recorded as CUDA graphs have in common: which calls are alike, and when to record.

Launching the kernels of a small layer one by one takes the host several times longer than the GPU
needs for them; a graph launches them as a whole. Only calls that repeat are recorded. Inputs are
copied to where the graph reads them and results from where it writes them, so results belong to
the caller.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from spgru.checks import is_transformed, values_are_checked
from spgru.modes import is_intercepted, weight_mode
from spgru.moments import Moments
from spgru.nn.layer import Layer
from spgru.recurrent.operator import flatten, unflatten

__all__ = [
    "Call",
    "Recordings",
    "Signature",
    "arguments",
    "copies",
    "describe",
    "describe_module",
    "set_cuda_graphs",
]

_enabled = True


def set_cuda_graphs(enabled: bool) -> None:
    """Choose whether layers on a GPU record calls that repeat as CUDA graphs (the default).

    A graph has memory of its own for what its call computes, for as long as the layer lives or the
    block of `spgru.frozen` lasts. Graphs that exist are not used while this is off.
    """
    global _enabled
    _enabled = bool(enabled)


class Call(NamedTuple):
    """The tensors passed to a layer, and what distinguishes one recorded call from another."""

    tensors: list[Tensor]
    kinds: str
    key: tuple[Any, ...]


def describe(layer: Layer, input: Any, hx: Any) -> Call | None:
    """The call `layer(input, hx)`, or None if it has to go through the layer's own code."""
    if not _enabled or weight_mode(layer) or is_intercepted(layer):
        return None
    return _describe_values(layer._like, (input, *(hx if isinstance(hx, tuple) else (hx,))))


def describe_module(module: nn.Module, layers: list[Layer], input: Any, key: Any) -> Call | None:
    """A call of a module that runs these layers, or None if it has to go through its own code.

    Args:
        key: what else the answer depends on
    """
    device = layers[0]._like.device
    if not _enabled or device.type != "cuda" or module_hooks._global_forward_hooks:
        return None
    for child in module.modules():
        # A hook wants to see every call of its module.
        if child._forward_hooks or child._forward_pre_hooks or is_intercepted(child):
            return None
    if any(weight_mode(layer) or layer._like.device != device for layer in layers):
        return None
    call = _describe_values(layers[0]._like, (input,))
    return None if call is None else call._replace(key=(key, *call.key))


def _describe_values(like: Tensor, values: tuple[Any, ...]) -> Call | None:
    """A call with these values of weights like this one, None if it cannot be recorded."""
    if not all(value is None or _is_laid_out(value) for value in values):
        return None  # packed, or to be refused
    device = like.device
    if not (
        device.type == "cuda"
        and device.index == torch.cuda.current_device()
        and not is_transformed(*values)
        and all(value is None or value.device == device for value in values)
        and not values_are_checked(like)
        and not torch.cuda.is_current_stream_capturing()
    ):
        return None
    tensors, kinds = flatten([value for value in values if value is not None])
    key = (
        kinds,
        *((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in tensors),
        torch.cuda.current_stream(device).cuda_stream,
        torch.is_inference_mode_enabled(),
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
        torch.backends.cuda.matmul.fp32_precision,
    )
    return Call(tensors, kinds, key)


def _is_laid_out(value: Any) -> bool:
    """Whether it is a Tensor, or Moments of tensors."""
    return isinstance(value.mean if isinstance(value, Moments) else value, Tensor)


def arguments(tensors: list[Tensor], kinds: str) -> tuple[Any, Any]:
    """`input` and `hx` of a call."""
    input, *states = unflatten(tensors, kinds)
    return input, None if not states else states[0] if len(states) == 1 else tuple(states)


class Signature(NamedTuple):
    """How the results of a layer are made of tensors."""

    kinds: str
    has_pair: bool
    """whether the final state is a pair"""

    @classmethod
    def of(cls, result: tuple[Moments, Any]) -> tuple[list[Tensor], Signature]:
        """The tensors of a result, and their signature."""
        output, final = result
        tensors, kinds = flatten([output, *final] if isinstance(final, tuple) else [output, final])
        return tensors, cls(kinds, isinstance(final, tuple))

    def result(self, tensors: list[Tensor]) -> tuple[Moments, Any]:
        output, *final = unflatten(tensors, self.kinds)
        return output, tuple(final) if self.has_pair else final[0]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """For the caller, by one launch."""
    found = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(found, tensors)
    return found


Graph = TypeVar("Graph")


class Weights(Protocol):
    """The weights that a graph was recorded with."""

    def is_current(self, tensors: list[Tensor]) -> bool: ...


class _Alike(Generic[Graph]):
    """Calls with one key."""

    def __init__(self, weights: Weights) -> None:
        self.weights, self.count = weights, 0
        self.graph: Graph | None = None


class Recordings(Generic[Graph]):
    """The graphs of one layer or module.

    Args:
        weights: how to remember weights, to see whether a graph may still be used
        after: calls alike before one is recorded
        most: graphs, each with memory for what its call computes
    """

    def __init__(self, weights: Callable[[list[Tensor]], Weights], after: int, most: int) -> None:
        # Copying in, launching and copying out are one: several threads may call a layer.
        self.lock = threading.Lock()
        self._weights, self._after, self._most = weights, after, most
        self._calls: OrderedDict[Any, _Alike[Graph]] = OrderedDict()

    def __len__(self) -> int:
        return sum(calls.graph is not None for calls in self._calls.values())

    def graph_of(
        self, call: Call, owner: nn.Module, sources: list[Tensor], record: Callable[[], Graph]
    ) -> Graph | None:
        """The graph of calls like this one, recorded now if it is time.

        To be called with the lock held.
        """
        calls = self._calls.get(call.key)
        if calls is None or not calls.weights.is_current(sources):
            calls = self._calls[call.key] = _Alike(self._weights(sources))
            if len(self._calls) > self._most:
                self._calls.popitem(last=False)
        self._calls.move_to_end(call.key)
        calls.count += 1
        if calls.graph is None and calls.count == self._after + 1:
            try:
                calls.graph = record()
            except RuntimeError as error:
                warnings.warn(
                    f"a {type(owner).__name__} could not be recorded as a CUDA graph and launches "
                    f"its kernels one by one: {error}",
                    RuntimeWarning,
                    stacklevel=6,
                )
        return calls.graph
