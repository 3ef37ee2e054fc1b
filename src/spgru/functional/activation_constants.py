"""Constants of the sigmoid for kernels, which evaluate cosh and erfc themselves.

The constants that kernels share with the reference stand in `spgru.functional.activation`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

__all__ = ["COSH", "COSH_SLOPE", "SCALED_ERFC"]

_TERMS = 12

COSH = tuple(1 / math.factorial(2 * k) for k in range(1, _TERMS + 1))
"""cosh(sqrt(u)) - 1 = sum_k u^k / (2k)!, as many terms as its largest argument needs in float32"""
COSH_SLOPE = tuple(k / math.factorial(2 * k) for k in range(1, _TERMS + 1))
"""of its derivative by u"""


def _fit_scaled_erfc(degree: int) -> tuple[float, ...]:
    series = np.polynomial.Chebyshev.interpolate(
        lambda t: torch.special.erfcx(torch.from_numpy(2 / t - 2)).numpy() / t,
        degree,
        domain=[1e-9, 1],
    )
    return tuple(series.convert(kind=np.polynomial.Polynomial).coef.tolist())


SCALED_ERFC = _fit_scaled_erfc(11)
"""exp(x^2) erfc(x) / t as a polynomial in t = 2 / (2 + x), lowest power first"""
