"""Moments of the logistic of a Gaussian and their derivatives, as Triton functions.

The formulas are those of `spgru.functional.activation`, put into the form a GPU likes: scalars in
registers, no square root that would need care at variance 0, and all four derivatives from the sums
that the values need anyway. What comes out is centred, E sigmoid(X) - 1/2, an odd function of the
mean: half of a tanh, so that one function serves gates and candidate without losing digits.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from spgru.functional import activation
from spgru.functional.activation_constants import COSH, COSH_SLOPE, SCALED_ERFC

__all__ = ["logistic", "logistic_with_slopes"]

_COSH = tl.constexpr(COSH)
_COSH_SLOPE = tl.constexpr(COSH_SLOPE)
_LAST = tl.constexpr(len(COSH) - 1)
_ERFC = tl.constexpr(SCALED_ERFC)
_ERFC_LAST = tl.constexpr(len(SCALED_ERFC) - 1)

_HANDOVER = tl.constexpr(activation._HANDOVER)
_FARTHEST = tl.constexpr(activation._FARTHEST)
_SQUARED_NODES = tl.constexpr(tuple(node**2 for node in activation._NODES))
_NODE_WEIGHTS = tl.constexpr(activation._NODE_WEIGHTS)
_WIDTHS = tl.constexpr(activation._WIDTHS)
_WIDEST = tl.constexpr(activation._WIDTHS[-1])
_STEP_WEIGHTS = tl.constexpr(activation._STEP_WEIGHTS)
_SLOPE_WEIGHTS = tl.constexpr(activation._SLOPE_WEIGHTS)
_COUNT = tl.constexpr(len(activation._WIDTHS))
_ROOT_PI = tl.constexpr(1 / math.sqrt(math.pi))


@triton.jit
def _least(a, b):
    """The smaller one, and NaN where there is one: a GPU's own minimum would drop it."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _scaled_erfc(x):
    """exp(x^2) erfc(x) for x >= 0."""
    t = 2 / (2 + x)
    value = tl.full(x.shape, _ERFC[_ERFC_LAST], tl.float32)
    for k in tl.static_range(_ERFC_LAST):
        value = value * t + _ERFC[_ERFC_LAST - 1 - k]
    return value * t


@triton.jit
def _tanh_half(x):
    """tanh(x / 2) with its relative accuracy near 0, and sigmoid'(x)."""
    e = tl.exp(-tl.abs(x))
    half = 0.5 * x
    square = half * half
    series = 62 / 2835 * square - 17 / 315
    series = ((series * square + 2 / 15) * square - 1 / 3) * square + 1
    direct = (1 - e) / (1 + e)
    direct = tl.where(x < 0, -direct, direct)
    return tl.where(square < 0.0625, half * series, direct), e / ((1 + e) * (1 + e))


@triton.jit
def _near(mean, var):
    """T, E and the variance for var <= 1, by quadrature; the centred mean is T (1/2 - E).

    With T = tanh(mean / 2), g = sigmoid'(mean), and at every node c = cosh(d) - 1 and
    k = 1 / (1 + 2 g c), the damping, the mean of the even parts is -T E with E = g sum w c k, and
    the second moment about sigmoid(mean) is g^2 sum w k^2 c (2 + c (1 + T^2)).
    """
    t, g = _tanh_half(mean)
    both = 1 + t * t
    even = tl.zeros(mean.shape, tl.float32)
    second = tl.zeros(mean.shape, tl.float32)
    for i in tl.static_range(_COUNT):
        u = var * _SQUARED_NODES[i]
        c = tl.full(mean.shape, _COSH[_LAST], tl.float32)
        for k in tl.static_range(_LAST):
            c = c * u + _COSH[_LAST - 1 - k]
        c *= u
        damping = 1 / (1 + 2 * g * c)
        even += _NODE_WEIGHTS[i] * c * damping
        second += _NODE_WEIGHTS[i] * damping * damping * c * (2 + c * both)
    even *= g
    return t, even, g * g * second - t * t * even * even


@triton.jit
def _far(mean, var):
    """min(E sigmoid(X), 1 - E sigmoid(X)) and the variance for var >= 1, by the mixture."""
    extra = var - _HANDOVER
    distance = _least(tl.abs(mean), _FARTHEST * tl.sqrt(extra + _WIDEST))
    tail = tl.zeros(mean.shape, tl.float32)
    slope = tl.zeros(mean.shape, tl.float32)
    for k in tl.static_range(_COUNT):
        root = tl.rsqrt(2 * (extra + _WIDTHS[k]))
        scaled = distance * root
        bell = tl.exp(-scaled * scaled)
        tail += 0.5 * _STEP_WEIGHTS[k] * bell * _scaled_erfc(scaled)
        slope += _SLOPE_WEIGHTS[k] * _ROOT_PI * bell * root
    return tail, tail * (1 - tail) - slope


@triton.jit
def logistic(mean, var, centred: tl.constexpr = True):
    """E sigmoid(X) and Var sigmoid(X) for X ~ N(mean, var), float32.

    Args:
        centred: the mean less 1/2, as gates and tanh want it; without, very small means keep their
            digits
    """
    t, even, result = _near(mean, _least(var, _HANDOVER))
    if centred:
        value = t * (0.5 - even)
    else:
        e = tl.exp(-tl.abs(mean))
        value = tl.where(mean > 0, 1.0, e) / (1 + e) - t * even
    is_far = var > _HANDOVER
    # Mostly no variance is large, and then a whole block saves half the work.
    if tl.max(is_far.to(tl.int32)) > 0:
        tail, far_result = _far(mean, tl.maximum(var, _HANDOVER))
        low: tl.constexpr = -0.5 if centred else 0.0
        value = tl.where(is_far, tl.where(mean > 0, 1 + low - tail, low + tail), value)
        result = tl.where(is_far, far_result, result)
    return value, result


