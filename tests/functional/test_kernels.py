"""One pass for a GPU against the reference in float64; without a GPU, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spgru import Moments
from spgru.functional import sigmoid, tanh

pytest.importorskip("triton")
import triton
import triton.language as tl

from spgru.functional.kernels.logistic import logistic, logistic_with_slopes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def moments() -> Moments:
    mean = 6 * torch.randn(7, 143)
    var = 10 ** (8 * torch.rand(7, 143) - 6)
    var[0] = 0
    return Moments(mean, var).to(DEVICE)


@pytest.mark.parametrize("function", [sigmoid, tanh])
def test_squashed_in_one_pass(
    function: Any, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = function(moments.to(torch.float64))
    asked = []
    monkeypatch.setattr(
        "spgru.functional.activation._one_kernel_does", lambda x: asked.append(x) or True
    )
    for x in (moments, moments[:, ::2], moments[:0]):
        function(x)
    found = function(moments)
    assert len(asked) == 4
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 2e-6
    assert found.var.min() >= 0
    assert not found.var[0].any()
    strided = function(moments[:, ::2])
    assert torch.equal(strided.mean, found.mean[:, ::2])
    half = function(moments.to(torch.bfloat16))
    assert half.mean.dtype == torch.bfloat16


def test_small_probabilities_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = torch.linspace(-60, -1, 300, device=DEVICE)
    x = Moments(mean, torch.linspace(0, 3, 300, device=DEVICE))
    for moments in (x, Moments(mean, torch.zeros_like(mean))):
        expected = sigmoid(moments.to(torch.float64)).mean
        with monkeypatch.context() as patch:
            patch.setattr("spgru.functional.activation._one_kernel_does", lambda _: True)
            found = sigmoid(moments).mean
        with monkeypatch.context() as patch:
            patch.setattr("spgru.functional.activation._one_kernel_does", lambda _: False)
            plain = sigmoid(moments).mean
        # As exact as the reference is in float32, to which far tails are as far; a GPU's exp
        # rounds its argument, so that the error grows with it.
        error, usual = (found / expected - 1).abs(), (plain / expected - 1).abs()
        assert (error <= 2 * usual + 2e-6 + 6e-8 * mean.abs()).all()


def learning(x: Moments) -> Moments:
    return Moments(*(part.clone().requires_grad_() for part in x))


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 in the kernel, float64 by torch; also on a CPU."""
    monkeypatch.setattr(
        "spgru.functional.activation._one_kernel_does", lambda x: x.dtype == torch.float32
    )


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("function", [sigmoid, tanh])
@pytest.mark.parametrize("pulled", ["mean", "var", "both"])
def test_gradients_are_those_of_float64(function: Any, pulled: str, moments: Moments) -> None:
    pull = torch.randn(2, *moments.shape, device=DEVICE)
    found = []
    for dtype in (torch.float32, torch.float64):
        x = learning(moments.to(dtype))
        results = [
            part
            for part, p in zip(function(x), ("mean", "var"), strict=True)
            if pulled in (p, "both")
        ]
        by = [p.to(dtype) for p in pull[: len(results)]]
        found.append(torch.autograd.grad(results, [x.mean, x.var], by))
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() < 1e-5 * (1 + b.abs().max())


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("part", ["mean", "var"])
def test_a_part_that_is_fixed_gets_no_gradient(part: str, moments: Moments) -> None:
    x = learning(moments)
    free = getattr(x, part)
    fixed = x.var if part == "mean" else x.mean
    fixed.requires_grad_(False)
    expected = torch.autograd.grad(sigmoid(x.to(torch.float64)).mean.sum(), free)[0]
    sigmoid(x).mean.sum().backward()
    assert fixed.grad is None
    assert (free.grad - expected).abs().max() < 1e-5


