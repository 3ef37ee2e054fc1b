"""Mean and variance of normalised entries, whose own mean and variance over features are random.

For independent Gaussian X_i with means m_i and variances v_i, i = 1 to N, `layer_norm` is
Z_i = U_i / sqrt(S), U_i = X_i - mean X and S = mean U^2 + eps. S is a mean over many entries and so
varies little around its expectation, about which it is expanded:

    s = E S = mean (m - mean m)^2 + (1 - 1/N) mean v + eps
    E Z    = a (1 + 3/8 R) - k/2
    Var Z  = c + a^2 R / 4 - a k   +   c R - (2/N) b

with a = (m - mean m) / sqrt(s), r = v / s, and the exact moments of U and S

    c_i = Var U_i / s           = (1 - 2/N) r_i + mean r / N
    k_i = Cov(U_i, S) / s^(3/2) = 2 (a_i r_i - mean (a r)) / N
    R   = Var S / s^2           = (2 (1 - 2/N) mean r^2 + 2 (mean r)^2 / N + 4 mean (a^2 r)) / N
    b_i = sum_j Cov(U_i, U_j)^2 / s^2
        = (1 - 3/N) r_i^2 + 2 r_i mean r / N + (mean r^2 - (mean r)^2) / N

The first three terms of the variance are of first order in U and S, which makes them positive; the
last two are E[U^2 / S] - E[U / sqrt S]^2 of second order, and vanish where the means are equal and
the variances too. The sum of E Z^2 is N for eps = 0, as it must be. At v = 0 it is torch's function
and its slope. docs/mathematics.md has the measured error, which falls with N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional import algebra
from spgru.functional.precision import at_least_float32
from spgru.functional.remainder import note_remainder
from spgru.moments import Moments

__all__ = ["batch_norm", "layer_norm", "normalize_features"]


@at_least_float32
def normalize_features(x: Any, normalized_shape: Sequence[int], eps: float = 1e-5) -> Any:
    """Moments of `F.layer_norm` without weights, for independent Gaussian X; see above.

    Args:
        x: (*batch, *normalized_shape)
    """
    shape = tuple(normalized_shape)
    if isinstance(x, Tensor):
        return F.layer_norm(x, shape, eps=eps)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)} but normalized_shape is {shape}; pass (..., "
            f"{', '.join(map(str, shape))})"
        )
    dims = tuple(range(-len(shape), 0))
    n = math.prod(shape)

    def average(values: Tensor) -> Tensor:
        return values.mean(dims, keepdim=True)

    deviation = x.mean - average(x.mean)
    s = average(deviation**2) + (1 - 1 / n) * average(x.var) + eps
    a, r = deviation * s.rsqrt(), x.var / s
    mean_r, mean_square = average(r), average(r**2)
    c = (1 - 2 / n) * r + mean_r / n
    k = 2 / n * (a * r - average(a * r))
    spread = (2 * (1 - 2 / n) * mean_square + 2 / n * mean_r**2 + 4 * average(a**2 * r)) / n
    b = (1 - 3 / n) * r**2 + 2 / n * r * mean_r + (mean_square - mean_r**2) / n
    # Positive but for rounding; so is c, which is a variance.
    first = (c + a**2 * spread / 4 - a * k).clamp(min=0)
    second = c * spread - 2 / n * b
    # Where a single uncertain entry decides about S, the second order may exceed the first.
    var = torch.where(second < -first / 2, first / 2, first + second)
    result = Moments(a * (1 + 0.375 * spread) - k / 2, var)
    # What sum_j (da_i / dm_j)^2 v_j leaves; da_i / dm_j = (1[i = j] - (1 + a_i a_j) / N) / sqrt s.
    note_remainder(result, var - (c - a * k + a**2 / n * average(a**2 * r)))
    return result


def layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Moments of `F.layer_norm`, for independent Gaussian X; see `normalize_features`.

    Args:
        x: (*batch, *normalized_shape)
        weight: normalized_shape; Moments or Tensor
        bias: likewise
    """
    result = normalize_features(x, normalized_shape, eps)
    result = result if weight is None else algebra.product(result, weight)
    return result if bias is None else algebra.add(result, bias)


def batch_norm(
    x: Any, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Moments of `F.batch_norm` by running statistics, a linear map of every channel. Exact.

    Args:
        x: (B, C, *positions)
    """
    if isinstance(x, Tensor):
        return F.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps
        )  # fmt: skip
    if training or running_mean is None or running_var is None:
        raise TypeError(
            "batch normalisation by the statistics of a batch of Moments has no rule; call "
            "module.eval(), which takes the running ones, or use nn.LayerNorm"
        )
    mean = F.batch_norm(x.mean, running_mean, running_var, weight, bias, eps=eps)
    scale = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    return Moments(mean, x.var * (scale**2).view(-1, *[1] * (x.ndim - 2)))
