"""One backward pass for all outputs of a sequence, and what it says of every source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgru.response.arguments import Outputs, Source
from spgru.response.contraction import (
    Gradients,
    Summed,
    block_of,
    by_bias,
    by_entries,
    by_remainder,
    by_weight,
    rows_of,
    to_sequences,
)
from spgru.response.sequences import (
    Grouping,
    Layout,
    MixedError,
    completed,
    find_sequences,
    group,
    project,
)
from spgru.response.tape import Noise, Tape, Use

__all__ = ["HIGHER_ORDER", "Backward"]

HIGHER_ORDER = "higher order"
"""The part of what no source causes alone."""


class _Alike(NamedTuple):
    """Uses of one weight whose results have one shape, as those of a loop over time."""

    uses: list[Use]
    mean: slice
    """where the gradients by the results' means are among all"""
    var: slice | None
    """None where the weight has no influence on the results' variances"""


class _Entries(NamedTuple):
    """Inputs or noises of one name and shape, whose entries are sources."""

    name: str
    var: Tensor
    """(sources, entries)"""
    at: slice


class _Places(NamedTuple):
    """Which sequence everything belongs to."""

    rows: Sequence[Grouping]
    """of uses that are alike"""
    entries: Sequence[Tensor]
    """of inputs and noises"""
    sums: Sequence[Tensor]
    """of gradients that were summed up"""
    remainders: Mapping[tuple[str, str, int, int], Tensor]
    """of scans, by their key"""


