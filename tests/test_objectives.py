"""The objectives against quadrature, mpmath, Monte Carlo and torch's own losses."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

import spgru
from oracles import draw, random_moments
from spgru import Moments, certain
from spgru.objectives import (
    Objective,
    bernoulli_nll,
    expected_bernoulli_nll,
    expected_softplus,
    target_divergence,
)

MEANS = np.concatenate([np.linspace(-30, 30, 241), [-1e-3, 1e-3, -1e-9]])
STDS = [0.0, 1e-3, 0.01, 0.1, 0.3, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0]


def quadrature(mean: np.ndarray, std: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E softplus(X), E sigmoid(X) and E sigmoid'(X) / 2 by the trapezoidal rule, to 1e-14."""
    z = np.arange(-9.5, 9.5, min(0.05, 0.2 / max(std, 1e-9)))
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    x = mean[:, None] + std * z
    slope = expit(x) * expit(-x)
    return np.logaddexp(0, x) @ weights, expit(x) @ weights, 0.5 * slope @ weights


def with_gradients(mean: np.ndarray, std: float, dtype: torch.dtype) -> list[np.ndarray]:
    m = torch.tensor(mean, dtype=dtype, requires_grad=True)
    v = torch.full_like(m, std**2).detach().requires_grad_()
    value = expected_softplus(Moments(m, v))
    value.sum().backward()
    return [tensor.detach().numpy() for tensor in (value, m.grad, v.grad)]


@pytest.mark.parametrize("std", STDS)
def test_expected_softplus_and_its_gradients_against_quadrature(std: float) -> None:
    truth = quadrature(MEANS, std)
    for got, want, tolerance in zip(
        with_gradients(MEANS, std, torch.float64), truth, (1e-6, 3e-6, 5e-6), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)
    # float32 adds its rounding of values up to 30
    np.testing.assert_allclose(
        with_gradients(MEANS, std, torch.float32)[0], truth[0], rtol=0, atol=6e-6
    )


@settings(deadline=None, max_examples=25)
@given(st.floats(-30, 30), st.floats(0.05, 30))
def test_expected_softplus_against_mpmath(mean: float, std: float) -> None:
    breaks = sorted({-12.0, -4.0, 4.0, 12.0, min(12.0, max(-12.0, -mean / std))})
    with mpmath.workdps(20):
        truth = mpmath.quad(
            lambda z: mpmath.log1p(mpmath.exp(mean + std * z)) * mpmath.npdf(z), breaks
        )
    x = Moments(*torch.tensor([mean, std**2], dtype=torch.float64))
    assert expected_softplus(x).item() == pytest.approx(float(truth), abs=1e-6)


def test_certain_logits_have_the_cross_entropy_exactly() -> None:
    logits = 8 * torch.randn(3, 2, 5, 4, dtype=torch.float64)
    target = torch.rand(3, 2, 5, 4, dtype=torch.float64)
    want = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    want = want.sum((-2, -1)).mean()
    torch.testing.assert_close(expected_bernoulli_nll(certain(logits), target), want)
    torch.testing.assert_close(bernoulli_nll(logits, target), want)


def test_expected_softplus_is_smooth_down_to_no_variance() -> None:
    m = torch.linspace(-5, 5, 21, dtype=torch.float64, requires_grad=True)
    v = torch.zeros_like(m).detach().requires_grad_()
    expected_softplus(Moments(m, v)).sum().backward()
    assert m.grad is not None
    assert v.grad is not None
    torch.testing.assert_close(m.grad, torch.sigmoid(m.detach()))
    slope = torch.sigmoid(m) * torch.sigmoid(-m)
    torch.testing.assert_close(v.grad, 0.5 * slope.detach(), rtol=0, atol=5e-6)


def test_gradcheck_of_expected_softplus() -> None:
    mean = torch.tensor([-7.0, -1.0, 0.3, 2.0, 9.0], dtype=torch.float64, requires_grad=True)
    var = torch.tensor([0.1, 4.0, 0.5, 90.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, v: expected_softplus(Moments(m, v)), (mean, var))


# Dynamo itself does what this warning of torch warns of.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_expected_softplus_under_transforms() -> None:
    x = random_moments(4, 3)
    want = expected_softplus(x)
    torch.testing.assert_close(torch.vmap(expected_softplus)(x), want)
    compiled = torch.compile(expected_softplus, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), want)
    half = expected_softplus(x.to(torch.bfloat16))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), want, rtol=0.02, atol=0.02)


