from __future__ import annotations

import json
import resource
from typing import Any

import pytest
import torch
from torch import nn

import spgru
from spgru import Moments
from spgru.nn.weight import sampling
from test_tracing import Forecaster


def test_one_draw_is_torch_nn_with_the_drawn_weights() -> None:
    """The brute force is independent of the closed form: it is the network `torch.nn` runs."""
    for name in ("GRU", "LSTM", "RNN"):
        layer = getattr(spgru, name)(3, 4, 2, bidirectional=True)
        reference = getattr(nn, name)(3, 4, 2, bidirectional=True)
        x = torch.randn(6, 2, 3)
        with sampling(layer, torch.Generator().manual_seed(1)):
            for key, weight in layer.named_children():
                with torch.no_grad():
                    getattr(reference, key).copy_(weight())
            output, _ = layer(x)
        torch.testing.assert_close(output.mean, reference(x)[0])
        assert (output.var == 0).all()
        assert isinstance(layer.weight_ih_l0(), Moments)  # back to moments afterwards


def test_draws_have_the_weights_distribution() -> None:
    layer = spgru.GRU(2, 2, weight_std=0.3)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(4000):
        with sampling(layer, generator):
            draws.append(layer.weight_hh_l0())
    samples = torch.stack(draws)
    moments = layer.weight_hh_l0.moments()
    assert ((samples.mean(0) - moments.mean).abs() < 5 * 0.3 / 4000**0.5).all()
    assert ((samples.std(0) / 0.3 - 1).abs() < 5 / 8000**0.5).all()


def test_redrawing_gives_every_step_its_own_weights() -> None:
    """With h kept out of the way, steps are then independent; with kept weights they are equal."""
    layer = spgru.RNN(2, 3, weight_std=0.5)
    layer.weight_hh_l0.set_(Moments(torch.zeros(3, 3), torch.zeros(3, 3)))
    x = torch.ones(4, 1, 2)
    generator = torch.Generator().manual_seed(0)
    with sampling(layer, generator):
        kept = layer(x)[0].mean
    with sampling(layer, generator, every_step=True):
        redrawn = layer(x)[0].mean
    assert torch.equal(kept[0], kept[3])
    assert not torch.isclose(redrawn[0], redrawn[3]).any()


def exact_case() -> tuple[spgru.Linear, Moments]:
    """A linear layer is exact, so every figure of its report is known beforehand."""
    layer = spgru.Linear(6, 5, weight_std=0.4)
    return layer, Moments(torch.randn(7, 6), torch.rand(7, 6))


def test_report_of_an_exact_layer() -> None:
    layer, x = exact_case()
    report = spgru.audit(layer, x, draws=4000).layers["output"]
    low, high = report.ratio_interval
    assert low < 1 < high
    assert (high - low).item() < 0.1
    assert 0.9 < report.ratio.item() < 1.1
    assert report.mean_error.item() < 2 / 4000**0.5
    # A product of Gaussians has heavier tails than a Gaussian, so only nearly the nominal levels.
    assert report.coverage.squeeze().tolist() == pytest.approx([0.5, 0.9, 0.95], abs=0.03)


def test_confidence_interval_covers_the_truth_as_often_as_it_says() -> None:
    layer, x = exact_case()
    hits = []
    for seed in range(60):
        low, high = spgru.audit(layer, x, draws=50, seed=seed).layers["output"].ratio_interval
        hits.append(bool(low < 1 < high))
    # 95 % of 60, less four standard errors of a proportion
    assert sum(hits) / 60 > 0.95 - 4 * (0.95 * 0.05 / 60) ** 0.5


def test_notices_a_wrong_variance() -> None:
    layer, x = exact_case()

    class Overstated(spgru.Linear):
        def forward(self, x: Any) -> Moments:
            output = super().forward(x)
            record = self._records.pop()
            value = record.neurons["output"]
            if isinstance(value, Moments):
                value = Moments(value.mean, 2 * value.var)
            self._records.append(record._replace(neurons={"output": value}))
            return output

    wrong = Overstated(6, 5)
    wrong.load_state_dict(layer.state_dict())
    report = spgru.audit(wrong, x, draws=1000).layers["output"]
    assert report.ratio.item() == pytest.approx(2, rel=0.1)


def test_same_seed_same_report() -> None:
    gru, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    first, second = (spgru.audit(gru, x, draws=20, seed=3).to_dict() for _ in range(2))
    assert first == second
    assert first != spgru.audit(gru, x, draws=20, seed=4).to_dict()
    state = torch.get_rng_state()
    spgru.audit(gru, x, draws=2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("layer", [spgru.GRU, spgru.LSTM, spgru.RNN])
def test_users_module(layer: type) -> None:
    module = Forecaster(layer)
    x = Moments(torch.randn(2, 5, 3), 0.1 * torch.rand(2, 5, 3))
    report = spgru.audit(module, x, draws=30)
    assert list(report.layers) == list(spgru.trace(module, x))
    assert len(report.layers["encoder.l0"].ratio) == 5
    assert len(report.layers["head"].ratio) == 1
    text = str(report)
    assert "closed/truth [95 % interval]" in text
    assert "encoder.l1_reverse" in text
    json.dumps(report.to_dict())
    figure = report.plot()
    assert len(figure.axes) == 10
    without = spgru.audit(module, x, draws=5, redraw=False)
    assert without.layers["head"].redrawn_ratio is None
    str(without)
    without.plot()


def test_packed_uncertain_input_and_state() -> None:
    lengths = [5, 3]
    lstm = spgru.LSTM(3, 4)
    x = Moments(torch.randn(5, 2, 3), torch.rand(5, 2, 3))
    state = Moments(torch.zeros(1, 2, 4), torch.ones(1, 2, 4))
    packed = spgru.pack_padded_moments(x, lengths)
    report = spgru.audit(lstm, (packed, (state, state)), draws=300)
    assert ((report.layers["l0"].ratio > 0.6) & (report.layers["l0"].ratio < 1.4)).all()


@pytest.mark.parametrize("family", ["gamma", "poisson"])
def test_positive_families(family: str) -> None:
    gru = spgru.GRU(3, 8, family=family)
    report = spgru.audit(gru, torch.rand(6, 4, 3), draws=50)
    assert torch.isfinite(report.layers["l0"].ratio).all()


def test_memory_does_not_grow_with_draws() -> None:
    """Keeping the states of 600 draws, 160 kB each, would take 98 MB."""
    gru, x = spgru.RNN(8, 64), torch.randn(10, 64, 8)
    spgru.audit(gru, x, draws=50, redraw=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spgru.audit(gru, x, draws=600, redraw=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # kB
