"""Weights that are used outside their layer, where they are certain and their variance is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spgru.nn import Layer

__all__ = ["watching_weights"]

_MAKING = ("new", "zeros_like", "ones_like", "empty_like", "full_like", "rand", "copy")
"""How the names of functions begin that take a tensor for its dtype and device alone."""


@contextmanager
def watching_weights(layers: Mapping[str, Layer]) -> Iterator[list[str]]:
    """Block that finds the names of weights from which anything but their layer computes.

    Views of a weight, and questions for its shape, dtype or device, are no use yet.
    """
    watch = _Watch(layers)
    for layer in layers.values():
        # Not by hooks, which a direct call of `forward` passes by.
        layer.forward = watch.inside(layer, layer.forward)
    try:
        with watch:
            yield watch.found
    finally:
        for layer in layers.values():
            del layer.forward


class _Watch(TorchFunctionMode):
    """Sees every call of torch with a tensor."""

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        super().__init__()
        self.found: list[str] = []
        self._running: list[nn.Module] = []
        self._names = {
            _memory(parameter): f"{path}.{name}" if path else name
            for path, layer in layers.items()
            for name, parameter in layer.named_parameters(recurse=False)
            if parameter.numel()
        }

    def inside(self, layer: Layer, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **options: Any) -> Any:
            self._running.append(layer)
            try:
                return forward(*args, **options)
            finally:
                self._running.pop()

        return run

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if self._running or _name(function).startswith(_MAKING):
            return result
        used = {_memory(part) for part in _tensors((args, kwargs))} & self._names.keys()
        made = [part for part in _tensors(result) if part.is_floating_point()]
        if used and any(_memory(part) not in used for part in made):
            new = [self._names[place] for place in used]
            self.found += sorted(name for name in new if name not in self.found)
        return result


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _tensors(value: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(value)  # of Moments, both
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:  # no weight of ours
        return 0
    return tensor.untyped_storage().data_ptr()
