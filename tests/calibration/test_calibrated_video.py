"""Calibration of models of video: of pixels, through loops that read predictions back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spgru
from spgru.calibration.truth import drawn_truths
from spgru.models import ModelConfig, build
from spgru.nn.scale import Scale

SMALL: dict[str, Any] = {"height": 4, "width": 4, "hidden_size": 6, "weight_std": 0.3}
CONFIGS = {
    "predictor": ModelConfig("predictor", **SMALL),
    "next frame, convolutional": ModelConfig(
        "next_frame", "convolutional", patch_size=2, kernel_size=3, **SMALL
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_pixels_are_calibrated(kind: str) -> None:
    torch.manual_seed(0)
    model = build(CONFIGS[kind])
    before = list(model.state_dict())
    frames, others = torch.rand(3, 8, 4, 4), torch.rand(3, 8, 4, 4)
    plain = model.predict(others)
    report = spgru.calibrate(model, frames, draws=300, steps=20, rate=0.1, progress=False)
    assert report.chosen != "plain"
    assert len(report.ratio) == 3
    after = model.predict(others)
    with spgru.uncalibrated(model):
        (truth,) = drawn_truths(
            model, model.calibration_output, [(others,)], 400, torch.Generator(), lambda: None
        )
    true = truth.output.mean((1, 2, 3))

    def distance(var: torch.Tensor) -> float:
        return (var.mean((1, 2, 3)) / true).log().abs().max().item()

    assert distance(after.var) < 0.7 * distance(plain.var)
    assert distance(after.var) < 0.35
    # A new model takes it in with its weights, and gives it back.
    fresh = build(CONFIGS[kind])
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.predict(others).var, after.var)
    spgru.uncalibrate(fresh)
    assert list(fresh.state_dict()) == before
    assert torch.equal(fresh.predict(others).var, plain.var)
    assert model.predict(others, steps=5).shape == (5, 8, 4, 4)


def test_the_mean_of_pixels_may_stay_as_it_was() -> None:
    torch.manual_seed(0)
    model = build(CONFIGS["next frame, convolutional"])
    frames = torch.rand(3, 8, 4, 4)
    plain = model.predict(frames)
    for layer in (model.future.readout, *model.future.rnn.cells):
        names = [name for name, weight in layer.weights().items() if weight.spec.gain is not None]
        layer.set_gains_(
            {name: torch.full((layer.weights()[name].spec.shape[0],), 9.0) for name in names}
        )
    both = model.predict(frames)
    assert not torch.allclose(both.var, plain.var)
    assert not torch.allclose(both.mean, plain.mean)
    model.pixel_scale.set_(Scale(torch.ones(1), plain_mean=torch.ones(())))
    found = model.predict(frames)
    assert torch.equal(found.mean, plain.mean)
    assert torch.equal(found.var, both.var)
