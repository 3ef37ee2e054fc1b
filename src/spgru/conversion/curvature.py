"""How sharply data determines every weight: the diagonal of the Gauss-Newton matrix.

For a likelihood N(y; m, s) with m (and the noise s, where the network gives it) functions of the
weights, the expected second derivative of the negative log likelihood by a weight is

    h = sum over samples and outputs of (dm/dw)^2 / s + (d log s / dw)^2 / 2

which for linear regression is the exact one. With a loss of the user's it is the sum over samples
of the squared gradient, the empirical Fisher information, which is the same in expectation if the
loss is a negative log likelihood and the network true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from spgru.moments import Moments
from spgru.moments.nested import first_moments
from spgru.nn.contexts import at_mean

__all__ = [
    "Batch", "Vector", "chunks", "curvature_of", "gradient_rows", "likelihood_vector",
    "loss_vector", "means_of",
]  # fmt: skip

_EXACT = 16
"""Outputs of a sample up to this number are differentiated one by one; of more, so many random
signs are, which is right on average over the samples."""
_ENTRIES = 2**25
"""Gradients that are held at a time."""


class Batch(NamedTuple):
    """Inputs that the network is called with, and targets."""

    inputs: tuple[Tensor, ...]
    target: Tensor


Vector = Callable[[Any, Tensor], Tensor]
"""From what the network gives for one sample, and its target, to what is differentiated."""


def likelihood_vector(noise: Tensor | None) -> Vector:
    """Means in units of their noise; noise None for that of the network itself."""

    def vector(output: Any, _: Tensor) -> Tensor:
        mean, var = first_moments(output)
        if noise is not None:
            return (mean / noise.sqrt()).flatten()
        parts = mean / var.detach().sqrt(), var.log() / 2**0.5
        return torch.cat([part.flatten() for part in parts])

    return vector


def loss_vector(loss: Callable[[Any, Tensor], Tensor]) -> Vector:
    return lambda output, target: loss(means_of(output), target).reshape(1)


def means_of(output: Any) -> Any:
    """The same structure with means for Moments."""
    return pytree.tree_map(
        lambda part: part.mean if isinstance(part, Moments) else part,
        output,
        is_leaf=lambda part: isinstance(part, Moments),
    )


def curvature_of(
    module: nn.Module, means: Mapping[str, Tensor], batch: Batch, vector: Vector, batch_dim: int
) -> dict[str, Tensor]:
    """h of every weight, summed over the samples of a batch.

    Args:
        means: of the weights, by name
    """
    total = {name: torch.zeros_like(mean) for name, mean in means.items()}
    for gradients in _gradients(module, means, batch, vector, batch_dim):
        for name, rows in gradients.items():
            total[name] += rows.square().sum(0)
    return total


def gradient_rows(
    module: nn.Module, means: Mapping[str, Tensor], batch: Batch, vector: Vector, batch_dim: int,
    scales: Mapping[str, float],
) -> Tensor:  # fmt: skip
    """(rows, weights): gradients of all samples, by weights in units of these mean squares."""
    parts = [
        torch.cat([rows.flatten(1) * scales[name] ** 0.5 for name, rows in gradients.items()], 1)
        for gradients in _gradients(module, means, batch, vector, batch_dim)
    ]
    return torch.cat(parts)


def _gradients(
    module: nn.Module, means: Mapping[str, Tensor], batch: Batch, vector: Vector, batch_dim: int
) -> Iterator[dict[str, Tensor]]:
    """(rows, *shape of the weight), as many samples at a time as memory takes."""

    def of_sample(inputs: tuple[Tensor, ...], target: Tensor, probes: Tensor) -> dict[str, Tensor]:
        alone = tuple(part.unsqueeze(batch_dim) for part in inputs)

        def run(values: Mapping[str, Tensor]) -> Tensor:
            # All weights are given. Where torch ties them by name, a module that is used twice has
            # two, and the value of the second would stay in place of the weight.
            output = functional_call(module, dict(values), alone, tie_weights=False)
            return vector(output, target.unsqueeze(batch_dim))

        pull: Any = vjp(run, dict(means))[1]
        gradients: dict[str, Tensor] = vmap(pull)(probes)[0]
        return gradients

    with at_mean(module):
        count = _outputs(module, batch, vector, batch_dim)
        each = min(count, _EXACT) * sum(mean.numel() for mean in means.values())
        for part in chunks(batch, max(1, _ENTRIES // each), batch_dim):
            size = part.target.shape[batch_dim]
            probes = _probes(count, size, part.target.device, next(iter(means.values())).dtype)
            yield from _of_samples(of_sample, part, probes, batch_dim)


def _of_samples(
    of_sample: Callable[..., dict[str, Tensor]], batch: Batch, probes: Tensor, batch_dim: int
) -> list[dict[str, Tensor]]:
    """All samples at once; one by one where the network cannot be mapped over samples."""
    try:
        dims = (batch_dim, batch_dim, 0)
        found = vmap(of_sample, in_dims=dims)(*batch, probes)
    except (RuntimeError, ValueError):  # it writes in place, or branches on values
        inputs = zip(*(part.unbind(batch_dim) for part in batch.inputs), strict=True)
        samples = zip(inputs, batch.target.unbind(batch_dim), probes, strict=True)
        return [of_sample(*sample) for sample in samples]
    return [{name: rows.flatten(0, 1) for name, rows in found.items()}]


def _outputs(module: nn.Module, batch: Batch, vector: Vector, batch_dim: int) -> int:
    """How many numbers of a sample are differentiated."""
    one = next(chunks(batch, 1, batch_dim))
    with torch.no_grad():
        return vector(module(*one.inputs), one.target).numel()


def _probes(count: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(size, probes, count): every output alone, or random signs that stand for all of them"""
    if count <= _EXACT:
        return torch.eye(count, device=device, dtype=dtype).expand(size, -1, -1)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (size, _EXACT, count), generator=generator)
    # The sum of squares over all signs has the expectation of `_EXACT` times the sum over outputs.
    probes: Tensor = (signs * 2 - 1).to(device=device, dtype=dtype) / math.sqrt(_EXACT)
    return probes


def chunks(batch: Batch, size: int, batch_dim: int) -> Iterator[Batch]:
    count = batch.target.shape[batch_dim]
    for start in range(0, count, size):
        length = min(size, count - start)
        inputs = tuple(part.narrow(batch_dim, start, length) for part in batch.inputs)
        yield Batch(inputs, batch.target.narrow(batch_dim, start, length))
