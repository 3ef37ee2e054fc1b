"""An uploaded sequence: a .npy file, never unpickled, checked before memory is asked for."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgru.serve.errors import RefusedError
from spgru.serve.limits import FRAMES, HALF, SIZE

__all__ = ["WANTED", "Sequence", "read_sequence"]

WANTED = (
    f"save uint8, or floats in [0, 1], as (frames, {SIZE}, {SIZE}) or "
    f"(frames, sequences, {SIZE}, {SIZE}) by numpy.save, with {HALF} frames, or {FRAMES} if the "
    "future is known"
)
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_HEADER = 10_000
"""Longest header that is read; an array of numbers has some hundred bytes."""


@dataclass(frozen=True)
class Sequence:
    """One sequence of a file."""

    seen: Tensor
    """(HALF, 64, 64) in [0, 1]"""
    after: Tensor | None
    """the frames after it, where the file has them"""
    count: int
    """sequences in the file"""


def read_sequence(data: bytes, which: int) -> Sequence:
    """Sequence number `which`, from 0, of the bytes of a .npy file."""
    array = _read_array(data)
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4 or array.shape[2:] != (SIZE, SIZE) or 0 in array.shape:
        raise RefusedError(f"the array has shape {tuple(array.shape)}; {WANTED}")
    frames, count = array.shape[:2]
    if frames < HALF:
        raise RefusedError(
            f"the sequence has {frames} frames, and the network reads {HALF}; {WANTED}"
        )
    if not 0 <= which < count:
        raise RefusedError(f"sequence {which} is not there: the file has 0 to {count - 1}")
    chosen = _unit(array[:FRAMES, which])
    after = chosen[HALF:] if frames >= FRAMES else None
    return Sequence(chosen[:HALF], after, count)


def _read_array(data: bytes) -> np.ndarray:
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        shape, in_columns, dtype = _READERS[version](file, max_header_size=_HEADER)
    except Exception as error:  # a header is parsed as Python's literals, which fail in many ways
        raise RefusedError(f"this is not a .npy file of numbers; {WANTED}") from error
    if dtype.hasobject or dtype.kind not in "uf" or (dtype.kind == "u" and dtype.itemsize != 1):
        raise RefusedError(f"the array has dtype {dtype}; {WANTED}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise RefusedError(f"the header announces the shape {shape}; {WANTED}")
    rest = data[file.tell() :]
    announced = math.prod(shape) * dtype.itemsize
    if announced != len(rest):
        raise RefusedError(
            f"the header announces {announced} bytes of numbers, and {len(rest)} follow; the file "
            "is damaged, save it again"
        )
    found = np.frombuffer(rest, dtype)
    return found.reshape(shape, order="F" if in_columns else "C")


def _unit(array: np.ndarray) -> Tensor:
    """(frames, 64, 64) in [0, 1]"""
    if array.dtype == np.uint8:
        return torch.from_numpy(array.astype(np.float32)) / 255
    # Written so that NaN, which fails every comparison, is refused.
    if not (array.min() >= 0 and array.max() <= 1):
        raise RefusedError(
            f"pixels reach from {array.min():.4g} to {array.max():.4g}; they must lie between 0 "
            "and 1, without NaN (divide by 255, or save uint8)"
        )
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))
