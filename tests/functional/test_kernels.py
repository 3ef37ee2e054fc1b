"""One pass for a GPU against the reference in float64; without a GPU, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spgru import Moments
from spgru.functional import sigmoid, tanh

pytest.importorskip("triton")

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
        plain = sigmoid(Moments(moments.mean.requires_grad_(), moments.var)).mean.detach()
        # As exact as the reference is in float32, to which far tails are as far; a GPU's exp
        # rounds its argument, so that the error grows with it.
        error, usual = (found / expected - 1).abs(), (plain / expected - 1).abs()
        assert (error <= 2 * usual + 2e-6 + 6e-8 * mean.abs()).all()


def test_who_needs_a_gradient_gets_one(moments: Moments) -> None:
    mean = moments.mean.clone().requires_grad_()
    sigmoid(Moments(mean, moments.var)).mean.sum().backward()
    assert mean.grad is not None
