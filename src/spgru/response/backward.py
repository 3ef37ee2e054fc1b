"""One backward pass for all outputs of a sequence, and what it says of every source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgru.response.arguments import Source
from spgru.response.contraction import blocks_of, by_bias, by_entries, by_weight, rows_of
from spgru.response.sequences import Grouping, Layout, Mixed, find_sequences, group, project
from spgru.response.tape import Noise, Tape, Use

__all__ = ["Backward"]


class _Places(NamedTuple):
    """Which sequence everything belongs to."""

    rows: Sequence[Grouping]
    """of every use"""
    entries: Sequence[Tensor]
    """of every input and noise"""


class Backward:
    """Differentiates outputs by every source.

    Args:
        tape: uses of weights
        inputs: uncertain inputs
        noises: what the module adds
        outputs: the means that are differentiated
        memory: bytes that gradients may take at a time
    """

    def __init__(
        self, tape: Tape, inputs: Sequence[Source], noises: Sequence[Noise],
        outputs: Sequence[Tensor], memory: int,
    ) -> None:  # fmt: skip
        self._tape, self._memory = tape, memory
        self._outputs = outputs
        self._reached = [k for k, output in enumerate(outputs) if output.requires_grad]
        self._entries = [*inputs, *(Source("noise", *noise) for noise in noises)]
        targets = [tensor for use in tape.uses for tensor in (use.mean, use.var)]
        self._targets = [*targets, *(source.mean for source in self._entries)]

    def variances(self, layouts: Iterable[Layout]) -> tuple[Layout, dict[str, Tensor]]:
        """The first layout that holds, and for each source the variance (slots, sequences)."""
        for layout in layouts:
            try:
                return layout, self._variances(layout)
            except Mixed:
                continue
        raise AssertionError("a single sequence cannot be mixed")

    def _variances(self, layout: Layout) -> dict[str, Tensor]:
        if not self._reached:
            return {}
        seeds = layout.seeds(self._outputs)
        found: list[dict[str, Tensor]] = []
        places: _Places | None = None
        start = 0
        while start < layout.slots:
            stop = min(layout.slots, start + self._at_once())
            grads = layout.one_hot(start, stop, self._outputs)
            if places is None:
                grads = [torch.cat(parts) for parts in zip(seeds, grads, strict=True)]
            gradients = self._differentiate(grads)
            with torch.set_grad_enabled(self._tape.create_graph):
                if places is None:
                    count = len(seeds[0])
                    places = self._find([part[:count].detach() for part in gradients], layout)
                    gradients = [part[count:] for part in gradients]
                found.append(self._contract(gradients, places, layout.sequences))
            start = stop
        return {name: torch.cat([part[name] for part in found], 1).T for name in found[0]}

    def _at_once(self) -> int:
        """How many outputs of every sequence fit into memory."""
        each = sum(target.numel() * target.element_size() for target in self._targets)
        # Gradients on their way take about as much as those that are kept.
        return max(1, self._memory // (2 * each))

    def _differentiate(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """(K, *shape) for each target."""
        outputs = [self._outputs[k] for k in self._reached]
        rows = [grads[k] for k in self._reached]
        again = self._tape.create_graph
        if again:
            every = [
                torch.autograd.grad(
                    outputs, self._targets, [row[k] for row in rows], create_graph=True,
                    materialize_grads=True,
                )
                for k in range(len(rows[0]))
            ]  # fmt: skip
            return [torch.stack(parts) for parts in zip(*every, strict=True)]
        return list(
            torch.func.vmap(
                lambda *row: torch.autograd.grad(
                    outputs, self._targets, row, retain_graph=True, materialize_grads=True
                )
            )(*rows)
        )

    # -- sequences ----------------------------------------------------------------------------

    def _find(self, seeds: Sequence[Tensor], layout: Layout) -> _Places:
        rows = []
        for use, mean, var in self._by_use(seeds):
            parts = [project(rows_of(use, part).flatten(2)).T for part in (mean, var)]
            rows.append(parts[0] + parts[1])
        rows += self._by_entry(seeds)
        lengths = [part.shape[1] for part in rows]
        sequences = find_sequences(torch.cat(rows, 1), layout.sequences).split(lengths)
        count = len(self._tape.uses)
        return _Places(group(sequences[:count], layout.sequences), sequences[count:])

    def _by_use(self, gradients: Sequence[Tensor]) -> Iterable[tuple[Use, Tensor, Tensor]]:
        uses = self._tape.uses
        return zip(uses, gradients[0 : 2 * len(uses) : 2], gradients[1 : 2 * len(uses) : 2], strict=True)

    def _by_entry(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """(K, entries) for each input and noise"""
        return [part.flatten(1) for part in gradients[2 * len(self._tape.uses) :]]

    # -- variances ----------------------------------------------------------------------------

    def _contract(
        self, gradients: Sequence[Tensor], places: _Places, count: int
    ) -> dict[str, Tensor]:
        """(sequences, K) for each source"""
        weights = self._tape.weights
        parts: dict[str, Tensor] = {}

        def add(name: str, part: Tensor) -> None:
            parts[name] = parts[name] + part if name in parts else part

        groups: dict[tuple[str, str, int], list[int]] = {}
        uses = list(self._by_use(gradients))
        for number, (use, _, _) in enumerate(uses):
            groups.setdefault((use.tap.weight, use.tap.bias, use.tap.start), []).append(number)
        for (weight, bias, start), numbers in groups.items():
            alike = [uses[number] for number in numbers]
            blocks = blocks_of(
                *zip(*alike, strict=True), [places.rows[number] for number in numbers], count
            )
            affine = alike[0][0].affine
            if affine is not None:
                add(weight, by_weight(affine, blocks, self._memory))
            if bias:
                rows = blocks[0].by_mean.shape[-1] * blocks[0].by_mean.shape[-2]
                add(bias, by_bias(weights[bias].var[start : start + rows], blocks))
        entries = self._by_entry(gradients)
        for source, part, sequence in zip(self._entries, entries, places.entries, strict=True):
            add(source.name, by_entries(source.var.flatten(), part, sequence, count))
        return parts
