"""Activations by quadrature and in closed form, against adaptive quadrature in 20 digits.

Over the whole range against Gauss's rule in float64, which is held against those 20 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from scipy.special import expit, ndtr

import spgru.functional as F
from spgru import Moments

TRUTH: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: x * mpmath.ncdf(x),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "elu": lambda x: x if x > 0 else mpmath.expm1(x),
    "leaky_relu": lambda x: x if x > 0 else x / 100,
    "exp": mpmath.exp,
}
PLAIN = {name: getattr(torch if name == "exp" else TF, name) for name in TRUTH}
# Bounds of the docstrings: of the mean by max(1, s) and of the variance by max(1, v).
BOUNDS = {
    "gelu": (3e-7, 6e-6),
    "silu": (2e-6, 2e-6),
    "softplus": (4e-7, 4e-7),
    "elu": (4e-7, 4e-7),
}
EXACT = ("leaky_relu", "exp")
every = pytest.mark.parametrize("name", TRUTH)
SMOOTH = pytest.mark.parametrize("name", BOUNDS)


NUMERIC: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: x * ndtr(x),
    "silu": lambda x: x * expit(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


def pieces(mean: float, std: float) -> list[float]:
    """Where to cut the range of z, so that the function is smooth on the scale of each piece."""
    bend = -mean / std
    near = [bend + c / std for c in (-40, -10, -3, 0, 3, 10, 40)]
    return sorted({-12.0, -5.0, 0.0, 5.0, 12.0} | {z for z in near if -12 < z < 12})


def true_moments(f: Callable[[Any], Any], mean: float, std: float) -> tuple[float, float]:
    cuts = pieces(mean, std)

    def expect(g: Callable[[Any], Any]) -> Any:
        return mpmath.quad(lambda z: g(mean + std * z) * mpmath.npdf(z), cuts)

    with mpmath.workdps(20):
        first = expect(f)
        return float(first), float(expect(lambda x: (f(x) - first) ** 2))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def gauss_moments(f: Callable[[Any], Any], mean: float, std: float) -> tuple[float, float]:
    """The same by 80 nodes a piece in float64."""
    cuts = np.array(pieces(mean, std))
    middle, half = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts) / 2
    z = middle[:, None] + half[:, None] * NODES
    weights = half[:, None] * WEIGHTS * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    # Centred on f(mean), so that a small spread keeps its digits.
    centre = f(np.array(mean))
    centred = f(mean + std * z) - centre
    shift = (weights * centred).sum()
    return float(centre + shift), float((weights * (centred - shift) ** 2).sum())


@SMOOTH
@pytest.mark.parametrize(("mean", "std"), [(-4.0, 1e-5), (0.7, 0.3), (-1.3, 2.7), (15.0, 60.0)])
def test_the_oracle_itself(name: str, mean: float, std: float) -> None:
    found, wanted = gauss_moments(NUMERIC[name], mean, std), true_moments(TRUTH[name], mean, std)
    # Measured 7e-10 where the variance is 3e-17, 2e-11 elsewhere.
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-18)


def pair(mean: float, std: float) -> Moments:
    return Moments(*torch.tensor([mean, std**2], dtype=torch.float64))


@SMOOTH
@pytest.mark.parametrize("mean", [-20.0, -4.0, -1.3, 0.0, 0.7, 3.0, 15.0])
@pytest.mark.parametrize("std", [1e-5, 0.01, 0.3, 1.0, 2.7, 8.0, 60.0])
def test_error_is_within_its_bound(name: str, mean: float, std: float) -> None:
    got = getattr(F, name)(pair(mean, std))
    want_mean, want_var = gauss_moments(NUMERIC[name], mean, std)
    mean_bound, var_bound = BOUNDS[name]
    assert abs(got.mean.item() - want_mean) < mean_bound * max(1, std)
    assert abs(got.var.item() - want_var) < var_bound * max(1, std**2)
    if std <= 0.01 and abs(mean) < 5:
        # Small variances keep their relative accuracy: measured 2e-8.
        assert got.var.item() == pytest.approx(want_var, rel=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.01), (-2.0, 0.7), (1.0, 1.5), (-4.0, 2.0)])
@pytest.mark.parametrize("name", EXACT)
def test_exact_forms(name: str, mean: float, std: float) -> None:
    got = getattr(F, name)(pair(mean, std))
    want_mean, want_var = true_moments(TRUTH[name], mean, std)
    # The oracle's range ends at 12 standard deviations.
    assert got.mean.item() == pytest.approx(want_mean, rel=1e-10)
    assert got.var.item() == pytest.approx(want_var, rel=1e-10)


@pytest.mark.parametrize("bound", [-1.0, 0.0, 2.5])
def test_clamp_is_exact(bound: float) -> None:
    for options, f in (
        ({"min": bound}, lambda x: max(x, mpmath.mpf(bound))),
        ({"max": bound}, lambda x: min(x, mpmath.mpf(bound))),
    ):
        # The oracle cuts where its argument is 0: there the bend has to be.
        want = true_moments(lambda x, f=f: f(x + bound), 0.4 - bound, 1.3)
        got = F.clamp(pair(0.4, 1.3), **options)
        assert [got.mean.item(), got.var.item()] == pytest.approx(want, rel=1e-9)
    with pytest.raises(TypeError, match="give one of min and max"):
        F.clamp(pair(0.0, 1.0), -1, 1)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zero_variance_is_the_function_itself(name: str, dtype: torch.dtype) -> None:
    mean = torch.linspace(-60, 60, 2401).to(dtype)
    out = getattr(F, name)(Moments(mean, torch.zeros_like(mean)))
    want = PLAIN[name](mean.double() if name in BOUNDS else mean)
    # leaky_relu is written as a sum of two parts, which rounds once more.
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0} if name == "leaky_relu" else {}
    torch.testing.assert_close(out.mean, want.to(dtype), **tolerance or {"rtol": 0, "atol": 0})
    assert torch.equal(out.var, torch.zeros_like(mean))


@every
def test_plain_tensors_stay_plain(name: str) -> None:
    x = torch.randn(50)
    assert torch.equal(getattr(F, name)(x), PLAIN[name](x))


@every
def test_gradient_at_zero_variance(name: str) -> None:
    """d mean / d v = f'' / 2 and d var / d v = f'^2: the first terms of the series in v."""
    m = torch.linspace(-8, 8, 32, dtype=torch.float64).requires_grad_()  # without 0
    v = torch.zeros_like(m, requires_grad=True)
    f = PLAIN[name](m)
    (first,) = torch.autograd.grad(f.sum(), m, create_graph=True)
    second = (
        torch.autograd.grad(first.sum(), m, retain_graph=True)[0] if name != "leaky_relu" else 0
    )
    out = getattr(F, name)(Moments(m, v))
    (mean_slope,) = torch.autograd.grad(out.mean.sum(), v, retain_graph=True)
    (var_slope,) = torch.autograd.grad(out.var.sum(), v)
    torch.testing.assert_close(mean_slope, second / 2 + 0 * m, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(var_slope, first**2, rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("v", [1e-4, 0.3, 1.0, 7.0])
def test_gradcheck(name: str, v: float) -> None:
    m = torch.tensor([-6.0, -3.0, -0.5, 0.1, 0.7, 2.0, 5.0], dtype=torch.float64)
    inputs = (m.requires_grad_(), torch.full_like(m, v).requires_grad_())
    # By quadrature the slope is that of the integral, the difference that of its approximation.
    tolerance = 2e-5 * max(1, v) if name in BOUNDS else 1e-5
    assert torch.autograd.gradcheck(
        lambda m, v: (*getattr(F, name)(Moments(m, v)),), inputs, atol=tolerance, rtol=1e-4
    )


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_negative_and_gradients_finite(name: str, dtype: torch.dtype) -> None:
    count = 20_000
    largest = 3 if name != "exp" else 0  # exp(10^3) would rightly be infinite
    size = 10 ** (torch.rand(count, dtype=torch.float64) * (largest + 5) - 5)
    mean = torch.where(torch.rand(count) < 0.5, -size, size).to(dtype)
    var = (10 ** (torch.rand(count, dtype=torch.float64) * (largest + 20) - 20)).to(dtype)
    var[:100] = 0
    m, v = mean.requires_grad_(), var.requires_grad_()
    out = getattr(F, name)(Moments(m, v))
    for part in out:
        assert torch.isfinite(part).all()
        for gradient in torch.autograd.grad(part.sum(), (m, v), retain_graph=True):
            assert torch.isfinite(gradient).all()
    assert (out.var >= 0).all()
    assert (out.var[:100] == 0).all()


def test_exp_beyond_the_range_of_numbers() -> None:
    """No variance stays none, and what is too large is infinite, not NaN."""
    mean, var = torch.tensor([1000.0, 80.0, -2000.0]), torch.tensor([0.0, 90.0, 800.0])
    out = F.exp(Moments(mean, var))
    assert out.mean.tolist() == [torch.inf, torch.inf, 0.0]
    assert out.var.tolist() == [0.0, torch.inf, 0.0]


def test_softplus_with_beta() -> None:
    got = F.softplus(pair(0.4, 1.2), beta=2.5)
    want = true_moments(lambda x: mpmath.log1p(mpmath.exp(2.5 * x)) / 2.5, 0.4, 1.2)
    assert [got.mean.item(), got.var.item()] == pytest.approx(want, abs=4e-7)


def test_what_has_no_rule_says_so() -> None:
    x = pair(0.0, 1.0)
    with pytest.raises(TypeError, match="approximate='tanh' has no rule"):
        F.gelu(x, approximate="tanh")
    with pytest.raises(TypeError, match="alpha=2 has no rule"):
        F.elu(x, alpha=2)
    with pytest.raises(ValueError, match=r"negative_slope must lie in \[0, 1\]"):
        F.leaky_relu(x, -0.1)
    with pytest.raises(ValueError, match="beta must be positive"):
        F.softplus(x, beta=0.0)
