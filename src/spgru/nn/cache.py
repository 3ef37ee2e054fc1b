"""Maps made of weights, cached within a block of `spgru.frozen`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.checks import is_differentiated_forward
from spgru.functional import Affine
from spgru.modes import Frozen

__all__ = ["Snapshot", "look_up", "may_cache"]


def may_cache() -> bool:
    """Whether tensors made now outlive the call: not in a compiler's trace or a transform."""
    return not (torch.compiler.is_compiling() or is_differentiated_forward())


def look_up(
    frozen: Frozen,
    key: Any,
    sources: list[Tensor],
    make: Callable[[], Affine],
    captured: list[Affine],
) -> Affine:
    """The map cached under `key`, or a new one if there is none or its sources have changed.

    Args:
        sources: the tensors that the map is made from
        captured: grows by the maps that CUDA graphs read; to be stored with the layer
    """
    entry: _Entry | None = frozen.cache.get(key)
    if entry is not None and not entry.sources.is_current(sources):
        entry = None
    if not frozen.learns and _is_captured(sources[0]):
        # Nothing is computed before the graph runs: what is made here must not be cached.
        if entry is None:
            return make()
        # The graph knows addresses only: what it reads has to live as long as the layer.
        if not any(affine is entry.affine for affine in captured):
            captured.append(entry.affine)
        return entry.affine.copy()
    if entry is None:
        entry = frozen.cache[key] = _Entry(_make(make, frozen), Snapshot(sources))
    return entry.affine


class Snapshot:
    """Tensors as they were at some time."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._versions: list[tuple[int, int]] = []
        if all(type(t) in (Tensor, nn.Parameter) and not t.is_inference() for t in tensors):
            self._versions = [(tensor._version, tensor.data_ptr()) for tensor in tensors]

    def is_current(self, tensors: list[Tensor]) -> bool:
        """Whether nothing has changed that torch counts, nor been replaced, cast or moved."""
        if len(tensors) != len(self._tensors):
            return False  # gains have come or gone
        for new, old in zip(tensors, self._tensors, strict=True):
            if new is not old:
                return False
        # Tensors of other kinds have no versions.
        return not self._versions or self._versions == [
            (tensor._version, tensor.data_ptr()) for tensor in tensors
        ]


class _Entry(NamedTuple):
    """A map, and the tensors it was made from as they were then."""

    affine: Affine
    sources: Snapshot


def _is_captured(tensor: Tensor) -> bool:
    """Whether work on it goes into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _make(make: Callable[[], Affine], frozen: Frozen) -> Affine:
    if frozen.learns:
        return make()
    # Outside inference mode, so that it may take part in a backward pass to the input later; and
    # copied, so that a change through .data, which torch does not count, leaves it whole.
    with torch.inference_mode(False), torch.no_grad():
        return make().frozen()
