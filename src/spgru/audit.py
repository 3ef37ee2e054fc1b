"""`audit`: how true is the closed-form variance of this network, on this input?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from statistics import NormalDist
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.calibration import is_calibrated, uncalibrated
from spgru.calibration.layout import REFUSALS, find_layout
from spgru.calibration.progress import Bar
from spgru.calibration.truth import draw_inputs
from spgru.modes import Record, weight_mode
from spgru.moments import Moments
from spgru.moments.nested import first_moments
from spgru.nn.contexts import recording, sampling
from spgru.nn.layer import Layer
from spgru.nn.weight import named_weights
from spgru.report import LEVELS, LayerReport, Report
from spgru.tracing import Joined, join

__all__ = ["Report", "audit"]

_OUTPUT = "(output)"
"""The module's own output among its layers: a name that no layer can have."""


@torch.no_grad()
def audit(
    module: nn.Module,
    x: Any,
    draws: int = 1000,
    seed: int = 0,
    redraw: bool = True,
    progress: bool = True,
) -> Report:
    """Compare the closed form with brute force, for the module's output and every layer of ours.

    Truth is the module itself run on `draws` networks with weights drawn from their distributions
    (each network keeps its weights over time) and inputs drawn from their moments. A second truth
    redraws the weights at every step: what separates the closed form from it is covariance between
    units, what separates the two truths is the sharing of weights over time.

    Moments that the module itself makes between our layers are drawn where they enter a layer.
    Only sums are kept, so memory does not grow with the number of draws. After `spgru.calibrate`
    the report has the plain closed form beside the calibrated one.

    Args:
        module: a layer of ours, or any module built from them
        x: what `module` is called with; a tuple is passed as several arguments
        draws: number of networks drawn; errors fall with its root
        seed: the same seed gives the same report
        redraw: also compute the second truth, which costs more than the first
        progress: show a bar, on a terminal and where rich is installed
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to measure a variance, got {draws}")
    weights = [weight for _, weight in named_weights(module)]
    if not weights:
        raise ValueError(
            f"module ({type(module).__name__}) holds no random weights; build it from spgru layers"
        )
    if any(weight_mode(weight.layer) is not None for weight in weights):
        raise ValueError(
            "audit draws weights itself and cannot run while they are drawn or at their means; "
            "call it outside of `sampling` and `at_mean`"
        )
    # A PackedSequence is a tuple too, but one argument.
    inputs = x if isinstance(x, tuple) and not isinstance(x, PackedSequence) else (x,)
    if any(
        bool(leaf.isnan().any())
        for leaf in pytree.tree_leaves(inputs)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ):
        raise ValueError("x holds NaN, of which no variance can be told; leave those sequences out")
    family = weights[0].family
    generator = torch.Generator(device=weights[0].moments().device)
    batch = None if isinstance(module, Layer) else _batch_of(module, inputs)
    closed = _run(module, inputs, batch)
    plain = None
    if is_calibrated(module):
        with uncalibrated(module):
            plain = _run(module, inputs, batch)
    forms = {
        name: _Closed(*found, None if plain is None else plain[name])
        for name, found in closed.items()
    }
    bar = Bar(progress, draws * (2 if redraw else 1), "audit")
    # fork_rng: modules with real dropout draw from the global generator.
    with torch.random.fork_rng(), bar:
        truths = []
        for every_step in (False, True) if redraw else (False,):
            torch.manual_seed(seed)
            generator.manual_seed(seed)
            sums = {name: _Sums(form, draws) for name, form in forms.items()}
            for _ in range(draws):
                drawn = draw_inputs(inputs, family, generator)
                with sampling(module, generator, every_step), uncalibrated(module):
                    found = _run(module, drawn, batch)
                for name, (neurons, _) in found.items():
                    sums[name].add(neurons, generator)
                bar.advance()
            truths.append(sums)
    shared, redrawn = truths[0], truths[1] if redraw else None
    layers = {
        name: shared[name].report(None if redrawn is None else redrawn[name]) for name in forms
    }
    return Report(draws=draws, output=layers.pop(_OUTPUT, None), layers=layers)


def _batch_of(module: nn.Module, inputs: tuple[Any, ...]) -> int | None:
    """The dimension of the module's output that holds sequences, None where that is not known.

    As where there are fewer than four, or where the module treats them together.
    """
    # fork_rng: real dropout draws.
    with suppress(*REFUSALS), torch.random.fork_rng():
        return find_layout(module, _call_of(module), inputs, None, None).shape.batch
    return None


def _call_of(module: nn.Module) -> Callable[..., Any]:
    return getattr(module, "calibration_output", module)


def _run(module: nn.Module, inputs: tuple[Any, ...], batch: int | None) -> Joined:
    """The neurons of all layers and, if it is not one of ours, the output of the module."""
    with recording(module) as records:
        output = _call_of(module)(*inputs)
    neurons = join(records)
    if not isinstance(module, Layer):
        with suppress(TypeError):  # a module may return no Moments
            first = first_moments(output)
            calls = _recurrent_calls(records)
            neurons[_OUTPUT] = {"output": first}, _time_of(first, neurons, calls, batch)
    return neurons


def _recurrent_calls(records: dict[str, list[Record]]) -> set[int]:
    """How often recurrent layers were called: a loop gives one step of the output for each call."""
    counts = Counter(
        (layer, record.part)
        for layer, found in records.items()
        for record in found
        if "state" in record.neurons
    )
    return set(counts.values())


def _time_of(output: Moments, neurons: Joined, calls: set[int], batch: int | None) -> int | None:
    """The dimension of the output that is time, as in a recurrent layer of the module, or None.

    It has as many steps as the layer, or as there were calls of it. With time first another number
    of steps will do, too.

    Args:
        batch: dimension of the sequences; where it is not known the output has time where it has
            sequences where the layer has them. Then no shape can tell, with the batch first, or
            with time first and as many sequences as steps: horizons, as many as the layer's steps
            or calls, are taken for time, and steps of any other number are not
    """
    recurrent = [
        (parts["state"], time)
        for parts, time in neurons.values()
        if "state" in parts and time is not None and parts["state"].ndim > 2
    ]
    if batch is not None:
        lengths = calls | {state.shape[time] for state, time in recurrent}
        # Without a third dimension the second is features, unless it is sequences.
        known = output.ndim > 2 - batch and (batch == 1 or output.shape[1] in lengths)
        return 1 - batch if recurrent and known else None
    for state, time in recurrent:
        if output.ndim < 3 or output.shape[1 - time] != state.shape[1 - time]:
            continue
        steps = output.shape[time]
        if steps == state.shape[time] or steps in calls or (time == 0 and steps != state.shape[1]):
            return time
    return None


class _Closed:
    """Closed-form moments of the neurons a layer passes on, time first: (T, N)."""

    def __init__(
        self, neurons: dict[str, Any], time_dim: int | None, plain: tuple[Any, Any] | None
    ) -> None:
        self.key = "state" if "state" in neurons else "output"
        self.time_dim = time_dim
        moments: Moments = neurons[self.key]
        self.mean = self.flatten(moments.mean)
        self.var = self.flatten(moments.var)
        self.plain_var = None if plain is None else self.flatten(plain[0][self.key].var)

    def flatten(self, tensor: Tensor) -> Tensor:
        rows = tensor.unsqueeze(0) if self.time_dim is None else tensor.movedim(self.time_dim, 0)
        return rows.flatten(1).double()


class _Sums:
    """Running sums over draws of the deviation from the closed-form mean."""

    def __init__(self, closed: _Closed, draws: int) -> None:
        self.closed, self.count = closed, 0
        self.first = torch.zeros_like(closed.mean)
        self.second = torch.zeros_like(closed.mean)
        # Laid out beforehand: a small tensor kept from every draw would pin the heap around it.
        self.per_draw = closed.mean.new_empty(draws, len(closed.mean))
        self.inside = closed.mean.new_zeros(len(LEVELS), len(closed.mean))
        # Padding and other certain neurons have no interval to fall into.
        self.random = closed.var > 0
        quantiles = [NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS]
        self.half_widths = torch.stack([quantile * closed.var.sqrt() for quantile in quantiles])

    def add(self, neurons: dict[str, Any], generator: torch.Generator) -> None:
        value = neurons[self.closed.key]
        if isinstance(value, Moments):  # of a module, which may add variance of its own
            value = value.sample(generator=generator) if bool((value.var > 0).any()) else value.mean
        deviation = self.closed.flatten(value) - self.closed.mean
        squared = deviation**2
        self.first += deviation
        self.second += squared
        self.per_draw[self.count] = squared.mean(1)
        self.count += 1
        self.inside += self._mean((deviation.abs() <= self.half_widths).double())

    def _mean(self, values: Tensor) -> Tensor:
        """Over the neurons that are random in closed form."""
        return (values * self.random).sum(-1) / self.random.sum(-1).clamp(min=1)

    def variance(self) -> Tensor:
        """(T, N), unbiased"""
        # The subtraction rounds below 0 where nothing varies at all.
        return ((self.second - self.first**2 / self.count) / (self.count - 1)).clamp(min=0)

    def mean_variance(self) -> tuple[Tensor, Tensor]:
        """Mean over neurons of the true variance at every step, and its standard error."""
        return self.variance().mean(1).cpu(), (self.per_draw.std(0) / self.count**0.5).cpu()

    def report(self, redrawn: _Sums | None) -> LayerReport:
        variance = self.variance()
        standardised = (self.first / self.count) ** 2 / variance
        mean_error = self._mean(torch.where(variance > 0, standardised, 0.0)).sqrt().cpu()
        true_var, true_error = self.mean_variance()
        redrawn_var, redrawn_error = (None, None) if redrawn is None else redrawn.mean_variance()
        return LayerReport(
            closed_var=self.closed.var.mean(1).cpu(),
            plain_var=None
            if self.closed.plain_var is None
            else self.closed.plain_var.mean(1).cpu(),
            true_var=true_var,
            true_var_error=true_error,
            redrawn_var=redrawn_var,
            redrawn_var_error=redrawn_error,
            mean_error=mean_error,
            coverage=(self.inside / self.count).cpu(),
        )
