"""Truth that owes nothing to the code under test: quadrature, mpmath, Monte Carlo."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from spgru import Moments

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": expit,
    "tanh": np.tanh,
}


def gaussian_moments(name: str, mean: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f(X), X ~ N(mean, std^2), to about 1e-14.

    The trapezoidal rule converges like exp(-2 pi d / h) for a pole at distance d from the real
    axis; sigmoid's is at pi / std and tanh's at half of that, so h * std = 0.25 leaves nothing.
    """
    f = FUNCTIONS[name]
    step = min(0.1, 0.25 / std)
    z = np.arange(-9.5, 9.5, step)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    # Centred on f(mean), so that a small spread keeps its digits.
    centred = f(mean[:, None] + std * z) - f(mean)[:, None]
    shift = centred @ weights
    return f(mean) + shift, ((centred - shift[:, None]) ** 2) @ weights


def mpmath_moments(name: str, mean: float, std: float) -> tuple[float, float]:
    """The same by adaptive quadrature in 40 digits."""
    with mpmath.workdps(40):
        f = {
            "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
            "tanh": mpmath.tanh,
            "relu": lambda x: max(x, mpmath.mpf(0)),
        }[name]
        breaks = sorted({-12.0, -6.0, -2.0, 2.0, 6.0, 12.0, max(-12.0, min(12.0, -mean / std))})

        def expect(g: Callable[[mpmath.mpf], mpmath.mpf]) -> mpmath.mpf:
            def density(z: mpmath.mpf) -> mpmath.mpf:
                return g(mean + std * z) * mpmath.npdf(z)

            return mpmath.quad(density, breaks) / mpmath.quad(mpmath.npdf, breaks)

        first = expect(f)
        return float(first), float(expect(lambda x: (f(x) - first) ** 2))


def assert_monte_carlo(samples: Tensor, moments: Moments, sigmas: float = 5.0) -> None:
    """`moments` agree with `samples` (draws first) within their standard errors."""
    samples = samples.double()
    count = len(samples)
    mean, var = samples.mean(0), samples.var(0)
    mean_error = (var / count).sqrt()
    fourth = ((samples - mean) ** 4).mean(0)
    var_error = ((fourth - var**2).clamp(min=0) / count).sqrt()
    torch.testing.assert_close(
        ((moments.mean - mean).abs() <= sigmas * mean_error + 1e-12), torch.ones_like(mean).bool()
    )
    torch.testing.assert_close(
        ((moments.var - var).abs() <= sigmas * var_error + 1e-12), torch.ones_like(mean).bool()
    )
    # The bound must be tight enough to notice an error of a few percent.
    assert (sigmas * var_error / var).median() < 0.05


def draw(moments: Moments, count: int) -> Tensor:
    """(count, *shape) Gaussian draws."""
    noise = torch.randn(count, *moments.shape, dtype=moments.dtype)
    return moments.mean + moments.std * noise


def random_moments(*shape: int, scale: float = 1.0) -> Moments:
    return Moments(
        torch.randn(*shape, dtype=torch.float64),
        scale * torch.rand(*shape, dtype=torch.float64),
    )


def resident_kilobytes() -> int:
    """Memory held right now (a high-water mark would hide a leak below an earlier peak)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
