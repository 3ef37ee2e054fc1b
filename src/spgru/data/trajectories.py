"""Where each digit is in each frame, in float64 on the CPU so that it is the same everywhere.

A position is the place (y, x) of a digit's top-left corner as a fraction of the 36 pixels by which
it can move without leaving the canvas: 0 touches the top or left edge, 1 the bottom or right edge.
A speed is a distance per frame in the same unit, as in the official generator, which calls those 36
pixels its canvas. Angles follow it too, velocity = (sin, cos): 0 degrees moves right, 90 down.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from spgru.data.mnist import DIGIT

__all__ = [
    "CANVAS",
    "OFFICIAL_FRAMES",
    "OFFICIAL_SPEED",
    "SLACK",
    "Boundary",
    "bouncing_corners",
    "controlled_start",
    "direction",
    "leaving_corners",
]

Boundary = Literal["bounce", "leave"]

CANVAS = 64
"""Height and width of a frame in pixels."""
SLACK = CANVAS - DIGIT
"""Pixels by which a digit can move without leaving the canvas."""
OFFICIAL_FRAMES = 20
OFFICIAL_SPEED = 0.1

CONTROLLED_ANGLE = 20.0
CONTROLLED_SPEED = 0.05
# Pixels (y, x) of the corner in the first frame of every controlled path. Digits have some four
# blank pixels on each side, so this far left even the fastest path of the study, 20 frames at
# 6.5 %, shows the whole digit to the end.
_CONTROLLED_CORNER = 7.0, -3.0


def direction(angle: float) -> tuple[float, float]:
    """Unit vector (y, x) of an angle in degrees.

    Rounded to 15 decimals, so that multiples of 90 degrees move along one axis exactly.
    """
    radians = math.radians(angle)
    return round(math.sin(radians), 15), round(math.cos(radians), 15)


def bouncing_corners(
    start: NDArray[np.float64], velocity: NDArray[np.float64], frames: int
) -> NDArray[np.int64]:
    """Top-left pixels by the official protocol.

    One step before every frame, the first included. At an edge the position is clamped, not
    reflected, and that component of the velocity changes sign. Pixels are truncated.

    Args:
        start: (*batch, 2) positions in [0, 1] before the first step.
        velocity: (*batch, 2) distance per frame.

    Returns:
        (frames, *batch, 2) pixels (y, x), each from 0 to 36.
    """
    position, velocity = start.copy(), velocity.copy()
    path = np.empty((frames, *start.shape))
    for frame in range(frames):
        position += velocity
        hit = (position <= 0) | (position >= 1)
        np.minimum(position, 1, out=position)
        np.maximum(position, 0, out=position)
        np.negative(velocity, out=velocity, where=hit)
        path[frame] = position
    path *= SLACK
    return path.astype(np.int64)


def leaving_corners(
    start: NDArray[np.float64], velocity: NDArray[np.float64], frames: int
) -> NDArray[np.int64]:
    """Top-left pixels on a straight line that may leave the canvas.

    One step before every frame, as in `bouncing_corners`, whose truncation goes on below zero as
    rounding down. A digit wholly outside stays just outside: no pixel of it shows either way.

    Args:
        start: (*batch, 2) positions before the first step.
        velocity: (*batch, 2) distance per frame.

    Returns:
        (frames, *batch, 2) pixels (y, x), each from -28 to 64.
    """
    steps = np.arange(1, frames + 1, dtype=np.float64).reshape(-1, *[1] * start.ndim)
    # A billionth of a pixel keeps rounding errors from moving whole-pixel positions down by one.
    pixels = np.floor(SLACK * (start + steps * velocity) + 1e-9)
    return np.clip(pixels, -DIGIT, CANVAS).astype(np.int64)


def controlled_start(angle: float, speed: float) -> tuple[float, float]:
    """Start (one step before the first frame) of a path of the controlled study.

    Every angle and speed has its first frame at the same place.
    """
    y, x = direction(angle)
    first_y, first_x = (pixels / SLACK for pixels in _CONTROLLED_CORNER)
    return first_y - speed * y, first_x - speed * x
