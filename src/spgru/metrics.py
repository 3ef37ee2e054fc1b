"""How good is a Gaussian prediction: likelihood, scores, coverage, calibration, ranking.

`prediction` are moments and `target` the observed values, both of the same shape. The scores come
back elementwise, to be averaged as one likes. Where the prediction or the target is NaN, so is the
score, and a figure over all entries is NaN if one of them is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from spgru.checks import check_probabilities
from spgru.moments import Moments

__all__ = [
    "CalibrationCurve",
    "ause",
    "calibration_curve",
    "calibration_error",
    "coverage",
    "cross_entropy_per_frame",
    "crps",
    "gaussian_nll",
    "interval_score",
    "mean_squared_z",
    "similarity_per_frame",
    "spearman",
    "variance_error_correlation",
]

_LEVELS = tuple(k / 20 for k in range(1, 20))


def _check(prediction: Moments, target: Tensor) -> None:
    # A tensor of two rows would be unpacked as mean and variance.
    if not isinstance(prediction, Moments):
        raise TypeError(
            f"prediction must be Moments, got {type(prediction).__name__}; pass what the model "
            "gives, or Moments(mean, var), before the target"
        )
    _check_target("prediction", prediction, target)


def _check_frames(pixels: Moments | Tensor, target: Tensor) -> None:
    if not isinstance(pixels, (Moments, Tensor)):
        raise TypeError(
            f"pixels must be Moments or a Tensor, got {type(pixels).__name__}; pass what the model "
            "gives"
        )
    _check_target("pixels", pixels, target)


def _check_target(name: str, prediction: Moments | Tensor, target: Tensor) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target must be a Tensor, got {type(target).__name__}; pass the observed values after "
            f"{name}"
        )
    if prediction.shape != target.shape:
        raise ValueError(
            f"{name} has shape {tuple(prediction.shape)} but target {tuple(target.shape)}; "
            "they must be equal"
        )


def gaussian_nll(prediction: Moments, target: Tensor) -> Tensor:
    """-log N(y; mean, var) in nats. Exact. (*shape)

    Where the variance is 0: infinite, -inf on a hit and +inf on a miss.
    """
    _check(prediction, target)
    return -prediction.log_prob(target)


def crps(prediction: Moments, target: Tensor) -> Tensor:
    """Continuous ranked probability score, in units of the target. Exact. (*shape)

    The integral of (F(x) - [x >= y])^2 over x, F being the predicted distribution function. With d
    the error and z = d / std: d (2 Phi(z) - 1) + std (2 phi(z) - 1 / sqrt(pi)), and |d| where the
    variance is 0.
    """
    _check(prediction, target)
    mean, var = prediction
    certain = var == 0  # not `var > 0`, which a NaN would fail and then count as certain
    std = torch.where(certain, 1.0, var).sqrt()
    d = target - mean
    z = d / std
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    score = d * torch.erf(z / math.sqrt(2)) + std * (2 * density - 1 / math.sqrt(math.pi))
    return torch.where(certain, d.abs(), score)


def interval_score(prediction: Moments, target: Tensor, level: float = 0.95) -> Tensor:
    """Score of the central interval [l, u] of that level, in units of the target. (*shape)

    u - l + 2 / (1 - level) times the distance by which the target lies outside (Gneiting and
    Raftery 2007): least, in expectation, for the interval that holds with that probability.
    """
    _check(prediction, target)
    lower, upper = prediction.interval(level)
    missed = (lower - target).clamp(min=0) + (target - upper).clamp(min=0)
    return upper - lower + 2 / (1 - level) * missed


def mean_squared_z(prediction: Moments, target: Tensor) -> Tensor:
    """Mean of z^2, squared error over variance. A scalar: 1 is right, above 1 too sure.

    A certain prediction that is met counts as 0, one that is missed as infinite.
    """
    _check(prediction, target)
    squared = (target - prediction.mean) ** 2
    met = (squared == 0) & (prediction.var == 0)
    return torch.where(met, 0.0, squared / prediction.var).mean()


def ause(prediction: Moments, target: Tensor) -> Tensor:
    """Area under the sparsification error (Ilg et al. 2018). A scalar from 0, the best ranking.

    Entries are left out one by one, those of the largest variance first; the mean absolute error of
    the rest is compared with that when those of the largest error go first, in units of the error
    of all, and averaged over how many are left. Entries of equal variance share their error.

    Reads values: on a GPU the host waits.
    """
    _check(prediction, target)
    signed = target - prediction.mean  # floating point, if targets are counts
    error = signed.abs().flatten().double()
    var = prediction.var.flatten()
    if error.numel() == 0:
        raise ValueError("target is empty; pass at least one entry")
    _, group, counts = torch.unique(var, return_inverse=True, return_counts=True)
    shared = torch.zeros_like(counts, dtype=error.dtype).index_add(0, group, error) / counts
    left = torch.arange(1, len(error) + 1, device=error.device)
    by_var = shared[group.sort().values].cumsum(0) / left
    by_error = error.sort().values.cumsum(0) / left
    whole = error.mean()
    area = torch.where(whole == 0, 0.0, (by_var - by_error).mean() / whole)
    unknown = error.isnan().any() | var.isnan().any()
    return torch.where(unknown, torch.nan, area).to(signed.dtype)


def _needed_level(prediction: Moments, target: Tensor) -> Tensor:
    """Level of the central interval whose bound is the target: 2 Phi(|z|) - 1. (*shape)"""
    _check(prediction, target)
    error = (target - prediction.mean).abs()
    # 0 / 0 where a certain prediction is met exactly.
    met = (error == 0) & (prediction.var == 0)
    z = torch.where(met, 0.0, error / prediction.std)
    return torch.erf(z / math.sqrt(2))


def _share(inside: Tensor, *known: Tensor) -> Tensor:
    """Mean of a condition, NaN if it rests on a NaN somewhere (which compares as false)."""
    unknown = torch.stack([part.isnan().any() for part in known]).any()
    return torch.where(unknown, torch.nan, inside.double().mean())


def coverage(prediction: Moments, target: Tensor, level: float = 0.95) -> Tensor:
    """Share of targets within the central interval of that level. A scalar."""
    _check(prediction, target)
    lower, upper = prediction.interval(level)
    share = _share((lower <= target) & (target <= upper), lower, upper, target)
    return share.to(torch.promote_types(target.dtype, prediction.dtype))


class CalibrationCurve(NamedTuple):
    """Nominal against observed coverage; a calibrated prediction lies on the diagonal."""

    levels: Tensor
    """(L,)"""
    observed: Tensor
    """(L,)"""


def calibration_curve(
    prediction: Moments, target: Tensor, levels: Sequence[float] = _LEVELS
) -> CalibrationCurve:
    """Observed coverage of central intervals at every level, by default 0.05, 0.10, ..., 0.95."""
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie between 0 and 1, got {list(levels)}")
    needed = _needed_level(prediction, target)
    observed = [_share(needed <= level, needed) for level in levels]
    nominal = torch.tensor(levels, dtype=torch.float64, device=target.device)
    return CalibrationCurve(nominal, torch.stack(observed))


def calibration_error(
    prediction: Moments, target: Tensor, levels: Sequence[float] = _LEVELS
) -> Tensor:
    """Mean distance between nominal and observed coverage. A scalar: 0 is calibrated, 1/2 worst."""
    nominal, observed = calibration_curve(prediction, target, levels)
    return (nominal - observed).abs().mean()


def cross_entropy_per_frame(pixels: Moments | Tensor, target: Tensor) -> Tensor:
    """-sum over pixels of y log p + (1 - y) log(1 - p), p the mean: nats per frame. (T, B)

    The measure of the published Moving MNIST tables; its least value is the entropy of the target.
    A pixel predicted to be certain counts as wrong with half the spacing of its floating-point
    numbers, so that a miss is costly but finite.

    Args:
        pixels: (T, B, height, width), in [0, 1]
        target: (T, B, height, width), in [0, 1]
    """
    _check_frames(pixels, target)
    check_probabilities("target", target)
    mean = pixels if isinstance(pixels, Tensor) else pixels.mean
    mean = mean.to(torch.promote_types(mean.dtype, torch.float32))
    least = torch.finfo(mean.dtype).eps / 2
    p = mean.clamp(least, 1 - least)
    return -(target * p.log() + (1 - target) * torch.log1p(-p)).sum((-2, -1))


def similarity_per_frame(
    pixels: Moments | Tensor, target: Tensor, data_range: float = 1.0, window: int = 7
) -> Tensor:
    """Structural similarity (Wang et al. 2004) of the mean: 1 is equal, 0 unlike. (T, B)

    Of every window of `window` pixels squared that lies within the frame, with means m, variances v
    and covariance c over its pixels (divided by their number less one),

        (2 m1 m2 + k1) (2 c + k2) / ((m1^2 + m2^2 + k1) (v1 + v2 + k2)),

    k1 = (0.01 R)^2 and k2 = (0.03 R)^2 for values with a range of R, averaged over the windows.
    These are scikit-image's defaults. Its default range for floating point was 2 up to version
    0.19, and published tables of Moving MNIST (OpenSTL) were made so: they are met by
    `data_range=2`, which gives more than 1, the range that frames have.

    Args:
        pixels: (T, B, height, width), in [0, 1]
        target: (T, B, height, width), in [0, 1]
        data_range: R
        window: odd, at most height and width
    """
    _check_frames(pixels, target)
    if target.ndim != 4 or min(target.shape[-2:]) < window:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; pass (T, B, height, width) with at least "
            f"{window} pixels each way"
        )
    # A window of one value has variance 0 to within rounding, which k2 must outweigh.
    mean = (pixels if isinstance(pixels, Tensor) else pixels.mean).double()
    truth = target.double()
    products = torch.stack([mean, truth, mean * mean, truth * truth, mean * truth], 2)
    m1, m2, s1, s2, s12 = avg_pool2d(products.flatten(0, 1), window, stride=1).unbind(1)
    unbiased = window**2 / (window**2 - 1)
    k1, k2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    alike = (2 * m1 * m2 + k1) * (2 * unbiased * (s12 - m1 * m2) + k2)
    most = (m1**2 + m2**2 + k1) * (unbiased * (s1 - m1**2 + s2 - m2**2) + k2)
    return (alike / most).mean((-2, -1)).reshape(target.shape[:2])


def _ranks(x: Tensor) -> Tensor:
    """Ranks from 1, ties sharing their mean rank. (N,)"""
    _, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    ranks: Tensor = (last - 0.5 * (counts - 1)).double()[inverse]
    return ranks


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of two samples (N,), ties by mean rank.

    NaN if one is constant or holds a NaN.

    Reads values: on a GPU the host waits.
    """
    for name, sample in (("a", a), ("b", b)):
        if not isinstance(sample, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(sample).__name__}; pass a vector")
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ValueError(
            f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; pass two vectors of equal "
            "length, at least 2"
        )
    ranks = torch.stack([_ranks(a), _ranks(b)])
    centred = ranks - ranks.mean(1, keepdim=True)
    x, y = centred
    correlation = torch.dot(x, y) / torch.sqrt(torch.dot(x, x) * torch.dot(y, y))
    # A NaN would otherwise be ranked as a value like any other.
    return torch.where(a.isnan().any() | b.isnan().any(), torch.nan, correlation)


def variance_error_correlation(prediction: Moments, target: Tensor) -> Tensor:
    """Does the variance know where the error is? Spearman's correlation over the sequences.

    Between the predicted variance of a sequence, summed over frames and pixels, and its true
    squared error, summed likewise. A scalar in [-1, 1].

    Args:
        prediction: (T, B, height, width), pixel values
        target: (T, B, height, width)
    """
    _check(prediction, target)
    if target.ndim < 2:
        raise ValueError(f"target has {target.ndim} dimensions; pass (T, B, ...)")
    error = (target - prediction.mean) ** 2
    per_sequence = [x.transpose(0, 1).flatten(1).double().sum(1) for x in (prediction.var, error)]
    return spearman(*per_sequence)