class Backward:
    """Differentiates outputs by every source.

    Args:
        tape: uses of weights
        inputs: uncertain inputs
        noises: what the module adds
        result: of the module, whose means are differentiated
        memory: bytes that gradients may take at a time
    """

    def __init__(
        self, tape: Tape, inputs: Sequence[Source], noises: Sequence[Noise],
        result: Outputs, memory: int,
    ) -> None:  # fmt: skip
        self._tape, self._memory = tape, memory
        self._outputs, self._closed = result.means, result.closed_variances
        self._reached = [k for k, output in enumerate(self._outputs) if output.requires_grad]
        self._targets: list[Tensor] = []
        for scans in tape.scans.values():
            scans[0].prepare()
        self._alike = [self._add_uses(uses) for uses in _sorted_uses(tape.uses)]
        sources = [*inputs, *(Source("noise", *noise) for noise in noises)]
        sources += [Source(HIGHER_ORDER, *remainder) for remainder in tape.remainders]
        self._entries = [self._add_entries(alike) for alike in _sorted_sources(sources)]

    def _add(self, targets: Iterable[Tensor]) -> slice:
        start = len(self._targets)
        self._targets += targets
        return slice(start, len(self._targets))

    def _add_uses(self, uses: list[Use]) -> _Alike:
        mean = self._add(use.mean for use in uses)
        has_var = uses[0].x_var is not None
        return _Alike(uses, mean, self._add(use.var for use in uses) if has_var else None)

    def _add_entries(self, sources: list[Source]) -> _Entries:
        var = torch.stack([source.var.flatten() for source in sources])
        return _Entries(sources[0].name, var, self._add(source.mean for source in sources))

    def variances(self, layouts: Iterable[Layout]) -> tuple[Layout, dict[str, Tensor]]:
        """The first layout that holds, and for each source the variance (slots, sequences)."""
        for layout in layouts:
            try:
                return layout, self._variances(layout)
            except MixedError:
                continue
        raise AssertionError("a single sequence cannot be mixed")

    def _variances(self, layout: Layout) -> dict[str, Tensor]:
        if not self._reached:
            return {}
        seeds = layout.seeds(self._outputs, self._closed)
        found: list[dict[str, Tensor]] = []
        places: _Places | None = None
        start = 0
        while start < layout.slots:
            stop = min(layout.slots, start + self._at_once())
            grads = layout.one_hot(start, stop, self._outputs)
            if places is None:
                grads = [torch.cat(parts) for parts in zip(seeds, grads, strict=True)]
            for sums in self._tape.sums.values():
                sums.by_weight = sums.by_bias = None
            self._tape.scan_remainders.clear()
            gradients = self._differentiate(grads)
            skip = 0
            with torch.set_grad_enabled(self._tape.create_graph):
                if places is None:
                    skip = len(seeds[0])
                    places = self._find([part[:skip].detach() for part in gradients], layout)
                    gradients = [part[skip:] for part in gradients]
                found.append(self._contract(gradients, skip, places, layout.sequences))
            start = stop
        return {name: torch.cat([part[name] for part in found], 1).T for name in found[0]}

    def _at_once(self) -> int:
        """How many outputs of every sequence fit into memory."""
        each = sum(target.numel() * target.element_size() for target in self._targets)
        for sums in self._tape.sums.values():
            weight = sums.affine.weight
            each += sums.sequences * weight.numel() * weight.element_size()
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
        count, skip = layout.sequences, len(seeds[0])
        rows = []
        for uses, mean, var in self._alike:
            found = project(rows_of(uses, seeds[mean]).flatten(2))
            if var is not None:
                found = found + project(rows_of(uses, seeds[var]).flatten(2))
            rows.append(group(find_sequences(found.transpose(0, 1), count), count))
        entries = [
            completed(find_sequences(_joined(seeds[entries.at]).unsqueeze(-1), count), count)
            for entries in self._entries
        ]
        sums = []
        for part in self._tape.sums.values():
            found = part.affine.weight.new_zeros(part.sequences, skip, 1)
            if part.by_weight is not None:
                found = project(part.by_weight[:, :skip].flatten(2))
            sums.append(find_sequences(found.transpose(0, 1), count))
        remainders = {
            # Squares, whose roots are multiplied with the numbers of sequences as gradients are.
            key: find_sequences(part[:, :skip].clamp(min=0).sqrt().T.unsqueeze(-1), count)
            for key, part in self._tape.scan_remainders.items()
        }
        return _Places(rows, entries, sums, remainders)

    # -- variances ----------------------------------------------------------------------------

    def _contract(
        self, gradients: Sequence[Tensor], skip: int, places: _Places, count: int
    ) -> dict[str, Tensor]:
        """(sequences, K) for each source

        Args:
            skip: of the gradients that were summed up, those of the seeds
            count: of sequences
        """
        weights = self._tape.weights
        parts: dict[str, Tensor] = {}

        def add(name: str, part: Tensor) -> None:
            parts[name] = parts[name] + part if name in parts else part

        found: dict[tuple[str, str, int], Gradients] = {}
        for (uses, mean, var), how in zip(self._alike, places.rows, strict=True):
            tap = uses[0].tap
            own = found.setdefault(
                (tap.weight, tap.bias, tap.start), Gradients(uses[0].affine, [], [])
            )
            by_var = None if var is None else gradients[var]
            own.blocks.append(block_of(uses, gradients[mean], by_var, how, count))
        for (name, sums), sequence in zip(self._tape.sums.items(), places.sums, strict=True):
            own = found.setdefault(name[:3], Gradients(sums.affine, [], []))
            if sums.by_weight is not None and sums.by_bias is not None:
                parts_of = (part[:, skip:] for part in (sums.by_weight, sums.by_bias))
                own.sums.append(Summed(*(to_sequences(p, sequence, count) for p in parts_of)))
        for (weight, bias, start), own in found.items():
            # A scan that no output depends on is not differentiated.
            if not own.blocks and not own.sums:
                continue
            if weight:
                add(weight, by_weight(own, self._memory))
                remainder = by_remainder(own)
                if remainder is not None:
                    add(HIGHER_ORDER, remainder)
            if bias:
                add(bias, by_bias(weights[bias].var, start, own))
        for key, part in self._tape.scan_remainders.items():
            add(HIGHER_ORDER, to_sequences(part[:, skip:], places.remainders[key], count))
        for entries, sequence in zip(self._entries, places.entries, strict=True):
            part = _joined(gradients[entries.at])
            add(entries.name, by_entries(entries.var.flatten(), part, sequence, count))
        return parts


def _sorted_uses(uses: Sequence[Use]) -> Iterable[list[Use]]:
    found: dict[object, list[Use]] = {}
    for use in uses:
        tap = use.tap
        key = tap.weight, tap.bias, tap.start, use.mean.shape, use.x_var is None
        found.setdefault(key, []).append(use)
    return found.values()


def _sorted_sources(sources: Sequence[Source]) -> Iterable[list[Source]]:
    found: dict[object, list[Source]] = {}
    for source in sources:
        found.setdefault((source.name, source.mean.shape), []).append(source)
    return found.values()


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    """(K, *shape) each -> (K, entries of all)"""
    return torch.stack(list(gradients), 1).flatten(1)
