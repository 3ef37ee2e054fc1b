from __future__ import annotations

import functools

import mpmath
import pytest
import torch

import spgru.functional as F
from spgru import Moments

# mean, variance of the input; c and gamma of the activation
GAMMA_CASES = [
    (1.0, 0.5, 1.0, 1.0),
    (0.01, 1e-6, 1.0, 1.0),
    (3.0, 1e-12, 0.7, 2.0),
    (0.2, 5.0, 1.0, 1.0),
    (40.0, 90.0, 0.9, 0.05),
    (2.0, 1e-9, 1.0, 0.3),
]
POISSON_CASES = [(1e-6, 1.0, 1.0), (0.3, 1.0, 1.0), (2.0, 0.7, 2.0), (25.0, 1.0, 0.1)]


def pair(mean: float, var: float) -> Moments:
    return Moments(torch.tensor(mean, dtype=torch.float64), torch.tensor(var, dtype=torch.float64))


@pytest.mark.parametrize(("mean", "var", "c", "gamma"), GAMMA_CASES)
def test_gamma_against_numerical_integration(
    mean: float, var: float, c: float, gamma: float
) -> None:
    with mpmath.workdps(60):
        shape, rate = mpmath.mpf(mean) ** 2 / mpmath.mpf(var), mpmath.mpf(mean) / mpmath.mpf(var)
        std = mpmath.sqrt(mpmath.mpf(var))
        constant = shape * mpmath.log(rate) - mpmath.loggamma(shape)

        @functools.cache  # three integrals have the same nodes
        def density(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(constant + (shape - 1) * mpmath.log(x) - rate * x)

        # Around the bulk; a small shape has a pole at 0 that the logarithm's substitution removes.
        low = max(mpmath.mpf(mean) - 30 * std, mpmath.mpf(0))
        high = mpmath.mpf(mean) + (30 * std if shape > 100 else 200 / rate)

        def expect(g: object) -> mpmath.mpf:
            if low > 0:
                grid = [low + (high - low) * k / 24 for k in range(25)]
                return mpmath.quad(lambda x: g(x) * density(x), grid)
            ends = [
                mpmath.log(high) - 400 / min(shape, 1),
                *(mpmath.log(high) - k for k in range(40, -1, -1)),
            ]
            return mpmath.quad(
                lambda u: g(mpmath.exp(u)) * density(mpmath.exp(u)) * mpmath.exp(u), ends
            )

        def f(x: mpmath.mpf) -> mpmath.mpf:
            return -c * mpmath.expm1(-mpmath.mpf(gamma) * x)

        assert expect(lambda x: 1) == pytest.approx(1, abs=1e-20)
        want_mean = expect(f)
        want_var = expect(lambda x: (f(x) - want_mean) ** 2)
    got = F.gamma_activation(pair(mean, var), c, gamma)
    assert got.mean.item() == pytest.approx(float(want_mean), rel=1e-9)
    assert got.var.item() == pytest.approx(float(want_var), rel=1e-9)


@pytest.mark.parametrize(("rate", "c", "gamma"), POISSON_CASES)
def test_poisson_against_summation(rate: float, c: float, gamma: float) -> None:
    with mpmath.workdps(60):
        masses = [
            mpmath.exp(k * mpmath.log(rate) - rate - mpmath.loggamma(k + 1)) for k in range(400)
        ]
        values = [-c * mpmath.expm1(-mpmath.mpf(gamma) * k) for k in range(400)]
        want_mean = mpmath.fdot(masses, values)
        want_var = mpmath.fdot(masses, [(value - want_mean) ** 2 for value in values])
    got = F.poisson_activation(pair(rate, 0.0), c, gamma)
    assert got.mean.item() == pytest.approx(float(want_mean), rel=1e-9)
    assert got.var.item() == pytest.approx(float(want_var), rel=1e-9)


def test_gamma_without_variance() -> None:
    x = torch.linspace(0, 30, 301)
    out = F.gamma_activation(Moments(x, torch.zeros_like(x)), 0.8, 1.5)
    assert torch.equal(out.mean, F.gamma_activation(x, 0.8, 1.5))
    assert (out.var == 0).all()


def test_never_negative_and_gradients_finite() -> None:
    mean = 10 ** (torch.rand(500_000) * 12 - 8)
    var = 10 ** (torch.rand(500_000) * 20 - 14)
    for function in (F.gamma_activation, F.poisson_activation):
        m, v = mean.clone().requires_grad_(), var.clone().requires_grad_()
        out = function(Moments(m, v))
        assert torch.isfinite(out.mean).all()
        assert (out.var >= 0).all()
        gradients = torch.autograd.grad(out.mean.sum() + out.var.sum(), (m, v), allow_unused=True)
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)


@pytest.mark.parametrize("function", [F.gamma_activation, F.poisson_activation])
def test_gradcheck(function: object) -> None:
    m = (torch.rand(6, dtype=torch.float64) + 0.1).requires_grad_()
    v = torch.tensor([1e-4, 1e-3, 0.01, 0.3, 1.0, 9.0], dtype=torch.float64).requires_grad_()
    inputs = (m, v)
    assert torch.autograd.gradcheck(lambda m, v: (*function(Moments(m, v + 0 * m)),), inputs)
