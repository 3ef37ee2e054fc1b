"""What a calibration is about: a module, how it is called, and sequences in two parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.calibration.inputs import as_arguments, check_different, check_inputs, split
from spgru.calibration.layout import (
    REFUSALS,
    Place,
    different_lengths,
    find_layout,
    in_turn,
    select,
)
from spgru.calibration.perturb import Changes, changed_copies
from spgru.calibration.truth import Shape
from spgru.modes import enter_watching
from spgru.moments.nested import dims_of, first_moments
from spgru.nn.contexts import at_mean
from spgru.nn.layer import Layer
from spgru.nn.output_scale import OutputScale

__all__ = ["Problem", "pose"]


class Problem(NamedTuple):
    module: nn.Module
    run: Callable[..., Any]
    """what is called with the inputs"""
    inputs: tuple[Any, ...]
    shape: Shape
    """of the output"""
    numbers: tuple[Tensor, Tensor]
    """of the sequences of the fit, and of those held out"""
    parts: list[Any]
    """inputs of each, a changed copy after every sequence"""
    has_copies: bool
    """as many as sequences, or none"""
    scale: OutputScale | None
    """of the output, None where there can be none"""
    input_dims: int | None
    """dimensions of the module's first input, None where it is called by something else"""
    outputs: int
    """Moments that are returned; 1 for a layer, whose others are states"""

    @property
    def counts(self) -> tuple[int, int]:
        fitted, held = self.numbers
        return len(fitted), len(held)


def pose(
    module: nn.Module,
    x: Any,
    call: Callable[..., Any] | None,
    held_out: float,
    batch_dim: int | None,
    time_dim: int | None,
    seed: int,
    scales: Sequence[OutputScale],
    changes: Changes | None = None,
    may_be_alike: bool = False,
) -> Problem:
    """For the arguments see `spgru.calibrate`.

    Args:
        scales: of which the first is taken that scales the output
        changes: made in copies, of which there are none without
        may_be_alike: whether all sequences may be the same, as outcomes still differ then
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")
    inputs = as_arguments(x)
    check_inputs("x", inputs)
    run = call or getattr(module, "calibration_output", None) or module
    places, count, shape, outputs = find_layout(module, run, inputs, batch_dim, time_dim)
    numbers = split(count, held_out, seed)
    if not may_be_alike:
        check_different(inputs, places)
    parts = [select(inputs, places, index) for index in numbers]
    copies = None
    if changes is not None:  # a fit to outcomes calls the module on all sequences at once
        _check_lengths(module, run, parts, shape)
        copies = _copies(module, run, parts, inputs, places, changes, seed)
    has_copies = copies is not None
    if copies is not None:
        parts = copies
    scale = _scale_of_output(run, scales, parts[1])
    dims = dims_of(inputs) if run is module else None
    outputs = 1 if isinstance(module, Layer) else outputs
    return Problem(module, run, inputs, shape, numbers, parts, has_copies, scale, dims, outputs)


@torch.no_grad()
def _check_lengths(
    module: nn.Module, run: Callable[..., Any], parts: Sequence[Any], shape: Shape
) -> None:
    """That the fit and what is held out of it have the same steps."""
    if shape.time is None:
        return
    with at_mean(module):
        steps, others = (first_moments(run(*part)).mean.shape[shape.time] for part in parts)
    if steps != others:
        raise ValueError(different_lengths(steps, others))


def _copies(
    module: nn.Module,
    run: Callable[..., Any],
    parts: Sequence[Any],
    inputs: Any,
    places: Sequence[Place],
    changes: Changes,
    seed: int,
) -> list[Any] | None:
    """The parts with a changed copy after every sequence; None where there can be none.

    A module may take one kind of change and not the other.
    """
    refusals = []
    for some in dict.fromkeys((changes, changes._replace(skips=()), changes._replace(noise=()))):
        found = []
        for k, part in enumerate(parts):
            copies, changed = changed_copies(part, inputs, places, some, seed + k)
            if not changed:
                break
            found.append(in_turn(part, copies, places))
        if len(found) < len(parts):
            continue
        refusal = _refusal(module, run, found)
        if refusal is None:
            return found
        refusals.append(refusal)
    if refusals:
        warnings.warn(
            f"{type(module).__name__} takes x but not changed copies of it, so the fit goes "
            f"without; perturb=(), skip=() asks for none. It said: {refusals[0]}",
            stacklevel=4,
        )
    return None


@torch.no_grad()
def _refusal(module: nn.Module, run: Callable[..., Any], parts: Sequence[Any]) -> str | None:
    """Why copies, beside the sequences that they are of, cannot be used; None where they can."""
    try:
        with at_mean(module):
            for part in parts:
                run(*part)
        outputs = [first_moments(run(*part)) for part in parts]
    except REFUSALS as error:
        return str(error)
    for output in outputs:
        if not all(bool(moment.isfinite().all()) for moment in output):
            return "the output is NaN or infinite for some"
    return None


def _scale_of_output(
    run: Callable[..., Any], scales: Sequence[OutputScale], inputs: Sequence[Any]
) -> OutputScale | None:
    """The first whose result is what `run` gives."""
    given: list[list[Any]] = [[] for _ in scales]
    with torch.no_grad(), enter_watching(dict(zip(scales, given, strict=True))):
        output = first_moments(run(*inputs))
    for scale, values in zip(scales, given, strict=True):
        # By the variance: the mean may come from another pass (`keep_mean`). One that is called
        # several times, in a loop, acts on the output several times.
        if len(values) == 1 and values[0].var is output.var:
            return scale
    return None
