"""Which sequence of a batch every entry belongs to, found by differentiation.

Sequences of a batch do not influence each other, so the gradients of one output of all sequences
come from one backward pass. Which rows of which tensor belong to which sequence is not asked but
measured: gradients of a sum of all outputs, each multiplied with the number of its sequence, are
the gradients without that factor, multiplied with the number. Where they are not, sequences do
influence each other (or share an uncertain input), and they are differentiated one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Layout", "MixedError", "candidates", "completed", "find_sequences", "group", "project",
    "single",
]  # fmt: skip

_DIGIT = 256
"""Numbers of sequences are told apart by factors up to this, well within rounding."""
_OFF, _ROUNDING = 0.02, 3e-4
"""By how much a factor may be off, and more for every unit of it."""
_NEGLIGIBLE = 1e-8
"""Part of the sum of squared gradients that does not matter."""


class MixedError(Exception):
    """Sequences influence each other."""


class Layout(NamedTuple):
    """Where every output entry belongs, for each output tensor (entries,)."""

    sequence: list[Tensor]
    slot: list[Tensor]
    """which output of its sequence it is"""
    sequences: int
    slots: int

    def one_hot(self, start: int, stop: int, like: Sequence[Tensor]) -> list[Tensor]:
        """(stop - start, *shape) for each output: 1 where it is that one of its sequence."""
        grads = []
        for slot, output in zip(self.slot, like, strict=True):
            inside = ((slot >= start) & (slot < stop)).nonzero().squeeze(1)
            grad = output.new_zeros(stop - start, output.numel())
            grad[slot[inside] - start, inside] = 1
            grads.append(grad.view(-1, *output.shape))
        return grads

    def seeds(self, like: Sequence[Tensor], variances: Sequence[Tensor]) -> list[Tensor]:
        """(1 + digits, *shape) for each output; see `find_sequences`.

        Args:
            variances: of the outputs, by which every sequence counts in units of its own spread
        """
        generator = torch.Generator().manual_seed(0)
        weights = 0.5 + torch.rand(self.slots, generator=generator)
        # Others for every sequence: what is subtracted from one and added to another would cancel.
        factors = 0.5 + torch.rand(self.sequences, generator=generator)
        # What large sequences pass on to small ones must not go unnoticed.
        totals = like[0].new_zeros(self.sequences)
        for sequence, var in zip(self.sequence, variances, strict=True):
            totals = totals.index_add(0, sequence, var.detach().to(totals).flatten())
        is_known = (totals > 0) & totals.isfinite()
        factors = factors.to(totals) * torch.where(is_known, totals, 1).rsqrt()
        grads = []
        for sequence, slot, output in zip(self.sequence, self.slot, like, strict=True):
            rows = [weights.to(output)[slot] * factors.to(output)[sequence]]
            rows += [rows[0] * (sequence // _DIGIT**k % _DIGIT) for k in range(self.digits)]
            grads.append(torch.stack(rows).view(-1, *output.shape))
        return grads

    @property
    def digits(self) -> int:
        count, rest = 0, self.sequences - 1
        while rest:
            count, rest = count + 1, rest // _DIGIT
        return count

    def gather(self, values: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """(slots, sequences) -> the shape of each output"""
        return [
            values[slot, sequence].view(output.shape)
            for sequence, slot, output in zip(self.sequence, self.slot, like, strict=True)
        ]


def single(outputs: Sequence[Tensor]) -> Layout:
    """All entries are outputs of one sequence."""
    ends = list(itertools.accumulate((o.numel() for o in outputs), initial=0))
    slots = [
        torch.arange(start, stop, device=o.device)
        for o, (start, stop) in zip(outputs, itertools.pairwise(ends), strict=True)
    ]
    return Layout([torch.zeros_like(slot) for slot in slots], slots, 1, ends[-1])


def candidates(
    outputs: Sequence[Tensor], packed: Sequence[Tensor | None], sizes: Sequence[int], first: int
) -> Iterator[Layout]:
    """Layouts to try, the likeliest first.

    Args:
        packed: `batch_sizes` of an output that is packed rows, None for the others
        sizes: numbers of sequences to try
        first: the dimension of an output to try first
    """
    for size in sizes:
        choices = []
        for output, batch_sizes in zip(outputs, packed, strict=True):
            if batch_sizes is not None:
                choices.append([-1] if int(batch_sizes[0]) == size else [])
                continue
            fitting = [dim for dim, length in enumerate(output.shape) if length == size]
            choices.append(sorted(fitting, key=lambda dim: (dim != first, dim)))
        for dims in itertools.islice(itertools.product(*choices), 8):
            yield _layout(outputs, packed, size, dims)


def _layout(
    outputs: Sequence[Tensor], packed: Sequence[Tensor | None], size: int, dims: tuple[int, ...]
) -> Layout:
    sequence, slot, count = [], [], 0
    for output, batch_sizes, dim in zip(outputs, packed, dims, strict=True):
        if batch_sizes is not None:
            width = output[0].numel()
            row = torch.cat([torch.arange(int(n)) for n in batch_sizes])
            time = torch.repeat_interleave(torch.arange(len(batch_sizes)), batch_sizes)
            sequences = row[:, None].expand(-1, width)
            slots = time[:, None] * width + torch.arange(width)
            slots_here = len(batch_sizes) * width
        else:
            rest = [length for other, length in enumerate(output.shape) if other != dim]
            slots_here = torch.Size(rest).numel()
            slots = torch.arange(slots_here).view(rest).unsqueeze(dim).expand(output.shape)
            shape = [size if other == dim else 1 for other in range(output.ndim)]
            sequences = torch.arange(size).view(shape).expand(output.shape)
        sequence.append(sequences.reshape(-1).to(output.device))
        slot.append((slots + count).reshape(-1).to(output.device))
        count += slots_here
    return Layout(sequence, slot, size, count)


def project(seeds: Tensor) -> Tensor:
    """(..., width) -> (..., few): random combinations, by which rows can be told apart as well."""
    return seeds @ _directions(seeds.shape[-1]).to(seeds)


@cache
def _directions(width: int) -> Tensor:
    # Several, since in one of them a row may cancel and leave rounding only.
    return torch.randn(width, 4, generator=torch.Generator().manual_seed(1))


def find_sequences(seeds: Tensor, count: int) -> Tensor:
    """The sequence of every row, -1 where no output depends on it.

    Args:
        seeds: (1 + digits, rows, few), gradients by the seeds of a layout
        count: of sequences
    """
    size, place = seeds[0].abs().max(-1, keepdim=True)
    size = size.squeeze(-1)
    picked = seeds.gather(-1, place.expand(len(seeds), -1, -1)).squeeze(-1)
    known = size > 0
    ratios = picked[1:] / torch.where(known, picked[0], 1)
    digits = ratios.round()
    powers = [_DIGIT**k for k in range(len(digits))]
    weights = torch.tensor(powers, dtype=torch.long, device=seeds.device)
    sequence = (digits.long() * weights[:, None]).sum(0)
    # Of large numbers more is lost by rounding.
    error = (ratios - digits).abs()
    is_whole = (error < _OFF + _ROUNDING * digits) & (digits >= 0) & (digits < _DIGIT)
    fits = is_whole.all(0) & (sequence < count)
    # Of gradients that nearly cancel only rounding is left, which tells nothing and is nothing.
    if bool((size * ~fits).square().sum() > _NEGLIGIBLE * size.square().sum()):
        raise MixedError
    return torch.where(known & fits, sequence, -1)


def completed(sequence: Tensor, count: int) -> Tensor:
    """Entries of unknown sequence get it by the layout that all others have, if there is one.

    The gradient of an entry by the seeds may nearly cancel though those by single outputs do not.

    Args:
        sequence: (entries,) of tensors of one shape, -1 where it is unknown
        count: of sequences
    """
    unknown, size = sequence < 0, len(sequence)
    if size % count or not bool(unknown.any()):
        return sequence
    place = torch.arange(size, device=sequence.device)
    for inner in range(1, size // count + 1):
        if size // count % inner == 0:
            layout = place // inner % count
            if bool((unknown | (sequence == layout)).all()):
                return layout
    return sequence


Grouping = Tensor | tuple[int, int]
"""How rows become (time, sequence): the dimension of the sequences after rows are viewed as two
dimensions, and the length of the other one; or, where rows lie otherwise, their places
(sequences, length), -1 for none."""


def group(sequence: Tensor, count: int) -> Grouping:
    """How rows of these sequences are sorted."""
    rows = len(sequence)
    if rows % count == 0:
        number = torch.arange(count, device=sequence.device)
        length = rows // count
        for dim, pattern in ((1, number.repeat(length)), (0, number.repeat_interleave(length))):
            if bool(((sequence < 0) | (sequence == pattern)).all()):
                return dim, length
    return _places(sequence, count)


def _places(sequence: Tensor, count: int) -> Tensor:
    unknown = sequence < 0
    order = torch.argsort(sequence, stable=True)[int(unknown.sum()) :]
    sequence = sequence[order]
    counts = torch.bincount(sequence, minlength=count)
    within = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[sequence]
    places = order.new_full((count, int(counts.max()) if len(order) else 0), -1)
    places[sequence, within] = order
    return places
