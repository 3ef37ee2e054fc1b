from __future__ import annotations

import pytest
import torch

from spgru.models import ModelConfig, Predictor
from spgru.nn.contexts import sampling
from spgru.nn.scale import Scale
from spgru.studies.brute_force import brute_force

SIZE = {"height": 6, "width": 6}


def test_against_all_draws_kept() -> None:
    model = Predictor(ModelConfig(hidden_size=8, weight_std=0.1, **SIZE))
    seen, draws = torch.rand(3, 2, 4, 6, 6), 50
    found = brute_force(model, seen, draws, seed=3)
    frames = seen.flatten(1, 2)
    generator, networks = torch.Generator().manual_seed(3), []
    for _ in range(draws):
        with sampling(model, generator):
            networks.append(model.predict(frames).mean.double())
    variance = torch.stack(networks).var(0).sum((-2, -1))  # (T, groups * B)
    torch.testing.assert_close(found.true, variance.reshape(3, 2, 4).mean((0, 2)))
    closed = model.predict(frames)
    expected = closed.var.double().sum((-2, -1)).reshape(3, 2, 4).mean((0, 2))
    torch.testing.assert_close(found.closed, expected)
    by_frame = variance.reshape(3, 2, 4).mean(2)
    torch.testing.assert_close(found.true_by_frame, by_frame)
    torch.testing.assert_close(found.closed_by_frame.mean(0), expected)
    squares = (torch.stack(networks) - closed.mean).square().sum((-2, -1))  # (draws, T, G * B)
    per_network = squares.reshape(draws, 3, 2, 4).mean((1, 3))
    torch.testing.assert_close(found.true_error, per_network.std(0) / draws**0.5)
    torch.testing.assert_close(found.ratio_error / found.ratio, found.true_error / found.true)
    torch.testing.assert_close(found.calibrated_by_frame, found.closed_by_frame)
    per_frame = squares.reshape(draws, 3, 2, 4).mean(3)
    torch.testing.assert_close(found.true_error_by_frame, per_frame.std(0) / draws**0.5)


def test_before_and_after_calibration() -> None:
    model = Predictor(ModelConfig(hidden_size=8, weight_std=0.1, **SIZE))
    seen, factor = torch.rand(3, 2, 4, 6, 6), torch.tensor([2.0, 3.0, 4.0])
    before = brute_force(model, seen, draws=4)
    model.pixel_scale.set_(Scale(factor))
    found = brute_force(model, seen, draws=4)
    for name in ("closed_by_frame", "true_by_frame", "true_error", "ratio", "ratio_error"):
        assert torch.equal(getattr(found, name), getattr(before, name))
    expected = before.closed_by_frame * factor[:, None]
    torch.testing.assert_close(found.calibrated_by_frame, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.calibrated, expected.mean(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.calibrated_ratio, found.calibrated / before.true)
    relative = found.calibrated_ratio_error / found.calibrated_ratio
    torch.testing.assert_close(relative, found.true_error / found.true)


@pytest.mark.parametrize("seed", [0, 1])
def test_ratio_of_a_random_network_is_near_one(seed: int) -> None:
    torch.manual_seed(seed)
    model = Predictor(ModelConfig(hidden_size=32, weight_std=0.03, **SIZE))
    found = brute_force(model, torch.rand(4, 1, 2, 6, 6), draws=300)
    assert abs(found.ratio.item() - 1) < 0.2 + 4 * found.ratio_error.item()


def test_certain_weights_have_no_variance() -> None:
    model = Predictor(ModelConfig(hidden_size=4, weight_std=0.0, **SIZE))
    found = brute_force(model, torch.rand(2, 1, 1, 6, 6), draws=3)
    assert found.closed.item() == 0
    # Outputs of the drawn networks and the closed form differ by rounding alone.
    assert found.true.item() < 1e-10
