"""Which rows every step of a sequence works on, and where they lie in memory.

Sequences are sorted by falling length, as torch packs them, so the step at time t works on the
first `batch_sizes[t]` sequences. States lie one after the other in a buffer of slots: slot 0 is
the state before the first step, slot k + 1 the state after step k. A step reads the first rows of
a slot and writes the first rows of the next one. From the first time to the last, rows fall away;
in the other direction sequences join, each with its initial state.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["Steps"]


class Steps:
    """The steps of sequences of equal or falling lengths, in the order in which they are run.

    Args:
        batch_sizes: sequences at every time, never rising
        reverse: from the last time to the first
    """

    def __init__(self, batch_sizes: list[int], reverse: bool) -> None:
        self.batch_sizes, self.reverse = batch_sizes, reverse
        self.count = len(batch_sizes)
        self.times = range(self.count - 1, -1, -1) if reverse else range(self.count)
        """the time of every step"""
        self.sizes = batch_sizes[::-1] if reverse else batch_sizes
        """sequences that every step works on"""
        self.sequences = batch_sizes[0]
        self.are_equal = batch_sizes[-1] == batch_sizes[0]
        self.slots = [self.sizes[0], *map(max, pairwise(self.sizes)), self.sizes[-1]]
        """sequences in every slot"""
        self.total = sum(self.slots)

    @cached_property
    def _slot_starts(self) -> Tensor:
        return torch.tensor([0, *accumulate(self.slots)])

    def _rows(self, starts: Tensor, sizes: list[int], device: torch.device) -> Tensor:
        """The places starts[k], starts[k] + 1, ... of sizes[k] rows each."""
        counts = torch.tensor(sizes)
        before = counts.cumsum(0) - counts
        places = torch.repeat_interleave(starts - before, counts) + torch.arange(sum(sizes))
        return places.to(device, non_blocking=True)

    def _last_times(self) -> Tensor:
        """Of every sequence, (B,)."""
        sequence = torch.arange(self.sequences)
        return (torch.tensor(self.batch_sizes)[:, None] > sequence).sum(0) - 1

    def put_initial(self, buffer: Tensor, initial: Tensor) -> None:
        """The initial state (B, ...) where each sequence starts in the buffer of slots."""
        if self.are_equal or not self.reverse:
            buffer[: self.sequences] = initial
            return
        first_step = self.count - 1 - self._last_times()
        places = self._slot_starts[first_step] + torch.arange(self.sequences)
        buffer.index_copy_(0, places.to(buffer.device, non_blocking=True), initial.to(buffer.dtype))

    def before(self, buffer: Tensor) -> Tensor:
        """What every step reads, in the order of steps; (rows, ...)."""
        if self.are_equal or self.reverse:
            return buffer[: self.total - self.slots[-1]]
        return buffer.index_select(0, self._rows(self._slot_starts[:-2], self.sizes, buffer.device))

    def after(self, buffer: Tensor) -> Tensor:
        """What every step wrote, in the order of time; (rows, ...). A view where it can be one."""
        if not self.reverse:
            return buffer[self.sequences :]
        if self.are_equal:
            shape = self.count + 1, self.sequences, *buffer.shape[1:]
            return buffer.view(shape)[1:].flip(0).flatten(0, 1)
        starts = self._slot_starts[1:-1].flip(0)
        return buffer.index_select(0, self._rows(starts, self.batch_sizes, buffer.device))

    def final(self, after: Tensor) -> Tensor:
        """The last of `after` of every sequence, (B, ...)."""
        if self.count == 1:
            return after
        if self.reverse:
            return after[: self.sequences]
        if self.are_equal:
            return after[len(after) - self.sequences :]
        starts = torch.tensor([0, *accumulate(self.batch_sizes)])
        places = starts[self._last_times()] + torch.arange(self.sequences)
        return after.index_select(0, places.to(after.device, non_blocking=True))

    def final_of(self, buffer: Tensor) -> Tensor:
        """The last state of every sequence in a buffer of slots, (B, ...)."""
        if self.reverse:
            return buffer[self.total - self.sequences :]
        return self.final(self.after(buffer))

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Of (rows, ...) in the order of time, the part of every time."""
        parts: Any = rows.split(self.batch_sizes)
        return tuple(parts)

    def split_slots(self, buffer: Tensor) -> tuple[Tensor, ...]:
        parts: Any = buffer.split(self.slots)
        return tuple(parts)
