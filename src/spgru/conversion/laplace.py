"""`laplace`: variances of the weights from data, without training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spgru.calibration import uncalibrate, uncalibrated
from spgru.conversion.curvature import (
    Batch,
    Vector,
    curvature_of,
    gradient_rows,
    likelihood_vector,
    loss_vector,
    means_of,
)
from spgru.conversion.example import arguments_of, evaluating, outputs_of
from spgru.moments import Moments
from spgru.moments.nested import first_moments
from spgru.nn.contexts import at_mean
from spgru.nn.weight import Weight, named_weights

__all__ = ["Laplace", "laplace"]

Loss = Callable[[Any, Tensor], Tensor]

_ROWS = 512
"""Gradients that the number of determined directions is found from."""
_ENTRIES = 2**26
"""Gradients that are held for it."""
_HALVINGS = 14
_LEAST, _MOST = 1e-6, 1e10
"""Between these the strength of the prior is looked for."""
_SAME = 1e-3
"""Of the largest output: rounding differs from batch to batch."""


@dataclass(frozen=True)
class Laplace:
    """What `laplace` found."""

    samples: int
    noise_var: Tensor | None
    """variance of the residuals, one for each feature; None with a loss, or noise of the network"""
    prior_precision: dict[str, float]
    """by the name of the weight"""
    determined: float | None
    """how many directions of all weights together the data determines; None where not needed"""


def laplace(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: Loss | None = None,
    prior_precision: float | None = None,
    batch_dim: int = 0,
) -> Laplace:
    """Give the weights of `model` the variances of a diagonal Laplace approximation.

    The means stay. With h the curvature of the negative log likelihood summed over the data
    (`spgru.conversion.curvature`) the variance of a weight is 1 / (h + prior precision): what data
    has determined is nearly certain, what it never asked for is as uncertain as the prior.

    A network whose output is a value is taken to have Gaussian noise of the variance of its
    residuals; one that gives noise of its own (`spgru.nn.GaussianHead`) to have that. The residual
    noise is not added to the output: `spgru.calibrate(model, x, y)` does that, and better. A
    calibration that is there already belongs to other variances, and is taken out.

    Without `prior_precision` every weight matrix has the prior precision c / (mean square of its
    weights). Independent weights vary in directions that data has ruled out, and with the c of
    largest evidence a wide network drowns in it. So c is the one for which the expected loss rises
    by what it does under the whole Gauss-Newton posterior of largest evidence, half the number of
    directions that data determines (found from 512 gradients). See docs/mathematics.md.

    Args:
        model: built from our layers, or made by `spgru.convert`; Gaussian weights
        data: batches (input, target) that can be gone through several times, a DataLoader or a
            list; an input may be a tuple of several
        loss: negative log likelihood of what the model returns (means for Moments) and a target,
            summed over a batch, for instance `nn.CrossEntropyLoss(reduction="sum")`; None for a
            Gaussian one
        prior_precision: 1 / variance of the prior of every weight, around 0
        batch_dim: the dimension of inputs and targets along which there are samples
    """
    weights = _weights(model)
    if iter(data) is data:
        raise TypeError("data can be gone through once only; pass a DataLoader or a list")
    if prior_precision is not None and not prior_precision > 0:
        raise ValueError(f"prior_precision must be positive, got {prior_precision}")
    with evaluating(model):
        # A calibration scales the output, noise of its own included, and the curvature with it.
        with uncalibrated(model):
            problem = _Problem(model, weights, data, loss, batch_dim)
            curvature = problem.curvature()
            _warn_of_unused(curvature)
            if prior_precision is not None:
                precisions, determined = dict.fromkeys(weights, prior_precision), None
            else:
                precisions, determined = problem.find_precisions(curvature)
        uncalibrate(model)
        problem.set_variances(curvature, precisions)
    return Laplace(problem.samples, problem.noise, precisions, determined)


class _Problem:
    """A network, data and a likelihood."""

    def __init__(
        self, model: nn.Module, weights: Mapping[str, Weight], data: Iterable[Any],
        loss: Loss | None, batch_dim: int,
    ) -> None:  # fmt: skip
        self._model, self._weights, self._data = model, weights, data
        self._loss, self._batch_dim = loss, batch_dim
        self._means = {name: weight.moments().mean.detach() for name, weight in weights.items()}
        self.samples = self._batch_count = 0
        self.noise: Tensor | None = None
        self._look()

    def _batches(self) -> Iterator[Batch]:
        device = next(iter(self._means.values())).device
        for batch in self._data:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(
                    "data must give pairs (input, target); put several inputs into a tuple, "
                    "((x, lengths), y)"
                )
            inputs, target = batch
            yield Batch(tuple(part.to(device) for part in arguments_of(inputs)), target.to(device))

    def _look(self) -> None:
        """Count, and find the variance of the residuals for each feature."""
        total, count = None, 0
        for batch in self._batches():
            self.samples += batch.target.shape[self._batch_dim]
            self._batch_count += 1
            # A loss of the user's may know what to do with missing targets.
            _check_finite(batch, self._batch_count, self._loss is None)
            if self._batch_count == 1:
                _check_samples(self._model, batch, self._batch_dim)
            if self._loss is not None:
                continue
            with at_mean(self._model):
                mean, var = first_moments(self._model(*batch.inputs))
            _check_target(mean, batch.target)
            if not bool(mean.isfinite().all()):
                raise ValueError(
                    f"the network's output for batch {self._batch_count} of data is not finite; "
                    "look at its weights"
                )
            if bool((var > 0).all()):  # the network gives its noise itself
                continue
            squares = (batch.target - mean).square()
            squares = squares.flatten(0, -2) if squares.ndim > 1 else squares[:, None]
            total = squares.sum(0) if total is None else total + squares.sum(0)
            count += len(squares)
        if not self.samples:
            raise ValueError("data has no batches, or only empty ones")
        if total is not None:
            # A perfect fit would make every weight certain.
            self.noise = (total / count).clamp(min=torch.finfo(total.dtype).eps)

    @property
    def _vector(self) -> Vector:
        return likelihood_vector(self.noise) if self._loss is None else loss_vector(self._loss)

    def curvature(self) -> dict[str, Tensor]:
        total = {name: torch.zeros_like(mean) for name, mean in self._means.items()}
        for batch in self._batches():
            found = curvature_of(self._model, self._means, batch, self._vector, self._batch_dim)
            for name, part in found.items():
                total[name] += part
        if not all(bool(part.isfinite().all()) for part in total.values()):
            raise ValueError(
                "the gradients of the loss by the weights are not finite; look at the data for "
                "missing targets, and at the loss"
            )
        return total

    def set_variances(
        self, curvature: Mapping[str, Tensor], precisions: Mapping[str, float]
    ) -> None:
        for name, weight in self._weights.items():
            var = 1 / (curvature[name] + precisions[name])
            weight.set_(Moments(self._means[name], var))

    # -- the strength of the prior ------------------------------------------------------------

    def find_precisions(self, curvature: Mapping[str, Tensor]) -> tuple[dict[str, float], float]:
        scales = _scales(self._means)
        determined = self._determined(scales)
        with at_mean(self._model):
            least = self._expected_loss({})

        def precisions(strength: float) -> dict[str, float]:
            return {name: strength / scale for name, scale in scales.items()}

        low, high = _LEAST, _MOST
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            self.set_variances(curvature, precisions(middle))
            if self._expected_loss(curvature) - least > 0.5 * determined:
                low = middle
            else:
                high = middle
        return precisions(high), determined

    def _determined(self, scales: Mapping[str, float]) -> float:
        """The trace of H (H + c)^-1 for the c of largest evidence, c = trace / weights.

        H is the whole Gauss-Newton matrix by weights in units of their root mean square. Its
        eigenvalues are those of the products of the samples' gradients.
        """
        weights = sum(mean.numel() for mean in self._means.values())
        wanted = max(1, min(_ROWS, _ENTRIES // weights))
        rows: list[Tensor] = []
        taken = found = 0
        for batch in self._batches():
            # So many from this batch as bring it to the share of the batches seen; one at least.
            per_sample = found / taken if taken else 1.0
            here = math.ceil(wanted / self._batch_count / per_sample)
            here = min(here, batch.target.shape[self._batch_dim])
            part = _every(batch, here, self._batch_dim)
            options = self._vector, self._batch_dim, scales
            rows.append(gradient_rows(self._model, self._means, part, *options))
            taken, found = taken + here, found + len(rows[-1])
            if found >= wanted:
                break
        gradients = torch.cat(rows).double()
        values = torch.linalg.eigvalsh(gradients @ gradients.T).clamp(min=0)
        values = values * self.samples / taken
        trace = float(len(values))
        for _ in range(100):
            trace = (values / (values + trace / weights)).sum().item()
            if trace == 0:
                return 0.0
        return trace

    def _expected_loss(self, curvature: Mapping[str, Tensor]) -> float:
        """E of the negative log likelihood under the weights' distribution, in nats.

        Args:
            curvature: empty for certain weights
        """
        if self._loss is None:
            return sum(self._expected_nll(batch) for batch in self._batches())
        # Of a loss only the mean of the output is known to make sense; the rest by the curvature.
        total = sum(
            self._loss(means_of(self._model(*inputs)), target).item()
            for inputs, target in self._batches()
        )
        for name, part in curvature.items():
            total += 0.5 * (part * self._weights[name].moments().var).sum().item()
        return total

    def _expected_nll(self, batch: Batch) -> float:
        y, noise = first_moments(self._model(*batch.inputs)), self.noise
        var = y.var
        if noise is None:
            with at_mean(self._model):
                noise = first_moments(self._model(*batch.inputs)).var
            var = (var - noise).clamp(min=0)
        squared = ((batch.target - y.mean).square() + var) / noise
        return 0.5 * (squared + noise.log()).double().sum().item()


def _weights(model: nn.Module) -> dict[str, Weight]:
    weights = dict(named_weights(model))
    if not weights:
        raise ValueError(
            f"model ({type(model).__name__}) holds no random weights; make it by spgru.convert, or "
            "build it from spgru layers"
        )
    for name, weight in weights.items():
        if not weight.layer._stores_means:
            raise ValueError(
                f"{name} is not stored by its mean; use family='gaussian' and "
                "parameterization='moments'"
            )
    return weights


def _check_finite(batch: Batch, number: int, with_target: bool) -> None:
    parts = [("input", part) for part in batch.inputs]
    for name, part in [*parts, ("target", batch.target)] if with_target else parts:
        if part.is_floating_point() and not bool(part.isfinite().all()):
            raise ValueError(
                f"the {name} of batch {number} of data holds NaN or infinite values; leave those "
                "samples out, or fill what is missing"
            )


def _check_target(mean: Tensor, target: Tensor) -> None:
    if mean.shape != target.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)} but the output {tuple(mean.shape)}; make them "
            "alike, or pass loss= if the output is no value"
        )


def _check_samples(model: nn.Module, batch: Batch, dim: int) -> None:
    """Refuse outputs that depend on other samples: steps of time, of a layer that is time-major."""
    size = batch.target.shape[dim]
    parts = [batch.target, *batch.inputs]
    if size < 2 or any(part.ndim <= dim or part.shape[dim] != size for part in parts):
        return
    last = tuple(part.narrow(dim, size - 1, 1) for part in batch.inputs)
    with at_mean(model):
        together, alone = (outputs_of(model, inputs)[:1] for inputs in (batch.inputs, last))
    if not together or together[0].shape[dim : dim + 1] != (size,):
        return
    answer = together[0].narrow(dim, size - 1, 1)
    if not alone or alone[0].shape != answer.shape:
        return
    if (answer - alone[0]).abs().max() > _SAME * together[0].abs().max():
        raise ValueError(
            f"what the network answers to a sample depends on the others along dimension {dim}, "
            "which is time, it seems; pass batch_dim=, the dimension of inputs and targets along "
            "which samples are independent (1 for layers without batch_first)"
        )


def _warn_of_unused(curvature: Mapping[str, Tensor]) -> None:
    unused = [name for name, found in curvature.items() if not bool(found.any())]
    if unused:
        warnings.warn(
            f"the likelihood does not depend on {', '.join(unused)}, which keep their prior; of "
            "several outputs it is that of the first, unless loss= takes them all",
            stacklevel=3,
        )


def _scales(means: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean square of every weight; of one that is 0 throughout, a part of that of all."""
    squares = {name: mean.double().square() for name, mean in means.items()}
    count = sum(square.numel() for square in squares.values())
    least = 1e-2 * sum(square.sum().item() for square in squares.values()) / count
    least = least if least > 0 else 1.0
    return {name: max(square.mean().item(), least) for name, square in squares.items()}


def _every(batch: Batch, count: int, batch_dim: int) -> Batch:
    """So many samples, spread over the batch."""
    size = batch.target.shape[batch_dim]
    index = torch.arange(count, device=batch.target.device) * size // count
    inputs = tuple(part.index_select(batch_dim, index) for part in batch.inputs)
    return Batch(inputs, batch.target.index_select(batch_dim, index))
