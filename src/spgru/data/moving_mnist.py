"""Moving MNIST: an endless stream of sequences, the same for a seed on every device."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spgru.data.arguments import check_count, check_dtype, check_number
from spgru.data.layout import Layout, Protocol, draw_layout
from spgru.data.mnist import Split, load_mnist, packaged_images
from spgru.data.randomness import noise_keys
from spgru.data.render import add_noise, render, unit_interval
from spgru.data.trajectories import (
    CONTROLLED_ANGLE,
    CONTROLLED_SPEED,
    OFFICIAL_FRAMES,
    OFFICIAL_SPEED,
    Boundary,
    controlled_start,
)

__all__ = ["MovingMNIST"]


class MovingMNIST:
    """Endless batches of sequences (T, B, 64, 64) with values in [0, 1].

    The defaults follow the official protocol: two digits, drawn without replacement and reshuffled
    when used up, bounce at the edges of a 64-pixel canvas and combine by maximum.

    Batch k is a pure function of the arguments and k: `batch(k)` gives it at once, iteration
    continues from `position`, and the device changes nothing, noise included.

        data = MovingMNIST(batch_size=128, seed=1, device="cuda")
        for step, frames in zip(range(1000), data):
            seen, future = frames[:10], frames[10:]

    With `world_size` processes, process `rank` gets its contiguous part of a joint batch of
    `batch_size * world_size`: `torch.cat` of the ranks' batches along dimension 1, in order of
    rank, is the batch of a single process with that joint size.

    Args:
        batch_size: sequences in each batch of this process.
        digits: digits in each sequence.
        split: `"train"` or `"test"` digits. The splits of one seed also move differently.
        seed: a whole number; equal seeds give equal sequences.
        frames: T, frames in each sequence.
        start: fixed position (y, x) one step before the first frame, as a fraction of the 36
            pixels by which a digit can move within the canvas; None draws it.
        angle: fixed direction in degrees, 0 to the right, 90 downwards; None draws it.
        speed: distance per frame as a fraction of those 36 pixels.
        noise: b, every pixel gets Unif(0, b) added and the sum is clipped to 1.
        boundary: `"bounce"` clamps at the edge and turns back; `"leave"` goes straight on, clipped
            at the edge.
        device: where frames are rendered and returned.
        dtype: a floating dtype.
        directory: folder with your own MNIST files, see `load_mnist`.
        rank: this process, from 0.
        world_size: number of processes.
    """

    def __init__(
        self,
        batch_size: int,
        digits: int = 2,
        *,
        split: Split = "train",
        seed: int = 0,
        frames: int = OFFICIAL_FRAMES,
        start: tuple[float, float] | None = None,
        angle: float | None = None,
        speed: float = OFFICIAL_SPEED,
        noise: float = 0.0,
        boundary: Boundary = "bounce",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        directory: str | os.PathLike[str] | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.protocol = Protocol(
            digits=digits,
            frames=frames,
            start=start,
            angle=angle,
            speed=speed,
            noise=noise,
            boundary=boundary,
        )
        self.batch_size = check_count("batch_size", batch_size, 1)
        self.seed = check_count("seed", seed, 0)
        self.world_size = check_count("world_size", world_size, 1)
        self.rank = check_count("rank", rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank is {rank} with world_size {world_size}; "
                f"pass a rank from 0 to {self.world_size - 1}"
            )
        self.dtype = check_dtype("dtype", dtype)
        self.split = split
        self.images = (
            packaged_images(split, torch.device(device))
            if directory is None
            else torch.tensor(load_mnist(split, directory).images, device=device)
        )
        """(N, 28, 28) uint8, the digits to draw from, on the device."""
        self._position = 0

    @classmethod
    def controlled(
        cls,
        batch_size: int,
        *,
        angle: float = CONTROLLED_ANGLE,
        speed: float = CONTROLLED_SPEED,
        noise: float = 0.0,
        digits: int = 1,
        **options: Any,
    ) -> MovingMNIST:
        """One digit on a fixed straight line, which it follows off the canvas.

        The defaults are the training path of the controlled study: 20 degrees, no noise, and 5 %
        of the 36 pixels by which a digit can move per frame. Other angles and speeds have their
        first frame where it has its first frame, and those of the study stay in view to the end.
        (The paper says 5 % of the image; at 3.2 pixels per frame a digit would leave it.)

        Args:
            options: any other argument of `MovingMNIST` except `start` and `boundary`.
        """
        heading = check_number("angle", angle, unit=" (degrees)")
        pace = check_number("speed", speed, low=0, unit=" (fraction of 36 pixels per frame)")
        return cls(
            batch_size,
            digits,
            start=controlled_start(heading, pace),
            angle=angle,
            speed=speed,
            noise=noise,
            boundary="leave",
            **options,
        )

    @property
    def device(self) -> torch.device:
        """Where the digits lie and batches are made."""
        return self.images.device

    @property
    def position(self) -> int:
        """Number of the batch that iteration yields next. Assign to go elsewhere."""
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        self._position = check_count("position", value, 0)

    def layout(self, k: int) -> Layout:
        """Digits and places of batch k, without its pixels."""
        return draw_layout(
            self.protocol, self.seed, self.split, len(self.images), self._first(k), self.batch_size
        )

    def batch(self, k: int) -> Tensor:
        """Batch number k, (T, B, 64, 64). Leaves `position` as it is."""
        frames = unit_interval(render(self.images, self.layout(k)), self.dtype)
        if self.protocol.noise > 0:
            keys = noise_keys(self.seed, self.split, self._first(k), self.batch_size)
            add_noise(frames, keys, self.protocol.noise)
        return frames.to(self.dtype)

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        frames = self.batch(self._position)
        self._position += 1
        return frames

    @cached_property
    def _fingerprint(self) -> str:
        """Of the digits, which may be a user's own."""
        return hashlib.sha256(self.images.cpu().numpy().tobytes()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Position and what determines the sequences, as plain JSON values; the same on each rank.

        Device, dtype, and how a joint batch is split between processes are free to change.
        """
        protocol = dataclasses.asdict(self.protocol)
        if self.protocol.start is not None:
            protocol["start"] = list(self.protocol.start)
        return {
            "position": self._position,
            "seed": self.seed,
            "split": self.split,
            "joint_batch_size": self.batch_size * self.world_size,
            "available_digits": len(self.images),
            "images": self._fingerprint,
            **protocol,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another object stopped. Refused where it made other sequences."""
        own = self.state_dict()
        for name, value in own.items():
            if name not in state:
                raise ValueError(f"state has no {name!r}; pass what state_dict returned")
            if name != "position" and state[name] != value:
                raise ValueError(
                    f"state has {name} {state[name]!r} but this object {value!r}; "
                    "build it with the same arguments to continue"
                )
        self.position = state["position"]

    def _first(self, k: int) -> int:
        """Number of this rank's first sequence of batch k within the endless stream."""
        return (check_count("k", k, 0) * self.world_size + self.rank) * self.batch_size
