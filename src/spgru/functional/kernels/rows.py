"""Tensors as kernels read them."""

from __future__ import annotations

from torch import Tensor

__all__ = ["as_rows"]


def as_rows(x: Tensor) -> Tensor:
    """One number after the other, signs resolved."""
    return x.resolve_neg().contiguous()
