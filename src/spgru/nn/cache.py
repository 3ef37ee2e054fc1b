"""Maps made of weights, cached within a block of `spgru.frozen`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spgru.checks import is_differentiated_forward
from spgru.functional import Affine
from spgru.modes import Frozen

__all__ = ["look_up", "may_cache"]


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
    if entry is not None and not entry.is_current(sources):
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
        entry = frozen.cache[key] = _Entry(_make(make, frozen), sources)
    return entry.affine


class _Entry:
    """A map, and the tensors it was made from as they were then."""

    def __init__(self, affine: Affine, sources: list[Tensor]) -> None:
        self.affine, self.sources = affine, sources
        self.versions: list[tuple[int, int]] = []
        if all(type(s) in (Tensor, nn.Parameter) and not s.is_inference() for s in sources):
            self.versions = [(source._version, source.data_ptr()) for source in sources]

    def is_current(self, sources: list[Tensor]) -> bool:
        """Whether nothing has changed that torch counts, nor been replaced, cast or moved."""
        for new, old in zip(sources, self.sources, strict=True):
            if new is not old:
                return False
        # Tensors of other kinds have no versions.
        return not self.versions or self.versions == [(s._version, s.data_ptr()) for s in sources]


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
