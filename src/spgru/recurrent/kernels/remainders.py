"""What first order leaves of the variance of a step, as a form of the gradients that come in.

Between its products with W a step acts unit by unit. So the gradient of an output by the mean of
any number inside the step is linear in the gradients that come in, by mean and variance of the new
state (of an LSTM also of its new cell: in this order, the columns below). The remainders of all
operations of the step (see `spgru.functional.remainder`), each times the square of its gradient,
therefore add up to a quadratic form: a few coefficients for every unit, computed once for all
outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.functional.activation import sigmoid
from spgru.moments import Moments

__all__ = ["Coefficients", "Values", "evaluate_forms", "remainder_forms"]


class Values(NamedTuple):
    """What a scan computed, rows in the order of steps; H units, some gates."""

    x_mean: Tensor
    """(rows, gates H): the products with the input"""
    x_var: Tensor
    p_mean: Tensor
    """(rows, gates H): those with the state, bias included"""
    p_var: Tensor
    h_mean: Tensor
    """(rows, H), before the step"""
    h_var: Tensor
    c_mean: Tensor | None
    """the cell of an LSTM"""
    c_var: Tensor | None


class Coefficients(NamedTuple):
    """What a step gives for a gradient of 1 in one place, which the first dimension counts."""

    x_mean: Tensor
    """(places, rows, gates H), rows in the order of steps"""
    x_var: Tensor
    p_mean: Tensor
    p_var: Tensor
    carried_mean: Tensor
    """(places, rows, H)"""
    carried_var: Tensor


_Source = tuple[Tensor, list[Any]]
"""A remainder (rows, H), and for each column the gradient by the mean of what it belongs to."""


def _squash(m: Tensor, v: Tensor) -> Moments:
    """Moments of the sigmoid, by C where it can be: torch takes longer than all the rest here."""
    from spgru.recurrent.kernels.native import library
    from spgru.recurrent.kernels.native.cells import SIGMOIDS

    if not m.is_cpu or library.obstacle() is not None:
        return sigmoid(Moments(m, v))
    m, v = m.contiguous(), v.contiguous()
    value, var = torch.empty_like(m), torch.empty_like(m)
    SIGMOIDS(mean=m, var=v, value=value, value_var=var, rows=m.numel(), size=1)
    return Moments(value + 0.5, var)


def _sigmoid(m: Tensor, v: Tensor) -> tuple[Moments, Tensor]:
    """Moments, and the remainder: the mean of the slope is mean (1 - mean) - var."""
    y = _squash(m, v)
    return y, y.var - (y.mean * (1 - y.mean) - y.var) ** 2 * v


def _tanh(m: Tensor, v: Tensor) -> tuple[Moments, Tensor]:
    s = _squash(2 * m, 4 * v)
    y = Moments(2 * s.mean - 1, 4 * s.var)
    return y, y.var - (1 - y.mean**2 - y.var) ** 2 * v


def _gru(a: Values, by: Coefficients) -> list[_Source]:
    size = a.h_mean.shape[-1]
    summed = [(x + p)[:, : 2 * size] for x, p in ((a.x_mean, a.p_mean), (a.x_var, a.p_var))]
    gates, rest = _sigmoid(*summed)
    r, z = gates.split(size, -1)
    p_mean, p_var = a.p_mean[:, 2 * size :], a.p_var[:, 2 * size :]
    product = r.var * p_var
    c, c_rest = _tanh(
        a.x_mean[:, 2 * size :] + r.mean * p_mean,
        a.x_var[:, 2 * size :] + product + r.var * p_mean**2 + r.mean**2 * p_var,
    )
    difference = a.h_mean - c.mean
    by_sum, by_sum_var = by.x_mean[..., 2 * size :], by.x_var[..., 2 * size :]
    by_z = [difference, 2 * (z.mean * a.h_var - (1 - z.mean) * c.var)]
    return [
        (z.var * (c.var + a.h_var), [1, 0]),
        (c_rest, [1 - z.mean, -2 * z.var * difference]),
        (rest[:, size:], by_z),
        (product, list(by_sum)),
        (rest[:, :size], list(by_sum * p_mean + 2 * by_sum_var * r.mean * p_var)),
    ]


def _lstm(a: Values, by: Coefficients) -> list[_Source]:
    assert a.c_mean is not None
    assert a.c_var is not None
    x = [(a.x_mean + a.p_mean), (a.x_var + a.p_var)]
    parts = [part.chunk(4, -1) for part in x]
    (i, i_rest), (f, f_rest), (o, o_rest) = (_sigmoid(parts[0][k], parts[1][k]) for k in (0, 1, 3))
    g, g_rest = _tanh(parts[0][2], parts[1][2])
    kept, added = f.var * a.c_var, i.var * g.var
    t, t_rest = _tanh(
        f.mean * a.c_mean + i.mean * g.mean,
        kept + f.var * a.c_mean**2 + f.mean**2 * a.c_var
        + added + i.var * g.mean**2 + i.mean**2 * g.var,
    )  # fmt: skip
    # Gradients by mean and variance of the new cell, from those that it hands to the old one.
    by_var = by.carried_var / (f.var + f.mean**2)
    by_mean = (by.carried_mean - 2 * by_var * f.var * a.c_mean) / f.mean
    return [
        (o.var * t.var, [1, 0, 0, 0]),
        (t_rest, [o.mean, 2 * o.var * t.mean, 0, 0]),
        (o_rest, [t.mean, 2 * o.mean * t.var, 0, 0]),
        (kept + added, list(by_mean)),
        (i_rest, list(by_mean * g.mean + 2 * by_var * i.mean * g.var)),
        (f_rest, list(by_mean * a.c_mean + 2 * by_var * f.mean * a.c_var)),
        (g_rest, list(by_mean * i.mean + 2 * by_var * i.var * g.mean)),
    ]


def _rnn(a: Values, by: Coefficients) -> list[_Source]:
    return [(_tanh(a.x_mean + a.p_mean, a.x_var + a.p_var)[1], [1, 0])]


_SOURCES = {"gru": _gru, "lstm": _lstm, "rnn": _rnn}


@torch.no_grad()
def remainder_forms(cell: str, a: Values, by: Coefficients, product_var: Tensor | None) -> Tensor:
    """(pairs, rows, H): coefficients of the products of two of the gradients that come in.

    Args:
        cell: its name
        product_var: (rows, gates H), the remainder of the products with the state, if it is wanted
    """
    size = a.h_mean.shape[-1]
    sources = _SOURCES[cell](a, by)
    if product_var is not None:
        pairs = zip(product_var.split(size, -1), by.p_mean.split(size, -1), strict=True)
        sources += [(var, list(slopes)) for var, slopes in pairs]
    columns = len(by.x_mean)
    forms = a.h_mean.new_zeros(columns * (columns + 1) // 2, *a.h_mean.shape)
    for var, slopes in sources:
        var = var.clamp(min=0)
        weighted = [var * slope for slope in slopes]
        number = 0
        for i in range(columns):
            for j in range(i, columns):
                forms[number].addcmul_(weighted[i], _as(slopes[j], var), value=1 if i == j else 2)
                number += 1
    return forms


def _as(slope: Any, like: Tensor) -> Tensor:
    return slope if isinstance(slope, Tensor) else like.new_tensor(float(slope))


def evaluate_forms(forms: Tensor, incoming: list[Tensor]) -> Tensor:
    """(n, K): the variance of each output, from gradients (n, K, H) that come in."""
    total: Tensor | float = 0.0
    pairs = iter(forms)
    for i, first in enumerate(incoming):
        for second in incoming[i:]:
            total = total + (next(pairs).unsqueeze(1) * first * second).sum(-1)
    assert isinstance(total, Tensor)
    return total
