"""The protocol explains a genuine sequence of the official test set, pixel for pixel."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from spgru.data import Layout, load_mnist
from spgru.data.render import render
from spgru.data.trajectories import OFFICIAL_SPEED, SLACK, bouncing_corners

SEQUENCE = (
    Path(__file__).resolve().parents[3] / "shared" / "data" / "moving_mnist_official_sequence.npy"
)
DIGITS = (6345, 9903)


@pytest.fixture(scope="module")
def official():
    if not SEQUENCE.is_file():
        pytest.skip("the genuine sequence is not here: it may be used but not shipped")
    return np.load(SEQUENCE, allow_pickle=False)


@pytest.fixture(scope="module")
def seen_corners(official):
    """(20, 2 digits, 2) places read off the frames: the only pair of places that explains each."""
    images = load_mnist("test").images[list(DIGITS)]
    corners = np.empty((20, 2, 2), dtype=np.int64)
    for t, frame in enumerate(official):
        windows = sliding_window_view(frame, (28, 28))
        # A digit can only be where none of its pixels is brighter than the frame.
        fits = [np.argwhere((image <= windows).all(axis=(2, 3))) for image in images]
        explains = []
        for places in product(*fits):
            canvas = np.zeros_like(frame)
            for image, (top, left) in zip(images, places, strict=True):
                spot = canvas[top : top + 28, left : left + 28]
                np.maximum(spot, image, out=spot)
            if np.array_equal(canvas, frame):
                explains.append(places)
        assert len(explains) == 1
        corners[t] = explains[0]
    return corners


def explanations(seen, move):
    """Starts and velocities, each (n, 2), whose path has these (20, 2) corners; a fine search.

    For a given angle the axes are separate. A start that puts frame 0 right lies within one pixel
    of one value, or near it where the first step met an edge, so a grid around there is enough.
    """
    theta = np.linspace(0, 2 * np.pi, 4001)
    velocity = OFFICIAL_SPEED * np.stack((np.sin(theta), np.cos(theta)), axis=-1)  # (angles, 2)
    within = (np.arange(-24, 64) + 0.5) / 40  # of a pixel
    first = (seen[0] + within[:, None, None]) / SLACK
    start = np.clip(first - velocity, 0, 1)  # (grid, angles, 2)
    path = move(start, np.broadcast_to(velocity, start.shape), len(seen))
    right = (path == seen[:, None, None]).all(axis=0)  # (grid, angles, 2)
    angles = np.flatnonzero(right.any(axis=0).all(axis=-1))
    choice = right[:, angles].argmax(axis=0)  # (n, 2)
    return start[choice, angles[:, None], [0, 1]], velocity[angles]


def reflecting_corners(start, velocity, frames):
    """What the official protocol is not: a mirror at the edge instead of a clamp."""
    straight = start + np.arange(1, frames + 1)[:, None, None, None] * velocity
    mirrored = 1 - np.abs(straight % 2 - 1)
    return (SLACK * mirrored).astype(np.int64)


def test_a_start_and_an_angle_reproduce_all_frames(official, seen_corners):
    solutions = [explanations(seen_corners[:, digit], bouncing_corners) for digit in range(2)]
    start, velocity = (
        np.stack([part[len(part) // 2] for part in parts])[None]
        for parts in zip(*solutions, strict=True)
    )
    layout = Layout(np.array([DIGITS]), bouncing_corners(start, velocity, 20))
    frames = render(torch.tensor(load_mnist("test").images), layout)
    assert np.array_equal(frames[:, 0].numpy(), official)


def test_reflection_in_place_of_the_clamp_explains_neither_path(seen_corners):
    for digit in range(2):
        start, _ = explanations(seen_corners[:, digit], reflecting_corners)
        assert len(start) == 0
