"""Random networks against brute force: the figures the library stands on."""

from __future__ import annotations

import pytest
import torch

import spgru


@pytest.mark.brute
@pytest.mark.parametrize("relative_std", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("name", ["GRU", "GRU reset before", "LSTM", "RNN"])
def test_state_variance_at_every_step(name: str, relative_std: float, full: bool) -> None:
    """H=64, I=32, T=40; the weights' sd is relative to the range they are initialised in."""
    cls = getattr(spgru, name.split()[0])
    options = {"reset_after": False} if name.endswith("before") else {}
    network = cls(32, 64, weight_std=relative_std / 64**0.5, **options)
    x = torch.randn(40, 16, 32)
    draws = 4000 if full else 300
    report = spgru.audit(network, x, draws=draws, redraw=False).layers["l0"]
    low, high = report.ratio_interval
    assert (report.ratio > 0.8).all()
    assert (report.ratio < 1.2).all()
    assert ((high - low) / report.ratio < (0.02 if full else 0.06)).all()


@pytest.mark.brute
@pytest.mark.parametrize(("relative_std", "overstatement"), [(0.02, 100), (0.1, 10), (0.3, 2)])
def test_the_printed_rule_overstates(relative_std: float, overstatement: float) -> None:
    network = spgru.GRU(32, 64, weight_std=relative_std / 64**0.5, reset_after=False, rule="paper")
    report = spgru.audit(network, torch.randn(40, 16, 32), draws=50, redraw=False)
    assert (report.layers["l0"].ratio > overstatement).all()
