from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spgru
from oracles import draw, random_moments
from spgru import Moments, certain


def test_elbo_is_the_recipe() -> None:
    model, x, y = spgru.Linear(3, 2), torch.randn(5, 3), torch.randn(5, 2)
    nll, kl = (
        -model(x).log_prob(y).mean(),
        spgru.kl_divergence(model, spgru.Prior("gaussian", std=1.0)),
    )
    torch.testing.assert_close(spgru.loss(model(x), y, kind="nll"), nll)
    torch.testing.assert_close(spgru.loss(model(x), y, model, data_size=40), nll + kl / 40)
    torch.testing.assert_close(
        spgru.loss(model(x), y, model, data_size=40, kl_weight=0.5, step=3, warmup=10),
        nll + 0.15 * kl / 40,
    )
    prior = spgru.Prior("gaussian", std=0.3)
    torch.testing.assert_close(
        spgru.loss(model(x), y, model, data_size=40, prior=prior, step=30, warmup=10),
        nll + spgru.kl_divergence(model, prior) / 40,
    )


def test_certain_weights_cost_nothing_while_the_divergence_has_no_weight() -> None:
    model, x = spgru.Linear(3, 1, weight_std=0.0), torch.randn(4, 3)
    y = model(x)
    output = Moments(y.mean, y.var + 1)
    loss = spgru.loss(output, y.mean, model, data_size=4, step=0, warmup=5)
    torch.testing.assert_close(loss, torch.tensor(0.5 * math.log(2 * math.pi)))


def test_binary_targets_against_draws() -> None:
    logits, target = random_moments(3, 2, scale=4.0), torch.rand(3, 2).double()
    samples = draw(logits, 200_000)
    truth = F.binary_cross_entropy_with_logits(samples, target.expand_as(samples))
    got = spgru.loss(logits, target, kind="nll", likelihood="bernoulli")
    torch.testing.assert_close(got, truth, rtol=0, atol=0.01)


def test_classes_are_bounded_and_exact_without_variance() -> None:
    logits, target = random_moments(4, 3, scale=2.0), torch.tensor([0, 2, 1, 1])
    samples = draw(logits, 100_000)
    truth = F.cross_entropy(samples.flatten(0, 1), target.repeat(len(samples)))
    got = spgru.loss(logits, target, kind="nll", likelihood="categorical")
    assert truth < got < truth + 0.5
    torch.testing.assert_close(
        spgru.loss(certain(logits.mean), target, kind="nll", likelihood="categorical"),
        F.cross_entropy(logits.mean, target),
    )


def test_the_whole_models_divergence_is_found() -> None:
    model = nn.ModuleDict({"a": spgru.GRU(2, 3), "b": nn.Sequential(spgru.nn.GaussianHead(3, 1))})
    y = model["b"](model["a"](torch.randn(4, 2, 2))[0])
    spgru.loss(y, torch.randn(4, 2, 1), model, data_size=8).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_errors_say_what_to_do() -> None:
    y, target = certain(torch.zeros(3, 2)), torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"data_size=, the entries of all training targets"):
        spgru.loss(y, target)
    with pytest.raises(ValueError, match="pass step="):
        spgru.loss(y, target, spgru.Linear(2, 2), data_size=3, warmup=5)
    with pytest.raises(ValueError, match=r"it must have \(3,\)"):
        spgru.loss(y, target, kind="nll", likelihood="categorical")
    with pytest.raises(TypeError, match="must be classes"):
        spgru.loss(y, target[:, 0], kind="nll", likelihood="categorical")
    with pytest.raises(TypeError, match="output must be Moments, got Tensor"):
        spgru.loss(target, target)
    with pytest.raises(ValueError, match="kind must be one of"):
        spgru.loss(y, target, kind="map")


def test_pixels_beyond_one_are_refused_as_probabilities() -> None:
    logits = Moments(torch.zeros(4), torch.ones(4))
    with pytest.raises(ValueError, match="divide uint8 frames by 255"):
        spgru.loss(logits, torch.full((4,), 255.0), kind="nll", likelihood="bernoulli")


def test_targets_beyond_one_by_rounding_are_probabilities() -> None:
    frames = F.interpolate(torch.ones(1, 1, 8, 8), size=(11, 11), mode="bicubic")
    assert frames.max() > 1
    logits = certain(torch.randn(1, 1, 11, 11))
    for target in (frames, 1 - frames):
        found = spgru.loss(logits, target, kind="nll", likelihood="bernoulli")
        want = F.binary_cross_entropy_with_logits(logits.mean, target.clamp(0, 1))
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("entry", ["1.0001", "-0.0001", "nan"])
def test_the_error_shows_why_an_entry_is_no_probability(entry: str) -> None:
    with pytest.raises(ValueError, match=f"target has the entry {entry} but must be between"):
        spgru.loss(
            certain(torch.zeros(2)),
            torch.tensor([0.5, float(entry)]),
            kind="nll",
            likelihood="bernoulli",
        )


def test_a_negative_step_is_refused() -> None:
    layer, target = spgru.Linear(2, 1), torch.zeros(3, 1)
    y = layer(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="step must not be negative"):
        spgru.loss(y, target, layer, data_size=3, step=-1, warmup=5)
