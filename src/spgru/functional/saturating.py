"""The activation of positive networks, f(x) = c (1 - exp(-gamma x)), for Gamma and Poisson inputs.

Both moments follow from the moment generating function. Each is written so that no two nearly
equal numbers are subtracted and the limit of no variance is reached exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spgru.functional.precision import at_least_float32
from spgru.moments import Moments, Value

__all__ = ["gamma_activation", "poisson_activation"]


def _log1p_ratio(x: Tensor) -> Tensor:
    """log(1 + x) / x for x >= 0, with its limit 1 at 0."""
    small = x < 1e-3
    # Each branch sees only its own arguments, so that neither spoils the other's gradient.
    near, far = torch.where(small, x, 0.0), torch.where(small, 1.0, x)
    series = 1 - near * (1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near / 6))))
    return torch.where(small, series, torch.log1p(far) / far)


def _saturate(x: Tensor, c: float, gamma: float) -> Tensor:
    return -c * torch.expm1(-gamma * x)


@at_least_float32
def gamma_activation(x: Value, c: float = 1.0, gamma: float = 1.0) -> Value:
    """Moments of c (1 - exp(-gamma X)) for X Gamma distributed with the given moments. Exact.

    With shape a = m^2/v, rate b = m/v and y = gamma/b:

        mean = c (1 - (1+y)^-a),     var = c^2 ((1+2y)^-a - (1+y)^-2a)

    and the difference is (1+2y)^-a (1 - exp(-a log(1 + y^2/(1+2y)))), in which every factor is
    positive. X must be positive, or 0 with certainty.
    """
    if isinstance(x, Tensor):
        return _saturate(x, c, gamma)
    # Far below 1e30 nothing depends on y any more, and infinity would give 0 / 0.
    y = (gamma * x.var / torch.where(x.mean > 0, x.mean, 1.0)).clamp(max=1e30)
    log_first = gamma * x.mean * _log1p_ratio(y)  # a log(1+y)
    log_second = 2 * gamma * x.mean * _log1p_ratio(2 * y)  # a log(1+2y)
    excess = gamma**2 * x.var / (1 + 2 * y) * _log1p_ratio(y * (y / (1 + 2 * y)))
    var = -(c**2) * torch.exp(-log_second) * torch.expm1(-excess)
    return Moments(-c * torch.expm1(-log_first), var)


@at_least_float32
def poisson_activation(x: Value, c: float = 1.0, gamma: float = 1.0) -> Value:
    """Moments of c (1 - exp(-gamma X)) for X Poisson distributed with mean x.mean. Exact.

    With k = 1 - exp(-gamma): mean = c (1 - exp(-k m)) and
    var = c^2 exp(-(1 - exp(-2 gamma)) m) (1 - exp(-k^2 m)).
    A Poisson has one parameter, so x.var is not used.
    """
    if isinstance(x, Tensor):
        return _saturate(x, c, gamma)
    once, twice = -math.expm1(-gamma), -math.expm1(-2 * gamma)
    var = -(c**2) * torch.exp(-twice * x.mean) * torch.expm1(-(once**2) * x.mean)
    return Moments(-c * torch.expm1(-once * x.mean), var)
