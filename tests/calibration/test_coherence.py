"""Coherences of states in a fit."""

from __future__ import annotations

import pytest
import torch

import spgru
from spgru.calibration.fit import fit_gains
from spgru.calibration.truth import Shape, Truth, run_watched
from spgru.modes import enter_gains


@pytest.mark.parametrize("kind", [spgru.GRU, spgru.LSTM])
def test_a_fit_finds_the_coherence_that_made_the_variance(kind: type) -> None:
    layer, x = kind(2, 6, weight_std=0.2), torch.randn(12, 16, 2)
    with torch.no_grad():  # units that remember, or there would be little to find
        layer.bias_hh_l0[6:12] += 2
    layer.requires_grad_(False)

    def call(x: torch.Tensor) -> spgru.Moments:
        return layer(x)[0]

    known = torch.linspace(0.5, 0.9, 6)
    with enter_gains({layer: {"coherence_l0": known}}), torch.no_grad():
        found = run_watched(layer, call, (x,))
    truth = Truth(found.output.var.double(), [part.var.double() for part in found.layers])
    gains = fit_gains(layer, call, (x,), truth, Shape(0, 1), False, 300, 0.1, lambda: None)
    assert (gains[layer]["coherence_l0"] - known).abs().max() < 0.1
    plain = call(x).var
    with enter_gains(gains):
        fitted = call(x).var
    before, after = ((var / found.output.var).log().abs().mean() for var in (plain, fitted))
    assert after < 0.1 * before


def test_calibrate_keeps_coherences_within_their_range() -> None:
    layer, x = spgru.GRU(2, 6, weight_std=0.3), torch.randn(6, 24, 2)
    plain = layer(x)[0].var
    spgru.calibrate(layer, x, draws=60, steps=40, progress=False)
    coherence = layer.state_dict()["coherence_l0"]
    assert ((coherence > 0) & (coherence < 1)).all()
    other = spgru.GRU(2, 6)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x)[0].var, layer(x)[0].var)
    spgru.uncalibrate(layer)
    assert "coherence_l0" not in layer.state_dict()
    assert torch.equal(layer(x)[0].var, plain)
