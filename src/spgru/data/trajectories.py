"""Where each digit is in each frame, in float64 on the CPU so that it is the same everywhere.

A position is the place (y, x) of a digit's top-left corner as a fraction of the 36 pixels by which
it can move without leaving the canvas: 0 touches the top or left edge, 1 the bottom or right edge.
Angles follow the official protocol, velocity = (sin, cos): 0 degrees moves right, 90 down.
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
    "OFFICIAL_STEP",
    "SLACK",
    "Boundary",
    "bouncing_corners",
    "controlled_start",
    "direction",
    "leaving_corners",
    "step_length",
]

Boundary = Literal["bounce", "leave"]

CANVAS = 64
"""Height and width of a frame in pixels."""
SLACK = CANVAS - DIGIT
"""Pixels by which a digit can move without leaving the canvas."""
OFFICIAL_FRAMES = 20
OFFICIAL_STEP = 0.1
"""Distance per frame in the official protocol, as a fraction of `SLACK`."""
OFFICIAL_SPEED = OFFICIAL_STEP * SLACK / CANVAS
"""The same distance as a fraction of the canvas: 0.05625."""

CONTROLLED_ANGLE = 20.0
CONTROLLED_SPEED = 0.05


def step_length(speed: float) -> float:
    """Distance per frame as a fraction of `SLACK`, for a speed as a fraction of the canvas."""
    return speed * CANVAS / SLACK


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
    """Top-left pixels on a straight line that does not heed the canvas.

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

    The training path (20 degrees, 5 % of the canvas per frame, 20 frames) is centred: half-way
    between its first and last frame the digit is in the middle of the canvas. Every other angle
    and speed has its first frame where the training path has its first frame.
    """
    training_y, training_x = direction(CONTROLLED_ANGLE)
    half = step_length(CONTROLLED_SPEED) * (OFFICIAL_FRAMES - 1) / 2
    y, x = direction(angle)
    step = step_length(speed)
    return 0.5 - half * training_y - step * y, 0.5 - half * training_x - step * x
