"""A described sequence: digits with start, angle and speed, and noise. Checked, then drawn."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.data.layout import Layout
from spgru.data.mnist import DIGIT, load_mnist
from spgru.data.randomness import noise_keys
from spgru.data.render import add_noise, render, unit_interval
from spgru.data.trajectories import SLACK, bouncing_corners, direction, leaving_corners
from spgru.serve.errors import RefusedError
from spgru.serve.fields import Fields
from spgru.serve.limits import FRAMES, HALF, Limits

__all__ = ["BOUNDARIES", "SAMPLES", "Mover", "Scene", "draw", "pixels_of", "read_scene"]

SAMPLES = 800
"""Test images to choose from, of each digit; the rarest has 892."""
BOUNDARIES = ("leave", "bounce")


@dataclass(frozen=True)
class Mover:
    """One digit on its way."""

    image: tuple[int, int] | bytes
    """(digit, which of its test images), or a drawing of 28 x 28 bytes"""
    y: float
    """of the upper left corner in the first frame, in pixels"""
    x: float
    angle: float
    speed: float
    """share of 36 pixels per frame"""


@dataclass(frozen=True)
class Scene:
    movers: tuple[Mover, ...]
    noise: float
    seed: int
    boundary: Literal["leave", "bounce"]


def read_scene(fields: Fields, limits: Limits) -> Scene:
    """Takes the fields of a scene; other fields may remain."""
    listed = fields.take("digits")
    if not isinstance(listed, list) or not 1 <= len(listed) <= limits.digits:
        raise RefusedError(f"digits must be a list of 1 to {limits.digits} digits")
    movers = tuple(_read_mover(item, f"digits[{k}]") for k, item in enumerate(listed))
    boundary: Any = fields.choice("boundary", BOUNDARIES, "leave")
    return Scene(
        movers, fields.number("noise", 0, 1, 0.0), fields.whole("seed", 0, 9999, 0), boundary
    )


def _read_mover(value: Any, where: str) -> Mover:
    fields = Fields(value, where)
    drawing = fields.take("drawing", None)
    image: tuple[int, int] | bytes
    if drawing is not None:
        image = _read_drawing(drawing, where)
    else:
        image = fields.whole("digit", 0, 9), fields.whole("sample", 0, SAMPLES - 1, 0)
    found = Mover(
        image,
        fields.number("y", -DIGIT, SLACK + DIGIT),
        fields.number("x", -DIGIT, SLACK + DIGIT),
        fields.number("angle", -360, 360),
        fields.number("speed", 0, 0.5),
    )
    fields.done()
    return found


def _read_drawing(value: Any, where: str) -> bytes:
    try:
        pixels = base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise RefusedError(f"{where}.drawing must be base64 of {DIGIT} x {DIGIT} bytes") from error
    if len(pixels) != DIGIT * DIGIT:
        raise RefusedError(
            f"{where}.drawing has {len(pixels)} bytes; give {DIGIT} x {DIGIT}, row by row"
        )
    return pixels


def draw(scene: Scene) -> tuple[Tensor, Tensor]:
    """Frames that a network sees, with noise, and those that truly follow, always without.

    Returns:
        (HALF, 64, 64) both, in [0, 1]
    """
    images = torch.from_numpy(np.stack([pixels_of(mover) for mover in scene.movers]))
    first = np.array([[mover.y, mover.x] for mover in scene.movers]) / SLACK
    velocity = np.array([mover.speed * np.array(direction(mover.angle)) for mover in scene.movers])
    if scene.boundary == "leave":
        # The position is that one step before the first frame.
        corners = leaving_corners(first - velocity, velocity, FRAMES)
    else:
        corners = _bouncing(np.clip(first, 0, 1), velocity)
    layout = Layout(np.arange(len(scene.movers))[None], corners[:, None])
    frames = unit_interval(render(images, layout), torch.float32)
    seen, after = frames[:HALF].clone(), frames[HALF:, 0]
    if scene.noise:
        seen = add_noise(seen, noise_keys(scene.seed, "test", 0, 1), scene.noise)
    return seen[:, 0], after


def _bouncing(first: NDArray[np.float64], velocity: NDArray[np.float64]) -> NDArray[np.int64]:
    """Pixels (FRAMES, digits, 2) of digits that are at `first`, in [0, 1], in the first frame.

    One that touches an edge there has bounced off it, so that the next step leads away from it.
    """
    away = np.where(first <= 0, np.abs(velocity), velocity)
    away = np.where(first >= 1, -np.abs(velocity), away)
    corners = (SLACK * first + 1e-9).astype(np.int64)  # whole pixels stay whole
    return np.concatenate([corners[None], bouncing_corners(first, away, FRAMES - 1)])


def pixels_of(mover: Mover) -> NDArray[np.uint8]:
    """(28, 28)"""
    if isinstance(mover.image, bytes):
        return np.frombuffer(mover.image, np.uint8).reshape(DIGIT, DIGIT)
    digit, sample = mover.image
    mnist = load_mnist("test")
    found: NDArray[np.uint8] = mnist.images[np.flatnonzero(mnist.labels == digit)[sample]]
    return found
