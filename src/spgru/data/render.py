"""From digits and places to frames, for a whole batch at once and on any device.

Frames are the same on every device to the last bit: whole-number arithmetic, and floating
operations that IEEE 754 rounds one way only.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.data.layout import Layout
from spgru.data.mnist import DIGIT
from spgru.data.trajectories import CANVAS

__all__ = ["add_noise", "render", "to_device", "unit_interval"]


def to_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy to the device without making the host wait for it."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def render(images: Tensor, layout: Layout) -> Tensor:
    """Frames of a batch: each pixel is the largest of the digits' values there.

    Args:
        images: (N, 28, 28) uint8, on the device that shall render.

    Returns:
        (T, B, 64, 64) uint8.
    """
    top, left = layout.corners[..., 0], layout.corners[..., 1]
    # One transfer for all three.
    packed = to_device(
        np.concatenate((layout.digits.ravel(), top.ravel(), left.ravel())), images.device
    )
    chosen, tops, lefts = torch.split(packed, [layout.digits.size, top.size, left.size])
    chosen, tops, lefts = (
        chosen.view(layout.digits.shape),
        tops.view(top.shape),
        lefts.view(top.shape),
    )
    if images.is_cuda and _has_triton():
        from spgru.data.kernels import paste

        return paste(images.contiguous(), chosen, tops, lefts, CANVAS)
    return _look_up(images, chosen, tops, lefts)


def _look_up(images: Tensor, chosen: Tensor, tops: Tensor, lefts: Tensor) -> Tensor:
    """`spgru.data.kernels.paste` by torch alone.

    A frame's row is a window of 64 into a digit's row with blank margins, so a frame is 64
    look-ups of one window each: the row (or a blank one) by the digit's height, the window by its
    horizontal place.
    """
    frames, batch, digits = tops.shape
    width = CANVAS + DIGIT + CANVAS
    # Row 0 of a padded digit is blank, column 64 its first own one.
    padded = images.new_zeros(batch * digits, DIGIT + 2, width)
    padded[:, 1:-1, CANVAS : CANVAS + DIGIT] = images[chosen.ravel()]
    windows = padded.unfold(2, CANVAS, 1)  # (B * digits, 30, 93, 64), a view

    canvas_row = torch.arange(CANVAS, device=images.device)
    row = (1 - tops[..., None] + canvas_row).clamp_(0, DIGIT + 1)
    window = (CANVAS - lefts).view(frames, batch, digits, 1)
    which = torch.arange(batch * digits, device=images.device).view(batch, digits, 1)
    layers = [windows[which[:, d], row[:, :, d], window[:, :, d]] for d in range(digits)]
    result = layers[0]
    for layer in layers[1:]:
        torch.maximum(result, layer, out=result)
    return result


def unit_interval(frames: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 frames divided by 255, in the precision noise is added in: float64 or float32."""
    precision = torch.float64 if dtype == torch.float64 else torch.float32
    # By a tensor: CUDA turns division by a Python number into multiplication by its reciprocal,
    # which rounds differently.
    return frames / torch.full((), 255, dtype=precision, device=frames.device)


def _odd(fraction: float) -> int:
    """The odd number next to that fraction of 2^32, as a signed 32-bit integer."""
    number = int(fraction % 1 * 2**32) | 1
    return number - 2**32 if number >= 2**31 else number


_COUNTER_STEP = _odd((math.sqrt(5) - 1) / 2)
_MULTIPLIERS = _odd(math.sqrt(2)), _odd(math.sqrt(3))


def add_noise(frames: Tensor, keys: NDArray[np.int32], amplitude: float) -> Tensor:
    """Add Unif(0, amplitude) to every pixel in place and clip the result to 1.

    The noise of a pixel is a hash of its sequence's key and its number within the sequence, in
    wrapping 32-bit arithmetic, hence the same for every device, thread count and batch size. The
    counter is spread by multiples of the golden ratio, then mixed by two rounds of shift and
    multiplication with one half of the key before each; 24 bits are kept.

    Args:
        frames: (T, B, 64, 64), float32 or float64.
        keys: (B, 2)
    """
    count, batch = frames.shape[:2]
    key = to_device(keys.astype(np.int64), frames.device).to(torch.int32)
    counter = torch.arange(count * CANVAS**2, dtype=torch.int32, device=frames.device)
    counter = counter.mul_(_COUNTER_STEP).view(count, 1, CANVAS, CANVAS)
    bits = counter + key[:, 0].view(batch, 1, 1)
    bits ^= bits >> 16
    bits *= _MULTIPLIERS[0]
    bits += key[:, 1].view(batch, 1, 1)
    bits ^= bits >> 15
    bits *= _MULTIPLIERS[1]
    bits >>= 8  # fills with the sign bit, so that 24 bits remain: -2^23 to 2^23 - 1
    bits += 2**23
    # Multiplied, then added: a fused operation would round once on some devices, twice on others.
    noise = bits.to(frames.dtype).mul_(amplitude * 2.0**-24)
    return frames.add_(noise).clamp_(max=1)
