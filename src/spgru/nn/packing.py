"""Packed sequences: rows of all steps, sequences sorted by falling length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments import Moments

__all__ = ["Packing", "unpack"]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a packed batch was laid out, to restore the layout afterwards."""

    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None

    @staticmethod
    def open(packed: PackedSequence) -> tuple[Tensor, Packing]:
        """The rows (N, I) of all steps, sequences sorted by falling length, and the layout."""
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        return data, Packing(batch_sizes, sorted_indices, unsorted_indices)

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return int(self.batch_sizes[0])

    def close(self, rows: Tensor) -> PackedSequence:
        return PackedSequence(rows, self.batch_sizes, self.sorted_indices, self.unsorted_indices)

    def in_order(self, sequence: Any) -> Any:
        """(T, B, H) padded with certain zeros, sequences in the order they were packed from."""
        if isinstance(sequence, Moments):
            return Moments(self.in_order(sequence.mean), self.in_order(sequence.var))
        exists = torch.arange(self.batch) < self.batch_sizes[:, None]
        mask = exists.unsqueeze(-1).to(sequence.device)
        return self.unsort(torch.where(mask, sequence, 0.0))

    def sort(self, value: Any) -> Any:
        """(first, B, ...) sorted by length"""
        return value if self.sorted_indices is None else value[:, self.sorted_indices]

    def unsort(self, value: Any) -> Any:
        """(first, B, ...) in the order they were packed from"""
        return value if self.unsorted_indices is None else value[:, self.unsorted_indices]


def unpack(x: Any) -> tuple[Any, Packing | None]:
    """The rows of a packed input and its layout, or the input itself and None."""
    if isinstance(x, PackedSequence):
        return Packing.open(x)
    if isinstance(x, Moments) and isinstance(x.mean, PackedSequence):
        if not isinstance(x.var, PackedSequence) or not _same_packing(x.mean, x.var):
            raise ValueError(
                "input.mean is packed but input.var is not packed alike; "
                "use spgru.pack_padded_moments"
            )
        mean, packing = Packing.open(x.mean)
        var, _ = Packing.open(x.var)
        return Moments(mean, var), packing
    return x, None


def _same_packing(a: PackedSequence, b: PackedSequence) -> bool:
    if a.batch_sizes.tolist() != b.batch_sizes.tolist():
        return False
    if a.sorted_indices is None or b.sorted_indices is None:
        return a.sorted_indices is b.sorted_indices
    return a.sorted_indices is b.sorted_indices or torch.equal(a.sorted_indices, b.sorted_indices)
