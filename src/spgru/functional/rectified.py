"""Mean and variance of functions with one bend: relu, leaky relu, one-sided clamp. All exact."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional.activation_constants import SCALED_ERFC
from spgru.functional.precision import at_least_float32
from spgru.functional.remainder import leaves_remainder
from spgru.moments import Moments, Value

__all__ = ["clamp", "leaky_relu", "relu"]

# Standard deviations beyond which a Gaussian's tail is 0 in float64 too.
_NO_TAIL = 40.0


def _scaled_erfc(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x) for x >= 0."""
    if not torch.onnx.is_in_onnx_export():
        found: Tensor = torch.special.erfcx(x)
        return found
    # ONNX has no such function, and torch's exporter writes the product, which is infinity times 0
    # from x = 9.4 on.
    t = 2 / (2 + x)
    total = torch.zeros_like(t)
    for coefficient in reversed(SCALED_ERFC):
        total = total * t + coefficient
    return total * t


def _relu(x: Moments) -> tuple[Moments, Tensor]:
    """Moments of max(X, 0), and its covariance with X, which is v P(X > 0); see `relu`."""
    # Where 0 is out of reach the function is linear; there t would overflow.
    bent = x.mean**2 < _NO_TAIL**2 * x.var
    mean, var = torch.where(bent, x.mean, 0.0), torch.where(bent, x.var, 1.0)
    std = var.sqrt()
    t = torch.where(mean > 0, mean, -mean) / std
    phi = torch.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
    # phi times Mills' ratio Q/phi: the differences below lose digits but not their sign.
    mills = math.sqrt(math.pi / 2) * _scaled_erfc(t / math.sqrt(2))
    small_mean = phi * (1 - t * mills)
    small_var = phi * ((1 + t**2) * mills - t) - small_mean**2
    linear_part = torch.where(mean > 0, 1 - 2 * phi * mills, 0.0)
    share = torch.where(mean > 0, 1 - phi * mills, phi * mills)
    straight_var = torch.where(x.mean > 0, x.var, 0.0)
    rectified = Moments(
        torch.relu(x.mean) + torch.where(bent, std * small_mean, 0.0),
        torch.where(bent, var * (small_var + linear_part), straight_var),
    )
    return rectified, torch.where(bent, var * share, straight_var)


@leaves_remainder
@at_least_float32
def relu(x: Value) -> Value:
    """Moments of max(X, 0) for Gaussian X. Exact.

    With t = |m| / s, Q the upper tail and phi the density of the standard normal at t, the side
    m <= 0 has mean s (phi - t Q) and variance v ((1 + t^2) Q - t phi - (phi - t Q)^2); the side
    m > 0 follows from max(X, 0) = X + max(-X, 0), which adds m and v (1 - 2 Q).
    Where the variance is 0 the result is certain and the gradient with respect to it is taken as 0
    below and at m = 0 (where the true one is infinite).
    """
    if isinstance(x, Tensor):
        return torch.relu(x)
    return _relu(x)[0]


@leaves_remainder
@at_least_float32
def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """Moments of max(X, 0) + a min(X, 0) = a X + (1 - a) max(X, 0) for Gaussian X. Exact.

    With R = max(X, 0), whose covariance with X is v P(X > 0):
    var = a^2 v + (1 - a)^2 Var R + 2 a (1 - a) v P(X > 0), no term of which is negative.

    Args:
        negative_slope: a, between 0 and 1
    """
    if isinstance(x, Tensor):
        return F.leaky_relu(x, negative_slope)
    a = negative_slope
    if not 0 <= a <= 1:
        raise ValueError(f"negative_slope must lie in [0, 1], got {a}")
    rectified, covariance = _relu(x)
    var = a**2 * x.var + (1 - a) ** 2 * rectified.var + 2 * a * (1 - a) * covariance
    return Moments(a * x.mean + (1 - a) * rectified.mean, var)


@leaves_remainder
@at_least_float32
def clamp(x: Value, min: float | None = None, max: float | None = None) -> Value:
    """Moments of X kept above `min` or below `max`, for Gaussian X. Exact.

    It is `relu` of X - min, or of max - X. Moments take one bound only: with two the variance
    would be a difference of nearly equal numbers.
    """
    if isinstance(x, Tensor):
        return torch.clamp(x, min, max)
    if min is not None and max is None:
        above = _relu(Moments(x.mean - min, x.var))[0]
        return Moments(above.mean + min, above.var)
    if max is not None and min is None:
        below = _relu(Moments(max - x.mean, x.var))[0]
        return Moments(max - below.mean, below.var)
    raise TypeError(f"give one of min and max for Moments, got min={min} and max={max}")
