"""Networks that run on the means of their weights alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spgru
from spgru import Moments
from spgru.models import ModelConfig, Predictor
from spgru.nn.contexts import at_mean
from spgru.nn.weight import spread_name


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_it_is_the_network_of_torch_with_its_gradients(name: str) -> None:
    layer = getattr(spgru, name)(5, 7, num_layers=2, weight_std=0.2)
    plain = layer.to_torch()
    x = torch.randn(6, 3, 5)
    with at_mean(layer):
        # What is uncertain on the way in counts by its mean too.
        output, _ = layer(Moments(x, torch.rand_like(x)))
    expected, _ = plain(x)
    torch.testing.assert_close(output.mean, expected)
    assert not output.var.any()
    output.mean.square().sum().backward()
    expected.square().sum().backward()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(layer.get_parameter(key).grad, parameter.grad)
        assert layer.get_parameter(spread_name(key)).grad is None
    assert layer(x)[0].var.min() > 0


def test_natural_parameters_have_a_mean_too() -> None:
    layer = spgru.Linear(4, 3, parameterization="natural")
    x = torch.randn(2, 4)
    expected = layer(x).mean
    with at_mean(layer):
        torch.testing.assert_close(layer(x).mean, expected)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_convolutional_model_has_no_variance_then(cell: Any) -> None:
    model = Predictor(
        ModelConfig(
            architecture="convolutional", height=8, width=8, hidden_size=4, num_layers=2, cell=cell,
            kernel_size=3,
        )
    )  # fmt: skip
    frames = torch.rand(3, 2, 8, 8)
    with at_mean(model):
        assert not model(frames).future.var.any()
    assert model(frames).future.var.min() > 0
