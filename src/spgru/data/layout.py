"""Which digits a sequence shows and where: everything about it except the pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from spgru.data.arguments import check_choice, check_count, check_number
from spgru.data.mnist import Split
from spgru.data.randomness import digit_indices, uniforms
from spgru.data.trajectories import (
    OFFICIAL_FRAMES,
    OFFICIAL_SPEED,
    Boundary,
    bouncing_corners,
    direction,
    leaving_corners,
)

__all__ = ["Layout", "Protocol", "draw_layout"]


class Layout(NamedTuple):
    """Digits and places of a run of sequences."""

    digits: NDArray[np.int64]
    """(B, digits) indices into the split's images"""
    corners: NDArray[np.int64]
    """(T, B, digits, 2) top-left pixel (y, x) of each digit; negative or large where clipped"""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How sequences are made. The defaults are the official Moving MNIST protocol."""

    digits: int = 2
    """Digits in a sequence."""
    frames: int = OFFICIAL_FRAMES
    start: tuple[float, float] | None = None
    """Fixed position (y, x) one step before the first frame, as a fraction of the 36 pixels by
    which a digit can move within the canvas; None draws each coordinate from [0, 1)."""
    angle: float | None = None
    """Fixed direction in degrees, 0 to the right, 90 downwards; None draws it evenly."""
    speed: float = OFFICIAL_SPEED
    """Distance per frame as a fraction of those 36 pixels."""
    noise: float = 0.0
    """b: every pixel gets Unif(0, b) added, and the sum is clipped to 1."""
    boundary: Boundary = "bounce"
    """`"bounce"`: clamped at the edge and turned back. `"leave"`: straight on, clipped there."""

    def __post_init__(self) -> None:
        check_count("digits", self.digits, 1)
        check_count("frames", self.frames, 1)
        check_choice("boundary", self.boundary, get_args(Boundary))
        check_number("speed", self.speed, low=0, unit=" (fraction of 36 pixels per frame)")
        check_number("noise", self.noise, low=0, high=1)
        if self.angle is not None:
            check_number("angle", self.angle, unit=" (degrees), or None to draw it")
        if self.start is not None:
            self._check_start()

    def _check_start(self) -> None:
        pair = self.start
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"start is {pair!r}; pass a pair (y, x), or None to draw it")
        within = (0.0, 1.0) if self.boundary == "bounce" else (-math.inf, math.inf)
        unit = ' (or boundary="leave")' if self.boundary == "bounce" else ""
        for name, value in zip(("start[0]", "start[1]"), pair, strict=True):
            check_number(name, value, *within, unit=unit)


def draw_layout(
    protocol: Protocol, seed: int, split: Split, size: int, first: int, count: int
) -> Layout:
    """Layout of the sequences `first` to `first + count` of a seed.

    Each sequence is a function of (protocol, seed, split, its number) alone. A fixed start or
    angle replaces the drawn one and leaves all other draws as they were.

    Args:
        size: number of digits in the split.
    """
    n = protocol.digits
    digits = digit_indices(seed, split, size, first * n, count * n).reshape(count, n)
    drawn = uniforms(seed, split, first * n * 3, count * n * 3).reshape(count, n, 3)
    start = drawn[..., :2]
    if protocol.start is not None:
        start = np.broadcast_to(np.array(protocol.start, dtype=np.float64), start.shape)
    if protocol.angle is None:
        theta = 2 * np.pi * drawn[..., 2]
        heading = np.stack((np.sin(theta), np.cos(theta)), axis=-1)
    else:
        heading = np.broadcast_to(np.array(direction(protocol.angle)), start.shape)
    move = bouncing_corners if protocol.boundary == "bounce" else leaving_corners
    corners = move(start, protocol.speed * heading, protocol.frames)
    return Layout(digits, corners)
