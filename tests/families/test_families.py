from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgru import GRU, Moments, Prior, certain, families, kl_divergence
from spgru.families import Family, Gamma, Gaussian, Poisson

FAMILIES = [Gaussian(), Gamma(), Poisson()]
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def member(family: Family, mean: float, var: float) -> Moments:
    """Moments of a member: positive where it must be, one parameter where there is one."""
    mean = mean if family.name == "gaussian" else abs(mean) + 0.1
    var = mean if family.name == "poisson" else var
    return Moments(torch.tensor([mean]).double(), torch.tensor([var]).double())


def scipy_of(family: Family, moments: Moments) -> object:
    mean, var = moments.mean.item(), moments.var.item()
    return {
        "gaussian": scipy.stats.norm(mean, math.sqrt(var)),
        "gamma": scipy.stats.gamma(mean**2 / var, scale=var / mean),
        "poisson": scipy.stats.poisson(mean),
    }[family.name]


@given(mean=st.floats(-50, 50), var=st.floats(1e-4, 100))
@settings(max_examples=100, deadline=None)
@every
def test_natural_parameters_there_and_back(family: Family, mean: float, var: float) -> None:
    moments = member(family, mean, var)
    back = family.from_natural(*moments.to_natural(family))
    torch.testing.assert_close(back.mean, moments.mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(back.var, moments.var, rtol=1e-9, atol=1e-12)
    for parameterization in ("moments", "natural"):
        raw = family.to_raw(moments, parameterization)
        back = family.from_raw(raw, parameterization)
        torch.testing.assert_close(back.mean, moments.mean, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(back.var, moments.var, rtol=1e-9, atol=1e-12)


@every
def test_natural_parameters_are_the_gradient_of_the_log_density(family: Family) -> None:
    """log p(x) is linear in eta: its differences in x are eta . (T(x) - T(y))."""
    statistics = {
        "gaussian": lambda x: (x, x**2 / 2),
        "gamma": lambda x: (x.log(), x),
        "poisson": lambda x: (x,),
    }[family.name]
    moments = member(family, 1.7, 0.8)
    x, y = torch.tensor([1.0, 2.0, 5.0]).double(), torch.tensor([2.0, 4.0, 1.0]).double()
    eta = moments.to_natural(family)
    got = family.log_prob(x, moments) - family.log_prob(y, moments)
    if family.name == "poisson":  # its base measure 1/x! is not constant
        got = got + torch.lgamma(x + 1) - torch.lgamma(y + 1)
    want = sum(e * (a - b) for e, a, b in zip(eta, statistics(x), statistics(y), strict=True))
    torch.testing.assert_close(got, want)


@every
def test_log_prob_against_scipy(family: Family) -> None:
    moments = member(family, 2.3, 0.8)
    x = torch.tensor([0.0, 1.0, 2.0, 7.0]).double() + (0 if family.name == "poisson" else 0.5)
    reference = scipy_of(family, moments)
    want = reference.logpmf(x) if family.name == "poisson" else reference.logpdf(x)
    torch.testing.assert_close(family.log_prob(x, moments), torch.tensor(want))


@every
def test_kl_against_integration(family: Family) -> None:
    q, p = member(family, 2.3, 0.8), member(family, 1.4, 0.5)
    log_q, log_p = (
        (lambda x, m=m: family.log_prob(torch.as_tensor(x).double(), m)) for m in (q, p)
    )
    if family.name == "poisson":
        x = torch.arange(200).double()
        weight = log_q(x).exp()
    else:
        x = torch.linspace(
            1e-7 if family.name == "gamma" else -12, 25, 2_000_001, dtype=torch.float64
        )
        weight = log_q(x).exp() * (x[1] - x[0])
    want = (weight * (log_q(x) - log_p(x))).sum()
    torch.testing.assert_close(family.kl(q, p).squeeze(), want, rtol=1e-6, atol=0)
    torch.testing.assert_close(family.kl(q, q), torch.zeros(1).double(), rtol=0, atol=1e-12)


def test_gamma_kl_of_nearly_certain_weights_in_float32() -> None:
    for std in (1e-1, 1e-2, 1e-3, 1e-4):
        results = []
        for dtype in (torch.float32, torch.float64):
            log_var = torch.tensor([2 * math.log(std)], dtype=dtype, requires_grad=True)
            one = torch.ones(1, dtype=dtype)
            kl = Gamma().kl(Moments(one, log_var.exp()), Moments(one, one))
            results.append((kl.item(), torch.autograd.grad(kl, log_var)[0].item()))
        assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_no_density_outside_the_support() -> None:
    one = Moments(torch.ones(1), torch.ones(1))
    assert Gamma().log_prob(torch.tensor([-1.0]), one).item() == -math.inf
    assert Poisson().log_prob(torch.tensor([0.5]), one).item() == -math.inf


@every
def test_samples_have_the_moments(family: Family) -> None:
    from oracles import assert_monte_carlo

    moments = member(family, 1.7, 0.8)
    wide = Moments(moments.mean.expand(200_000), moments.var.expand(200_000))
    generator = torch.Generator().manual_seed(0)
    draws = family.sample(wide, generator)
    assert_monte_carlo(draws[:, None], moments)
    assert torch.equal(draws, family.sample(wide, generator.manual_seed(0)))


@every
def test_certain_samples_are_their_mean(family: Family) -> None:
    moments = certain(torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(family.sample(moments), moments.mean)


@pytest.mark.parametrize("family", [Gamma(), Poisson()], ids=lambda family: family.name)
def test_domain(family: Family) -> None:
    with pytest.raises(ValueError, match=f"outside the domain of the {family.name} family"):
        family.check_domain("x", certain(torch.tensor([-1.0])))
    with pytest.raises(ValueError, match=r"c must lie in \(0, 1\]"):
        type(family)(c=1.5)
    with pytest.raises(ValueError, match="gamma must be positive"):
        type(family)(gamma=0.0)


def test_get() -> None:
    assert families.get("gamma").name == "gamma"
    custom = Gamma(gamma=2.0)
    assert families.get(custom) is custom
    with pytest.raises(ValueError, match="family must be one of"):
        families.get("cauchy")


class TestPrior:
    def test_scales(self) -> None:
        like = certain(torch.zeros(2, 100))
        scaled = Prior("gaussian", std=2.0).moments(100, like)
        torch.testing.assert_close(scaled.std, torch.full((2, 100), 0.2))
        fixed = Prior("gaussian", mean=1.0, std=2.0, scale="fixed").moments(100, like)
        torch.testing.assert_close(fixed.mean, torch.ones(2, 100))
        torch.testing.assert_close(fixed.std, torch.full((2, 100), 2.0))
        positive = Prior("gamma", mean=1.0, std=0.5).moments(100, like)
        torch.testing.assert_close(positive.mean, torch.full((2, 100), 0.01))
        torch.testing.assert_close(positive.std, torch.full((2, 100), 0.005))
        poisson = Prior("poisson", mean=1.0).moments(100, like)
        torch.testing.assert_close(poisson.var, torch.full((2, 100), 0.01))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"family": "gaussian"}, "std must be positive"),
            ({"family": "gamma", "std": 1.0}, "mean of a gamma prior must be positive"),
            ({"family": "poisson", "mean": 1.0, "std": 1.0}, "follows from its mean"),
            ({"family": "gaussian", "std": 1.0, "scale": "huge"}, "scale must be one of"),
        ],
    )
    def test_errors(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Prior(**arguments)


class TestKLDivergence:
    @pytest.mark.parametrize("parameterization", ["moments", "natural"])
    def test_against_torch_distributions(self, parameterization: str) -> None:
        gru = GRU(3, 4, 2, parameterization=parameterization, dtype=torch.float64)
        want = 0.0
        for weight in gru.weights().values():
            q = weight.moments()
            p = torch.distributions.Normal(0.0, 1.0 / math.sqrt(weight.fan_in))
            q = torch.distributions.Normal(q.mean, q.std)
            want += torch.distributions.kl_divergence(q, p).sum()
        got = kl_divergence(gru, Prior("gaussian", std=1.0))
        torch.testing.assert_close(got, want)
        got.backward()
        assert all(torch.isfinite(p.grad).all() for p in gru.parameters())

    def test_is_zero_at_the_prior(self) -> None:
        gru = GRU(3, 4)
        prior = Prior("gaussian", std=1.0)
        for weight in gru.weights().values():
            weight.set_(prior.moments(weight.fan_in, weight.moments()))
        assert kl_divergence(gru, prior).item() == pytest.approx(0, abs=1e-5)

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="weight_ih_l0 is gaussian but the prior is gamma"):
            kl_divergence(GRU(2, 2), Prior("gamma", mean=1.0, std=1.0))
        with pytest.raises(ValueError, match="holds no random weights"):
            kl_divergence(torch.nn.Linear(2, 2), Prior("gaussian", std=1.0))