def test_elbo_against_monte_carlo() -> None:
    logits = Moments(3 * torch.randn(2, 3, 4, 4).double(), 9 * torch.rand(2, 3, 4, 4).double())
    target = torch.rand(2, 3, 4, 4).double()
    samples = draw(logits, 20_000)
    losses = F.binary_cross_entropy_with_logits(
        samples, target.expand_as(samples), reduction="none"
    )
    per_draw = losses.sum((-2, -1)).mean((1, 2))
    error = per_draw.std() / math.sqrt(len(per_draw))
    difference = expected_bernoulli_nll(logits, target) - per_draw.mean()
    assert abs(difference) < 5 * error
    assert error < 1e-3 * per_draw.mean()


def test_the_papers_divergence_is_that_of_torch_distributions() -> None:
    pixels = Moments(torch.rand(2, 5, 3, 4).double(), 0.01 + 0.1 * torch.rand(2, 5, 3, 4).double())
    target = torch.rand(2, 5, 3, 4).double()
    target[:, :, 0, 0] = 0.0  # dark in every sequence
    var = target.var(1, correction=0, keepdim=True).clamp(min=1e-3)
    want = torch.distributions.kl_divergence(
        torch.distributions.Normal(pixels.mean, pixels.std),
        torch.distributions.Normal(target, var.sqrt().expand_as(target)),
    )
    got = target_divergence(pixels, target, var_floor=1e-3)
    torch.testing.assert_close(got, want.sum((-2, -1)).mean())
    assert torch.isfinite(target_divergence(certain(pixels.mean), target))


def layer_and_data() -> tuple[spgru.Linear, Moments, torch.Tensor]:
    layer = spgru.Linear(3, 4, dtype=torch.float64)
    x = torch.randn(2, 5, 3, 3).double()
    return layer, layer(x), torch.rand(2, 5, 3, 4).double()


def test_the_elbo_adds_the_divergence_per_frame() -> None:
    layer, logits, target = layer_and_data()
    objective = Objective("elbo", beta=0.5, data_size=1000, prior_std=0.3, prior_scale="fan_in")
    loss = objective.loss(layer, (logits, target))
    kl = spgru.kl_divergence(layer, spgru.Prior("gaussian", std=0.3))
    torch.testing.assert_close(loss.kl, kl)
    torch.testing.assert_close(loss.nll, expected_bernoulli_nll(logits, target))
    torch.testing.assert_close(loss.total, loss.nll + 0.5 / 1000 * kl)
    assert loss.future is not None
    assert loss.reconstruction is None
    # beta 0 must not turn the infinite divergence of certain weights into NaN
    still = spgru.Linear(3, 4, weight_std=0.0, dtype=torch.float64)
    free = Objective(beta=0).loss(still, (logits, target))
    torch.testing.assert_close(free.total, loss.nll)


@pytest.mark.parametrize("name", ["paper", "cross_entropy"])
def test_the_other_objectives_have_no_prior(name: Any) -> None:
    layer, logits, target = layer_and_data()
    loss = Objective(name).loss(layer, (logits, target), (logits, target.flip(0)))
    want = (
        bernoulli_nll(logits.mean, target)
        if name == "cross_entropy"
        else target_divergence(spgru.functional.sigmoid(logits), target)
    )
    assert loss.future is not None
    assert loss.reconstruction is not None
    torch.testing.assert_close(loss.future, want)
    torch.testing.assert_close(loss.total, loss.future + loss.reconstruction)
    assert loss.kl == 0


@pytest.mark.parametrize("name", ["elbo", "paper", "cross_entropy"])
def test_gradcheck_of_the_data_terms(name: Any) -> None:
    target = torch.rand(2, 3, 2, 2).double()
    mean = torch.randn(2, 3, 2, 2).double().requires_grad_()
    var = (0.1 + torch.rand(2, 3, 2, 2).double()).requires_grad_()
    objective = Objective(name)
    assert torch.autograd.gradcheck(lambda m, v: objective.fit(Moments(m, v), target), (mean, var))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "mse"}, "name must be one of 'elbo', 'paper', 'cross_entropy'; got 'mse'"),
        ({"beta": -1}, "beta must not be negative"),
        ({"data_size": 0}, "data_size must be positive"),
        ({"prior_std": 0}, "prior_std must be positive"),
        ({"prior_scale": "none"}, "prior_scale must be one of"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(**options)


def test_bad_targets() -> None:
    logits = certain(torch.zeros(2, 1, 3, 3))
    with pytest.raises(ValueError, match=r"target has shape \(1, 1, 3, 3\)"):
        Objective().fit(logits, torch.zeros(1, 1, 3, 3))
    with pytest.raises(ValueError, match="divide uint8 frames by 255"):
        Objective().fit(logits, torch.full((2, 1, 3, 3), 255.0))
    with pytest.raises(ValueError, match="nothing to fit"):
        Objective().loss(torch.nn.Linear(1, 1))
