"""Packed sequences of `Moments`: both fields are a `PackedSequence`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from spgru.moments.pair import Moments

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
    packed: Moments, batch_first: bool = False, padding_value: float = 0.0
) -> tuple[Moments, Tensor]:
    """Inverse of `pack_padded_moments`: padded moments (padding has variance 0) and lengths."""
    if not isinstance(packed.mean, PackedSequence):
        raise TypeError(
            f"packed.mean must be a PackedSequence, got {type(packed.mean).__name__}; "
            "only the output for a packed input is packed"
        )
    mean, lengths = pad_packed_sequence(packed.mean, batch_first, padding_value)
    var, _ = pad_packed_sequence(packed.var, batch_first)
    return Moments(mean, var), lengths