def flipped_sign(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, kept with the opposite sign and a bit that says so."""
    return torch._neg_view(-x)


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("layout", [lambda x: x.T, lambda x: x[:, ::2], flipped_sign])
def test_gradients_of_tensors_laid_out_otherwise(layout: Any, moments: Moments) -> None:
    pull = torch.randn(moments.shape, device=DEVICE)
    found = []
    for dtype in (torch.float32, torch.float64):
        x = learning(moments.to(dtype))
        y = sigmoid(Moments(layout(x.mean), layout(x.var)))
        assert layout(pull).shape == y.shape
        found.append(torch.autograd.grad(y.mean, [x.mean, x.var], layout(pull).to(dtype)))
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() < 1e-5 * (1 + b.abs().max())


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("function", [sigmoid, tanh])
def test_every_way_to_a_gradient_where_variance_follows_the_mean(function: Any) -> None:
    """Once differentiated plainly, to be differentiated again, several at once, and in vmap."""
    found = []
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-2, 2, 9, device=DEVICE, dtype=dtype, requires_grad=True)
        y = function(Moments(x, x**2 + 0.1))
        total = y.mean + y.var
        pull = torch.linspace(1, 2, 9, device=DEVICE, dtype=dtype, requires_grad=True)
        pulls = torch.stack([pull, 2 * pull]).detach()
        (plain,) = torch.autograd.grad(total, x, pull.detach(), retain_graph=True)
        (again,) = torch.autograd.grad(total, x, pull, create_graph=True)
        (batched,) = torch.autograd.grad(total, x, pulls, retain_graph=True, is_grads_batched=True)
        mapped = torch.func.vmap(
            lambda p, y=total, x=x: torch.autograd.grad(y, x, p, retain_graph=True)[0]
        )(pulls)
        second = torch.autograd.grad((again**2).sum(), [x, pull])
        found.append((plain, again.detach(), batched, mapped, *second))
    for a, b in zip(*found, strict=True):
        assert b.abs().max() > 0.1
        assert (a - b).abs().max() < 1e-5 * (1 + b.abs().max())
    plain, again, batched, mapped, *_ = found[1]
    for other in (again, batched[0], mapped[0]):
        assert torch.allclose(other, plain)


@triton.jit
def _logistic_kernel(mean, var, values, slopes, count, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < count
    m, v = tl.load(mean + place, mask, 0.0), tl.load(var + place, mask, 0.0)
    short, long = logistic(m, v), logistic_with_slopes(m, v)
    for k in tl.static_range(2):
        tl.store(values + k * count + place, short[k], mask)
    for k in tl.static_range(6):
        tl.store(slopes + k * count + place, long[k], mask)


def run_logistic(mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = len(mean)
    values = torch.full((2, count), torch.nan, device=DEVICE)
    slopes = torch.full((6, count), torch.nan, device=DEVICE)
    _logistic_kernel[(triton.cdiv(count, 512),)](mean, var, values, slopes, count, 512)
    return values, slopes


def test_the_logistic_and_its_derivatives() -> None:
    """Against autograd through the float64 reference, on both sides of the handover."""
    count = 10_001
    mean = (6 * torch.randn(count)).to(DEVICE)
    var = (10 ** (8 * torch.rand(count) - 6)).to(DEVICE)
    var[:50] = 0
    values, slopes = run_logistic(mean, var)
    m, v = mean.double().requires_grad_(), var.double().requires_grad_()
    exact = sigmoid(Moments(m, v))
    by = [
        *torch.autograd.grad(exact.mean.sum(), (m, v), retain_graph=True),
        *torch.autograd.grad(exact.var.sum(), (m, v)),
    ]
    expected = torch.stack([exact.mean - 0.5, exact.var, *by]).detach()
    assert (values - slopes[:2]).abs().max() < 1e-7
    # Rounding of float32, as measured: no approximation beyond the reference's own.
    assert (slopes - expected).abs().max() < 3e-7
    assert slopes[1].min() >= 0
    assert not slopes[1, :50].any()
    # Small variances keep their relative accuracy.
    narrow = (var > 0) & (var < 1) & (mean.abs() < 5)
    assert ((slopes[1] / expected[1] - 1)[narrow]).abs().max() < 5e-6


def test_the_logistic_is_never_negative_or_lost() -> None:
    mean = torch.linspace(-300, 300, 601, device=DEVICE).repeat(40)
    var = torch.logspace(-30, 8, 40, device=DEVICE).repeat_interleave(601)
    _, slopes = run_logistic(mean, var)
    assert torch.isfinite(slopes).all()
    assert slopes[1].min() >= 0
    assert slopes[0].abs().max() <= 0.5