@triton.jit
def _near_slopes(mean, var):
    """`_near`, and the derivatives of both by mean and by variance, in this order."""
    t, g = _tanh_half(mean)
    tt = t * t
    both = 1 + tt
    even = tl.zeros(mean.shape, tl.float32)
    even_by_g = tl.zeros(mean.shape, tl.float32)
    even_by_var = tl.zeros(mean.shape, tl.float32)
    second = tl.zeros(mean.shape, tl.float32)
    second_by_g = tl.zeros(mean.shape, tl.float32)
    second_by_tt = tl.zeros(mean.shape, tl.float32)
    second_by_var = tl.zeros(mean.shape, tl.float32)
    for i in tl.static_range(_COUNT):
        u = var * _SQUARED_NODES[i]
        c = tl.full(mean.shape, _COSH[_LAST], tl.float32)
        rise = tl.full(mean.shape, _COSH_SLOPE[_LAST], tl.float32)
        for k in tl.static_range(_LAST):
            c = c * u + _COSH[_LAST - 1 - k]
            rise = rise * u + _COSH_SLOPE[_LAST - 1 - k]
        c *= u
        rise *= _SQUARED_NODES[i]
        damping = 1 / (1 + 2 * g * c)
        weighted = _NODE_WEIGHTS[i] * damping * damping
        term = c * (2 + c * both)
        even += _NODE_WEIGHTS[i] * c * damping
        even_by_g += weighted * c
        even_by_var += weighted * rise
        second += weighted * term
        second_by_g += weighted * damping * term
        second_by_tt += weighted * c * c
        second_by_var += weighted * rise * (2 + 2 * c * both - 4 * g * damping * term)
    even *= g
    even_by_mean = -g * t * even_by_g
    even_by_var *= g
    result = g * g * second - tt * even * even
    by_mean = (
        -2 * g * g * t * second_by_g
        + 4 * g * g * g * t * second_by_tt
        - 4 * t * g * even * even
        - 2 * tt * even * even_by_mean
    )
    by_var = g * g * second_by_var - 2 * tt * even * even_by_var
    return (
        t * (0.5 - even), result,
        g * (1 - 2 * even) - t * even_by_mean, -t * even_by_var,
        by_mean, by_var,
    )  # fmt: skip


@triton.jit
def _far_slopes(mean, var):
    """`_far`, and the derivatives of both by mean and by variance, in this order."""
    extra = var - _HANDOVER
    distance = _least(tl.abs(mean), _FARTHEST * tl.sqrt(extra + _WIDEST))
    tail = tl.zeros(mean.shape, tl.float32)
    tail_rise = tl.zeros(mean.shape, tl.float32)
    tail_by_var = tl.zeros(mean.shape, tl.float32)
    slope = tl.zeros(mean.shape, tl.float32)
    slope_fall = tl.zeros(mean.shape, tl.float32)
    slope_by_var = tl.zeros(mean.shape, tl.float32)
    for k in tl.static_range(_COUNT):
        root = tl.rsqrt(2 * (extra + _WIDTHS[k]))
        scaled = distance * root
        bell = tl.exp(-scaled * scaled)
        density = _ROOT_PI * bell * root
        tail += 0.5 * _STEP_WEIGHTS[k] * bell * _scaled_erfc(scaled)
        tail_rise += _STEP_WEIGHTS[k] * density
        tail_by_var += _STEP_WEIGHTS[k] * density * scaled * root
        slope += _SLOPE_WEIGHTS[k] * density
        slope_fall += _SLOPE_WEIGHTS[k] * density * 2 * scaled * root
        slope_by_var += _SLOPE_WEIGHTS[k] * density * root * root * (2 * scaled * scaled - 1)
    side = tl.where(mean > 0, 1.0, -1.0)
    inner = 1 - 2 * tail
    return (
        side * (0.5 - tail), tail * (1 - tail) - slope,
        tail_rise, -side * tail_by_var,
        side * (slope_fall - inner * tail_rise), inner * tail_by_var - slope_by_var,
    )  # fmt: skip


@triton.jit
def logistic_with_slopes(mean, var):
    """`logistic` and its derivatives.

    Returns:
        centred, variance, centred by mean, centred by var, variance by mean, variance by var
    """
    a, b, a_m, a_v, b_m, b_v = _near_slopes(mean, _least(var, _HANDOVER))
    is_far = var > _HANDOVER
    if tl.max(is_far.to(tl.int32)) > 0:
        far = _far_slopes(mean, tl.maximum(var, _HANDOVER))
        a = tl.where(is_far, far[0], a)
        b = tl.where(is_far, far[1], b)
        a_m = tl.where(is_far, far[2], a_m)
        a_v = tl.where(is_far, far[3], a_v)
        b_m = tl.where(is_far, far[4], b_m)
        b_v = tl.where(is_far, far[5], b_v)
    return a, b, a_m, a_v, b_m, b_v
