"""The activations as printed in the SP-GRU paper, kept for reproduction and comparison only.

They treat the sigmoid as one normal distribution function, and its square as another. Both are a
little off, and the variance is their small difference: at variance 0 it still reads up to 0.027
for the sigmoid and 0.108 for tanh. Rounding alone can make it negative, and is undone.
docs/errata.md lists the misprints resolved here.
"""

from __future__ import annotations

import math

import torch

from spgru.moments import Moments

_ZETA_SQUARED = math.pi / 8  # sigmoid(x) ~ Phi(zeta x): equal slopes at 0
_NU = 4 - 2 * math.sqrt(2)  # sigmoid(x)^2 ~ sigmoid(nu (x + omega)):
_OMEGA = -math.log(math.sqrt(2) + 1)  # equal value and slope where sigmoid^2 = 1/2


def sigmoid(x: Moments) -> Moments:
    """The main text, Section 3.2."""
    mean = torch.sigmoid(x.mean / torch.sqrt(1 + _ZETA_SQUARED * x.var))
    argument = _NU * (x.mean + _OMEGA) / torch.sqrt(1 + _ZETA_SQUARED * _NU**2 * x.var)
    return Moments(mean, (torch.sigmoid(argument) - mean**2).clamp(min=0))


def tanh(x: Moments) -> Moments:
    """tanh(x) = 2 sigmoid(2x) - 1 applied to `sigmoid`, which is what the appendix arrives at."""
    inner = sigmoid(Moments(2 * x.mean, 4 * x.var))
    return Moments(2 * inner.mean - 1, 4 * inner.var)
