"""Rendering for GPUs: every pixel looked up in its digits and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["paste"]

_BLOCK = 1024


@triton.jit
def _paste(
    images, chosen, tops, lefts, frames, batch,
    digits: tl.constexpr, size: tl.constexpr, canvas: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    y, x = pixel // canvas, pixel % canvas
    value = tl.zeros((block,), tl.uint8)
    for d in tl.static_range(digits):
        digit = tl.load(chosen + frame % batch * digits + d)
        row = y - tl.load(tops + frame * digits + d)
        column = x - tl.load(lefts + frame * digits + d)
        inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
        place = (digit * size + row) * size + column
        value = tl.maximum(value, tl.load(images + place, inside, 0))
    tl.store(frames + frame * canvas * canvas + pixel, value)


def paste(images: Tensor, chosen: Tensor, tops: Tensor, lefts: Tensor, canvas: int) -> Tensor:
    """Frames whose pixels are the largest of the digits' values there.

    Args:
        images: (N, size, size) uint8
        chosen: (B, digits), which of them
        tops: (T, B, digits), their first rows
        lefts: (T, B, digits), their first columns

    Returns:
        (T, B, canvas, canvas) uint8
    """
    count, batch, digits = tops.shape
    frames = images.new_empty(count, batch, canvas, canvas)
    with torch.cuda.device_of(images):
        _paste[(count * batch, canvas**2 // _BLOCK)](
            images, chosen, tops, lefts, frames, batch,
            digits, images.shape[-1], canvas, _BLOCK,
        )  # fmt: skip
    return frames
