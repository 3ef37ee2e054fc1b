"""Sums, products and gates of independent random tensors. All exact.

Plain tensors beside moments count as certain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional.activation import Rule
from spgru.functional.remainder import leaves_remainder, note_remainder
from spgru.moments import Moments, Value, promote

__all__ = ["add", "coherent", "dropout", "lerp", "matmul", "mean", "product", "square", "sum"]

Dim = int | tuple[int, ...] | None


def add(a: Value, b: Value) -> Value:
    """Moments of A + B for independent A and B. Exact."""
    a, b = promote(a, b)
    if isinstance(a, Tensor):
        return a + b
    return Moments(a.mean + b.mean, a.var + b.var)


def sum(x: Value, dim: Dim = None, keepdim: bool = False) -> Value:
    """Moments of the sum of independent entries along `dim`, by default of all. Exact."""
    if isinstance(x, Tensor):
        return torch.sum(x, dim, keepdim)
    return Moments(torch.sum(x.mean, dim, keepdim), torch.sum(x.var, dim, keepdim))


def mean(x: Value, dim: Dim = None, keepdim: bool = False) -> Value:
    """Moments of the mean of independent entries along `dim`, by default of all. Exact."""
    if isinstance(x, Tensor):
        return torch.mean(x, dim, keepdim)
    average = torch.mean(x.mean, dim, keepdim)
    count = max(x.numel(), 1) / max(average.numel(), 1)
    return Moments(average, torch.mean(x.var, dim, keepdim) / count)


@leaves_remainder
def product(a: Value, b: Value) -> Value:
    """Moments of A B for independent A and B. Exact."""
    a, b = promote(a, b)
    if isinstance(a, Tensor):
        return a * b
    var = a.var * b.var + a.var * b.mean**2 + a.mean**2 * b.var
    return Moments(a.mean * b.mean, var)


@leaves_remainder
def square(x: Value) -> Value:
    """Moments of X^2 for Gaussian X. Exact."""
    if isinstance(x, Tensor):
        return torch.square(x)
    return Moments(x.mean**2 + x.var, 2 * x.var * (x.var + 2 * x.mean**2))


def matmul(a: Value, b: Value) -> Value:
    """Moments of the matrix product of independent A and B; shapes as of `torch.matmul`. Exact.

    Entries of the result that share a factor are correlated; their own moments are exact.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a @ b
    if isinstance(a, Tensor):
        return Moments(a @ b.mean, a**2 @ b.var)
    if isinstance(b, Tensor):
        return Moments(a.mean @ b, a.var @ b**2)
    result = Moments(a.mean @ b.mean, a.var @ (b.var + b.mean**2) + a.mean**2 @ b.var)
    note_remainder(result, a.var @ b.var)
    return result


@leaves_remainder
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


def coherent(updated: Value, gate: Value, state: Value, coherence: Tensor | None) -> Value:
    """Moments of Z H + N, given those for independent Z, H and N, where N goes along with H.

    `updated` is Z H + N, `gate` Z, `state` H; what comes in, N, regressed on H has the slope
    b (1 - Z), b the `coherence`:

        var += 2 b E[Z (1 - Z)] h.var

    Exact for a slope that is this one. With b between 0 and 1 no more than the whole of h.var is
    passed on, however often: E[Z^2] + 2 b E[Z (1 - Z)] <= 1.
    """
    if coherence is None or isinstance(updated, Tensor):
        return updated
    gate, state = promote(gate, state)
    if isinstance(gate, Tensor):
        return updated
    # Where a mean has been rounded to 0 or 1 its variance is left.
    share = (gate.mean * (1 - gate.mean) - gate.var).clamp(min=0)
    return Moments(updated.mean, updated.var + 2 * coherence.to(share) * share * state.var)


def dropout(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """Moments of X after inverted dropout, with no mask drawn. Exact.

    The mask is 1/(1-p) with probability 1-p and else 0, so the mean stays and
    var = (x.var + p x.mean^2) / (1 - p). With p = 1 nothing is left: certain zeros. For a plain
    tensor a random mask is drawn.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must lie in [0, 1], got {p}; it is the probability of dropping")
    if isinstance(x, Tensor):
        return F.dropout(x, p, training)
    if not training or p == 0:
        return x
    if p == 1:
        return Moments(x.mean * 0, x.var * 0)
    result = Moments(x.mean, (x.var + p * x.mean**2) / (1 - p))
    # The mask itself is noise, of which p x.mean^2 / (1 - p) is the first order.
    note_remainder(result, p * x.var / (1 - p))
    return result
