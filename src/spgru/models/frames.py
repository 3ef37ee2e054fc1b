"""Frames: their layout, their halves, and their patches."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from spgru.checks import check_moments
from spgru.moments import Moments

__all__ = ["check_frames", "flatten", "from_patches", "split_halves", "to_patches"]


def check_frames(name: str, frames: object, height: int, width: int) -> None:
    """(T, B, height, width), Tensor or Moments."""
    if not isinstance(frames, Tensor | Moments):
        raise TypeError(f"{name} must be a Tensor or Moments, got {type(frames).__name__}")
    if isinstance(frames, Moments):
        check_moments(name, frames)
    if frames.ndim != 4 or frames.shape[2:] != (height, width):
        raise ValueError(
            f"{name} has shape {tuple(frames.shape)} but the model was built for frames of "
            f"{height} x {width}; pass (T, B, {height}, {width})"
        )
    if 0 in frames.shape[:2]:
        raise ValueError(f"{name} has shape {tuple(frames.shape)}; pass at least one frame")
    if not frames.dtype.is_floating_point:
        raise ValueError(f"{name} has dtype {frames.dtype}; divide uint8 frames by 255")


def split_halves(frames: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(2 T, B, height, width) -> input and target of a predictor, (T, B, height, width) each."""
    if not isinstance(frames, Tensor):
        raise TypeError(f"frames must be a Tensor, got {type(frames).__name__}; targets are known")
    check_frames("frames", frames, height, width)
    if len(frames) % 2:
        raise ValueError(
            f"frames has {len(frames)} frames; pass an even number, the first half is the input"
        )
    seen, future = frames.chunk(2)
    return seen, future


def flatten(frames: Tensor | Moments) -> Tensor | Moments:
    """(*batch, height, width) -> (*batch, height * width)"""
    *batch, height, width = frames.shape
    return frames.reshape(*batch, height * width)


def to_patches(frames: Tensor | Moments, size: int) -> Tensor | Moments:
    """(*batch, height, width) -> (*batch, size^2, height / size, width / size)

    Every patch of size x size pixels becomes one position with size^2 channels.
    """
    if isinstance(frames, Moments):
        return Moments(*(_to_patches(part, size) for part in frames))
    return _to_patches(frames, size)


def from_patches(patches: Moments, size: int) -> Moments:
    """Inverse of `to_patches`."""
    return Moments(*(F.pixel_shuffle(part, size).squeeze(-3) for part in patches))


def _to_patches(frames: Tensor, size: int) -> Tensor:
    return F.pixel_unshuffle(frames.unsqueeze(-3), size)
