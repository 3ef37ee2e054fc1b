"""The loop of the training: what it keeps, and by which windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.optim.swa_utils import AveragedModel

from spgru.forecast.judging import choose_windows
from spgru.forecast.network import Anchor, Direct
from spgru.forecast.training import TrainingOptions, _divergence, train, validate
from spgru.forecast.windows import Windows
from spgru.nn.layer import layers_of

CPU = torch.device("cpu")


def sizes() -> dict[str, Any]:
    return {
        "horizon": 3, "context": 12, "season": 6, "features": 0, "hidden_size": 4, "num_layers": 1,
        "cell": "gru", "anchor": Anchor(6, 1.0),
    }  # fmt: skip


def test_weights_are_an_exponential_moving_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, steps = np.random.default_rng(0), 40
    series = [np.sin(np.arange(90)) + 0.1 * random.standard_normal(90) for _ in range(3)]
    windows = Windows(series, None, None, 12, 3, 6, False, CPU)
    split, _ = choose_windows(windows, [90] * 3, 0)
    torch.manual_seed(0)
    network = Direct(**sizes())
    passed: list[list[torch.Tensor]] = []
    update = AveragedModel.update_parameters

    def noting(self: AveragedModel, model: torch.nn.Module) -> None:
        passed.append([parameter.detach().clone() for parameter in model.parameters()])
        update(self, model)

    monkeypatch.setattr(AveragedModel, "update_parameters", noting)
    options = TrainingOptions(steps, 8, 1e-2, 99, "crps", 0.01, 0, False)
    record = train(network, windows, split, options)
    assert record.best_step > 1
    # A time constant of 40 / 20 steps: each new one counts one half.
    expected = passed[0]
    for weights in passed[1 : record.best_step]:
        expected = [(old + new) / 2 for old, new in zip(expected, weights, strict=True)]
    for found, weight in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), weight, rtol=1e-5, atol=1e-7)
    # They are the weights that were judged.
    score = validate(network, windows, split.validation)
    assert score == pytest.approx(record.best_score, rel=1e-6)
    assert not torch.equal(passed[record.best_step - 1][0], expected[0])


def test_the_prior_has_a_variance_of_1_over_the_inputs() -> None:
    network = Direct(**sizes())
    expected = 0.0
    for _, layer in layers_of(network):
        for name in layer.weights():
            weight = layer.weight_moments(name)
            inputs = weight.shape[-1] if weight.mean.ndim > 1 else layer_inputs(layer, name)
            prior = Normal(torch.zeros(()), torch.tensor(inputs**-0.5))
            own = Normal(weight.mean, weight.var.sqrt())
            expected += kl_divergence(own, prior).sum().item()
    assert _divergence(network).item() == pytest.approx(expected, rel=1e-5)


def layer_inputs(layer: Any, bias: str) -> int:
    """Of the matrix that a bias goes with."""
    return int(layer.weight_moments(bias.replace("bias", "weight")).shape[-1])
