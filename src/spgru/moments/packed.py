"""Packed sequences of `Moments`: both fields are a `PackedSequence`.

Code written for tensors may call `torch.nn.utils.rnn.pack_padded_sequence` with Moments: it gets a
`PackedSequence` whose data are Moments, which layers take as well. What layers return may go to
`pad_packed_sequence`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from spgru.moments.pair import Moments
from spgru.moments.table import rule_for

__all__ = ["pack_padded_moments", "pad_packed_moments"]


def pack_padded_moments(
    moments: Moments,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Moments:
    """`torch.nn.utils.rnn.pack_padded_sequence` for moments: both fields become packed."""
    packed = [
        pack_padded_sequence(tensor, lengths, batch_first, enforce_sorted)  # type: ignore[arg-type]
        for tensor in moments
    ]
    return Moments(*packed)  # type: ignore[arg-type]


def pad_packed_moments(
    packed: Moments,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Moments, Tensor]:
    """Inverse of `pack_padded_moments`: padded moments (padding has variance 0) and lengths.

    Args:
        packed: as a layer gives them for a packed input
        batch_first: whether to give (B, T, ...) instead of (T, B, ...)
        padding_value: mean of the padding
        total_length: T, at least the length of the longest sequence, which it is by default
    """
    if not isinstance(packed.mean, PackedSequence):
        raise TypeError(
            f"packed.mean must be a PackedSequence, got {type(packed.mean).__name__}; "
            "only the output for a packed input is packed"
        )
    mean, lengths = pad_packed_sequence(packed.mean, batch_first, padding_value, total_length)
    var, _ = pad_packed_sequence(packed.var, batch_first, total_length=total_length)
    return Moments(mean, var), lengths


@rule_for(torch._VF._pack_padded_sequence)
def _pack(x: Moments, lengths: Tensor, batch_first: bool) -> tuple[Moments, Tensor]:
    """What torch's functions above call for the rows."""
    (mean, sizes), (var, _) = (
        torch._VF._pack_padded_sequence(part, lengths, batch_first) for part in x
    )
    return Moments(mean, var), sizes


@rule_for(torch._VF._pad_packed_sequence)
def _pad(
    rows: Moments, sizes: Tensor, batch_first: bool, padding_value: float, length: int
) -> tuple[Moments, Tensor]:
    pad = torch._VF._pad_packed_sequence
    mean, lengths = pad(rows.mean, sizes, batch_first, padding_value, length)
    var, _ = pad(rows.var, sizes, batch_first, 0.0, length)
    return Moments(mean, var), lengths
