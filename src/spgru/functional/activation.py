"""Mean and variance of sigmoid and tanh of a Gaussian.

The sigmoid is the root of everything here, since tanh(x) = 2 sigmoid(2x) - 1. With X ~ N(m, v):

*v <= 1.*  Gauss-Hermite quadrature on sigmoid(X) - sigmoid(m), written so that nothing cancels
and everything is smooth in v: both moments are exact at v = 0, and the variance is a sum of
squares that keeps its relative accuracy (1e-5 for |m| <= 5) down to the smallest v.

*v >= 1.*  Smoothed over a variance of 1 or more, the sigmoid is a sum of six normal distribution
functions to 3e-7, and each of those has an exact Gaussian integral. The identity
sigmoid^2 = sigmoid - sigmoid' then gives the variance from the mean and the mean slope. The
constants obey an inequality that makes this difference positive; nothing is clamped.

docs/mathematics.md derives both; tools/fit_logistic_mixture.py derives the constants.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spgru.checks import has_triton, is_readable, is_transformed
from spgru.functional import paper
from spgru.functional.precision import at_least_float32
from spgru.functional.remainder import leaves_remainder
from spgru.moments import Moments, Value

__all__ = ["Rule", "sigmoid", "tanh"]

Rule = Literal["exact", "paper"]

# Twelve-point Gauss-Hermite: symmetric, so six positive nodes, their weights doubled.
_ALL_NODES, _ALL_WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_NODES = tuple(_ALL_NODES[6:].tolist())
_NODE_WEIGHTS = tuple((2 * _ALL_WEIGHTS[6:] / _ALL_WEIGHTS.sum()).tolist())

# Output of tools/fit_logistic_mixture.py, largest error 2.3e-7. The widths are variances.
_WIDTHS = (
    1.9900414679164742, 3.0711206219450333, 5.193367111491028,
    9.24186976348962, 17.1905786788296, 24.462230376898297,
)  # fmt: skip
_STEP_WEIGHTS = (
    0.11944601030097811, 0.434719272772612, 0.35355891620601926,
    0.08875120882800541, 0.0035032118275095977, 2.1380064875414948e-05,
)  # fmt: skip
_SLOPE_WEIGHTS = (
    0.11938607158673988, 0.43487667822766934, 0.35340245358196126,
    0.08881256763576044, 0.0035216068405864304, 0.0,
)  # fmt: skip

_HANDOVER = 1.0  # the variance at which the first form hands over to the second
# Standard deviations of the widest Gaussian beyond which its tail, below 1e-35, counts as flat:
# float32 ends soon after, and terms that underflow one by one would not keep their order.
_FARTHEST = 11.6


_columns: dict[tuple[Any, ...], list[Tensor]] = {}


def _columns_like(like: Tensor, *constants: tuple[float, ...]) -> list[Tensor]:
    """Constants along a new first dimension that broadcasts against `like`."""
    # What is made inside a transform (vmap, grad), a compiler or a fake mode belongs to it and
    # must not outlive it, so the cache is for ordinary tensors only.
    if is_transformed(like):
        return _make_columns(like, constants)
    key = (constants, like.dtype, like.device, like.ndim)
    columns = _columns.get(key)
    if columns is None:
        # Outside inference mode, so that what is kept may later take part in a backward pass.
        with torch.inference_mode(False):
            columns = _columns[key] = _make_columns(like, constants)
    return columns


def _make_columns(like: Tensor, constants: tuple[tuple[float, ...], ...]) -> list[Tensor]:
    shape = (-1, *[1] * like.ndim)
    options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
    if torch.compiler.is_exporting():
        # As operations: torch.export refuses tensors created from numbers inside its scan.
        return [
            torch.stack([torch.full((), value, **options) for value in values]).view(shape)
            for values in constants
        ]
    return [torch.tensor(values, **options).view(shape) for values in constants]


def _sigmoid_near(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """E sigmoid(X) - sigmoid(mean), and Var sigmoid(X), for var <= 1.

    With p = sigmoid(m), q = 1 - p, g = p q and a node at distance d = sqrt(v) xi,
    sigmoid(m +- d) - sigmoid(m) = even +- odd, where for c = cosh(d) - 1

        even = g (q - p) c / (1 + 2 g c),    odd = g sinh(d) / (1 + 2 g c).
    """
    p, q = torch.sigmoid(mean), torch.sigmoid(-mean)
    g = p * q
    nodes, weights = _columns_like(var, _NODES, _NODE_WEIGHTS)
    # cosh(d) - 1 = d^2/2 (sinh(d/2) / (d/2))^2 is smooth in v. The last factor is 1 to rounding
    # long before v reaches 1e-18, and stopping there keeps 1/d out of its gradient.
    half = nodes * (0.5 * var.clamp(min=1e-18).sqrt())
    c = nodes**2 * (0.5 * var) * (torch.sinh(half) / half) ** 2
    scale = g / (1 + 2 * g * c)
    even = scale * c * (q - p)
    odd_squared = scale**2 * c * (c + 2)
    shift = (weights * even).sum(0)
    return shift, (weights * ((even - shift) ** 2 + odd_squared)).sum(0)


def _sigmoid_far(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """min(E sigmoid(X), 1 - E sigmoid(X)), and Var sigmoid(X), for var >= 1."""
    widths, step_weights, slope_weights = _columns_like(var, _WIDTHS, _STEP_WEIGHTS, _SLOPE_WEIGHTS)
    width = widths + (var - _HANDOVER)
    # `where`, not `abs`: at mean = 0 the mean must keep its slope.
    distance = torch.where(mean > 0, mean, -mean)
    distance = torch.minimum(distance, _FARTHEST * width[-1].sqrt())
    scaled = distance * torch.rsqrt(2 * width)
    tail = (0.5 * step_weights * torch.erfc(scaled)).sum(0)
    density = torch.exp(-(scaled**2)) * torch.rsqrt(2 * math.pi * width)
    slope = (slope_weights * density).sum(0)
    return tail, tail * (1 - tail) - slope


def _one_kernel_does(x: Moments) -> bool:
    """Whether a GPU can do it in one pass over the data, and one for the gradient."""
    return (
        x.mean.is_cuda
        and x.mean.dtype == x.var.dtype == torch.float32
        and x.mean.shape == x.var.shape
        and not is_transformed(x)
        and has_triton()
    )


def _scaled_sigmoid(x: Moments, certain: Tensor, scale: float, low: float) -> Moments:
    """Moments of low + scale * sigmoid(X); `certain` is its value without variance."""
    near = x.var <= _HANDOVER
    # Each form sees only variances from its own range, so the other's gradient stays finite.
    shift, var = _sigmoid_near(x.mean, x.var.clamp(max=_HANDOVER))
    mean = certain + scale * shift
    # Mostly all variances are small. Looking is free on the CPU; a GPU would wait for the answer.
    if not (is_readable(near) and bool(near.all())):
        tail, far_var = _sigmoid_far(x.mean, x.var.clamp(min=_HANDOVER))
        far_mean = torch.where(x.mean > 0, low + scale - scale * tail, low + scale * tail)
        mean, var = torch.where(near, mean, far_mean), torch.where(near, var, far_var)
    return Moments(mean, scale**2 * var)


def squash_by_torch(x: Moments, is_tanh: bool) -> Moments:
    """Moments of sigmoid(X) or tanh(X), as torch's own operations."""
    if is_tanh:
        doubled = Moments(2 * x.mean, 4 * x.var)
        return _scaled_sigmoid(doubled, torch.tanh(x.mean), scale=2, low=-1)
    return _scaled_sigmoid(x, torch.sigmoid(x.mean), scale=1, low=0)


def _squash(x: Moments, is_tanh: bool) -> Moments:
    if _one_kernel_does(x):
        from spgru.functional.kernels.squash import squash

        return Moments(*squash(x.mean, x.var, is_tanh))
    return squash_by_torch(x, is_tanh)


@leaves_remainder
@at_least_float32
def sigmoid(x: Value, rule: Rule = "exact") -> Value:
    """Moments of sigmoid(X) for Gaussian X.

    `"exact"`: within 4e-7 of the true mean and variance, exact at variance 0, variance never
    negative. `"paper"`: the printed approximation, see `spgru.functional.paper`.
    """
    if isinstance(x, Tensor):
        return torch.sigmoid(x)
    if rule == "paper":
        return paper.sigmoid(x)
    return _squash(x, is_tanh=False)


@leaves_remainder
@at_least_float32
def tanh(x: Value, rule: Rule = "exact") -> Value:
    """Moments of tanh(X) = 2 sigmoid(2X) - 1 for Gaussian X. Within 2e-6; else as `sigmoid`."""
    if isinstance(x, Tensor):
        return torch.tanh(x)
    if rule == "paper":
        return paper.tanh(x)
    return _squash(x, is_tanh=True)
