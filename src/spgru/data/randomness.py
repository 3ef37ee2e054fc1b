"""Random numbers as pure functions of (seed, split, position): any sequence can be drawn alone.

Only the raw 64-bit output of NumPy's PCG64 is used, whose stream NumPy promises to keep; the
distributions of `numpy.random.Generator` may change between versions and are not used. Nothing is
drawn on a device, so every device sees the same numbers.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray

from spgru.data.mnist import SPLITS, Split

__all__ = ["digit_indices", "noise_keys", "uniforms"]


class _Stream(IntEnum):
    ORDER = 0
    MOTION = 1
    NOISE = 2


def _bits(seed: int, split: Split, stream: _Stream, *index: int) -> PCG64:
    # The split is part of the key: training and test sequences of one seed move differently.
    return PCG64(SeedSequence(seed, spawn_key=(SPLITS.index(split), stream, *index)))


def digit_indices(seed: int, split: Split, size: int, first: int, count: int) -> NDArray[np.int64]:
    """Places `first` to `first + count` of the endless stream of digits, as (count,) indices.

    The stream is one random order of the `size` digits of the split after another, so no digit
    repeats before all have been used.
    """
    pieces = []
    while count > 0:
        epoch, offset = divmod(first, size)
        piece = _order(seed, split, size, epoch)[offset : offset + count]
        pieces.append(piece)
        first, count = first + len(piece), count - len(piece)
    return np.concatenate(pieces)


@lru_cache(maxsize=4)
def _order(seed: int, split: Split, size: int, epoch: int) -> NDArray[np.int64]:
    raw = _bits(seed, split, _Stream.ORDER, epoch).random_raw(size)
    return np.argsort(raw, kind="stable")


def uniforms(seed: int, split: Split, first: int, count: int) -> NDArray[np.float64]:
    """Places `first` to `first + count` of the stream of numbers in [0, 1) that sets motion."""
    raw = _bits(seed, split, _Stream.MOTION).advance(first).random_raw(count)
    # The upper 53 bits, all that a float64 below 1 can hold on an even grid.
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def noise_keys(seed: int, split: Split, first: int, count: int) -> NDArray[np.int32]:
    """64 random bits for each of the sequences `first` to `first + count`, as (count, 2)."""
    raw = _bits(seed, split, _Stream.NOISE).advance(first).random_raw(count)
    return raw.astype("<u8").view("<i4").reshape(count, 2).astype(np.int32)
