from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from spgru.data.trajectories import (
    bouncing_corners,
    controlled_start,
    direction,
    leaving_corners,
)


def one_by_one(start, velocity, frames):
    """The protocol as it reads, for one coordinate."""
    p, v, pixels = start, velocity, []
    for _ in range(frames):
        p += v
        if p <= 0:
            p, v = 0.0, -v
        elif p >= 1:
            p, v = 1.0, -v
        pixels.append(int(36 * p))
    return pixels


def test_bouncing_follows_the_protocol():
    rng = np.random.Generator(np.random.PCG64(0))
    start = rng.random((50, 3, 2))
    velocity = rng.random((50, 3, 2)) * 0.8 - 0.4
    corners = bouncing_corners(start, velocity, 40)
    for index in np.ndindex(start.shape):
        expected = one_by_one(float(start[index]), float(velocity[index]), 40)
        assert corners[(slice(None), *index)].tolist() == expected


def test_bouncing_clamps_and_does_not_reflect():
    start, velocity = np.array([[0.9, 0.05]]), np.array([[0.25, -0.125]])
    assert bouncing_corners(start, velocity, 3)[:, 0].tolist() == [[36, 0], [27, 4], [18, 9]]


def test_arguments_are_left_alone():
    start, velocity = np.full((1, 2), 0.9), np.full((1, 2), 0.3)
    bouncing_corners(start, velocity, 5)
    leaving_corners(start, velocity, 5)
    assert (start == 0.9).all()
    assert (velocity == 0.3).all()


def test_leaving_is_a_straight_line_rounded_down():
    # 1/8 of a pixel off the grid: no rounding error can matter.
    start = np.array([Fraction(1, 8) / 36, Fraction(-3, 8) / 36], dtype=np.float64)
    velocity = np.array([-2.0 / 36, 7.0 / 36])
    corners = leaving_corners(start, velocity, 20)
    exact_y = [math.floor(Fraction(1, 8) - 2 * (t + 1)) for t in range(20)]
    exact_x = [math.floor(Fraction(-3, 8) + 7 * (t + 1)) for t in range(20)]
    assert corners[:, 0].tolist() == [max(y, -28) for y in exact_y]
    assert corners[:, 1].tolist() == [min(x, 64) for x in exact_x]


@pytest.mark.parametrize("angle", [0, 90, 180, 270, -90, 720])
def test_right_angles_move_along_one_axis_at_exact_pixels(angle):
    """Every fifth step of 1.8 pixels is a whole number; rounding errors must not show there."""
    y, x = {0: (0, 1), 90: (1, 0), 180: (0, -1), 270: (-1, 0)}[angle % 360]
    assert direction(angle) == (y, x)
    start = np.array(controlled_start(angle, 0.05))
    corners = leaving_corners(start, 0.05 * np.array(direction(angle)), 20)
    for t in range(20):
        for axis, (first, part) in enumerate(((7, y), (-3, x))):
            exact = math.floor(first + t * part * Fraction(9, 5))
            assert corners[t, axis] == min(max(exact, -28), 64)
    whole = leaving_corners(np.array([0.5, 0.5 - 12.4 / 36]), np.array([0.0, 3.2 / 36]), 20)
    exact = [18 - Fraction(62, 5) + (t + 1) * Fraction(16, 5) for t in range(20)]
    assert whole[:, 1].tolist() == [min(math.floor(place), 64) for place in exact]
    assert (whole[:, 0] == 18).all()


def path_corners(angle, speed):
    """(20, 2) exact places of the digit's corner in pixels of the canvas."""
    start = np.array(controlled_start(angle, speed))
    return 36 * (start + np.arange(1, 21)[:, None] * speed * np.array(direction(angle)))


@pytest.mark.parametrize(
    ("angle", "speed"),
    [(20, 0.05), (25, 0.05), (30, 0.05), (35, 0.05), (20, 0.055), (20, 0.06), (20, 0.065)],
)
def test_controlled_paths_are_straight_from_one_place(angle, speed):
    corners = path_corners(angle, speed)
    assert corners[0] == pytest.approx([7, -3], abs=1e-12)
    steps = np.diff(corners, axis=0)
    assert np.hypot(steps[:, 0], steps[:, 1]) == pytest.approx(np.full(19, speed * 36), abs=1e-12)
    assert np.degrees(np.arctan2(steps[:, 0], steps[:, 1])) == pytest.approx(np.full(19, angle))
