"""`predict` of a frozen model on a GPU is one CUDA graph, and answers as if it were not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import spgru
from spgru.models import ModelConfig, build
from spgru.modes import frozen_of
from spgru.nn.contexts import at_mean
from spgru.nn.layer import layers_of
from spgru.nn.scale import Scale

SMALL = {"height": 16, "width": 16, "weight_std": 0.05}
CONFIGS: dict[str, ModelConfig] = {
    "predictor": ModelConfig(kind="predictor", hidden_size=16, **SMALL),
    "autoencoder": ModelConfig(kind="autoencoder", cell="lstm", hidden_size=16, **SMALL),
    "feedback": ModelConfig(kind="next_frame", hidden_size=16, **SMALL),
    "convolutional": ModelConfig(
        kind="next_frame", architecture="convolutional", hidden_size=8, **SMALL
    ),
}
CALLS = 5


def graphs(model: Any) -> int:
    """Of whole passes, in the block that is entered."""
    frozen = frozen_of(next(layer for _, layer in layers_of(model)))
    assert frozen is not None
    return len(frozen.cache.get(model, ()))


def frames(device: str = "cuda") -> Tensor:
    return torch.rand(4, 3, 16, 16, device=device)


def test_a_model_on_a_cpu_is_not_recorded() -> None:
    model = build(CONFIGS["predictor"])
    with spgru.frozen(model):
        for _ in range(CALLS):
            model.predict(frames("cpu"))
        assert graphs(model) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_predictions_are_those_of_the_model(name: str) -> None:
    model = build(CONFIGS[name], device="cuda")
    level = {"power": torch.full((4,), 0.2), "low": torch.full((4,), 1e-6), "high": torch.ones(4)}
    for scale in (None, Scale(torch.arange(1.0, 5.0), **level)):
        model.pixel_scale.set_(scale)
        model.cuda()
        pairs = []
        with spgru.frozen(model):
            for _ in range(CALLS):
                x = frames()
                pairs.append((x, model.predict(x)))
            assert graphs(model) == 1
        # After all: results belong to the caller and are not overwritten by later calls.
        for x, found in pairs:
            for part, expected in zip(found, model.predict(x), strict=True):
                torch.testing.assert_close(part, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
def test_layers_inside_are_not_recorded_as_well() -> None:
    model = build(CONFIGS["predictor"], device="cuda")
    with spgru.frozen(model):
        for _ in range(CALLS):
            model.predict(frames())
        for _, layer in layers_of(model):
            frozen = frozen_of(layer)
            assert frozen is not None
            assert len(frozen.cache.get("recordings", ())) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("change", ["weight", "scale", "no scale", "steps"])
def test_changes_are_noticed(change: str) -> None:
    model, x = build(CONFIGS["predictor"], device="cuda"), frames()
    model.pixel_scale.set_(Scale(torch.tensor([2.0], device="cuda")))
    steps = None
    with spgru.frozen(model), torch.no_grad():
        for _ in range(CALLS):
            before = model.predict(x)
        if change == "weight":
            model.get_parameter("future.readout.weight").mul_(1.5)
        elif change == "steps":
            steps = 2
        else:
            factor = Scale(torch.tensor([3.0], device="cuda"))
            model.pixel_scale.set_(factor if change == "scale" else None)
        after = model.predict(x, steps)
    expected = model.predict(x, steps)
    torch.testing.assert_close(after.var, expected.var, rtol=1e-5, atol=1e-7)
    assert after.shape != before.shape or not torch.allclose(after.var, before.var, rtol=1e-3)


@pytest.mark.gpu
def test_what_must_be_seen_is_not_replayed() -> None:
    model, x = build(CONFIGS["predictor"], device="cuda"), frames()
    seen = []
    with spgru.frozen(model):
        with at_mean(model):
            for _ in range(CALLS):
                assert bool((model.predict(x).var == 0).all())
        handle = model.encoder.register_forward_hook(lambda *_: seen.append(None))
        for _ in range(CALLS):
            model.predict(x)
        assert len(seen) == CALLS
        assert graphs(model) == 0
        handle.remove()
        for _ in range(CALLS):
            model.predict(x)
        assert graphs(model) == 1
