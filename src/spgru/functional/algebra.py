"""Sums, products and gates of independent random tensors. All exact.

Plain tensors beside moments count as certain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional.activation import Rule
from spgru.moments import Moments, Value, promote

__all__ = ["add", "dropout", "lerp", "product", "sum"]


def add(a: Value, b: Value) -> Value:
    """Moments of A + B for independent A and B. Exact."""
    a, b = promote(a, b)
    if isinstance(a, Tensor):
        return a + b
    return Moments(a.mean + b.mean, a.var + b.var)


def sum(x: Value, dim: int | tuple[int, ...], keepdim: bool = False) -> Value:
    """Moments of the sum of independent entries along `dim`. Exact."""
    if isinstance(x, Tensor):
        return torch.sum(x, dim, keepdim)
    return Moments(torch.sum(x.mean, dim, keepdim), torch.sum(x.var, dim, keepdim))


def product(a: Value, b: Value) -> Value:
    """Moments of A B for independent A and B. Exact."""
    a, b = promote(a, b)
    if isinstance(a, Tensor):
        return a * b
    var = a.var * b.var + a.var * b.mean**2 + a.mean**2 * b.var
    return Moments(a.mean * b.mean, var)


def lerp(start: Value, end: Value, weight: Value, rule: Rule = "exact") -> Value:
    """Moments of (1 - Z) A + Z B, the state update, for independent A, B and Z. Exact.

    With A `start`, B `end`, Z `weight`. The two products share Z, so their covariance counts:

        var = (1 - z)^2 a.var + z^2 b.var + z.var (a.var + b.var + (a.mean - b.mean)^2)

    `rule="paper"` is Table 1 as printed, which weights by the gate's variance:
    var = (1 - z.var)^2 a.var + z.var^2 b.var.
    """
    start, end, weight = promote(start, end, weight)
    if isinstance(start, Tensor):
        # Under autocast gates come in 16 bits and the state in 32, which `torch.lerp` refuses.
        return start + weight * (end - start)
    difference = end.mean - start.mean
    mean = start.mean + weight.mean * difference
    if rule == "paper":
        return Moments(mean, (1 - weight.var) ** 2 * start.var + weight.var**2 * end.var)
    var = (
        (1 - weight.mean) ** 2 * start.var
        + weight.mean**2 * end.var
        + weight.var * (start.var + end.var + difference**2)
    )
    return Moments(mean, var)


def dropout(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """Moments of X after inverted dropout, with no mask drawn. Exact.

    The mask is 1/(1-p) with probability 1-p and else 0, so the mean stays and
    var = (x.var + p x.mean^2) / (1 - p). A plain tensor is dropped out for real.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p must lie in [0, 1), got {p}; with p = 1 nothing would be left")
    if isinstance(x, Tensor):
        return F.dropout(x, p, training)
    if not training or p == 0:
        return x
    return Moments(x.mean, (x.var + p * x.mean**2) / (1 - p))
