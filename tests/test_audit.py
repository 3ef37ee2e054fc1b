from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from oracles import resident_kilobytes
from spgru import Moments, certain, modes
from spgru.nn.contexts import sampling
from test_tracing import Forecaster


def test_one_draw_is_torch_nn_with_the_drawn_weights() -> None:
    """The brute force is independent of the closed form: it is the network `torch.nn` runs."""
    for name in ("GRU", "LSTM", "RNN"):
        layer = getattr(spgru, name)(3, 4, 2, bidirectional=True)
        reference = getattr(nn, name)(3, 4, 2, bidirectional=True)
        x = torch.randn(6, 2, 3)
        with sampling(layer, torch.Generator().manual_seed(1)):
            for key in layer.weights():
                with torch.no_grad():
                    getattr(reference, key).copy_(layer._value(key))
            output, _ = layer(x)
        torch.testing.assert_close(output.mean, reference(x)[0])
        assert (output.var == 0).all()
        assert isinstance(layer._value("weight_ih_l0"), Moments)  # back to moments afterwards


def test_draws_have_the_weights_distribution() -> None:
    layer = spgru.GRU(2, 2, weight_std=0.3)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(4000):
        with sampling(layer, generator):
            draws.append(layer._value("weight_hh_l0"))
    samples = torch.stack(draws)
    moments = layer.weight_moments("weight_hh_l0")
    assert ((samples.mean(0) - moments.mean).abs() < 5 * 0.3 / 4000**0.5).all()
    assert ((samples.std(0) / 0.3 - 1).abs() < 5 / 8000**0.5).all()


def test_redrawing_gives_every_step_its_own_weights() -> None:
    """With h kept out of the way, steps are then independent; with kept weights they are equal."""
    layer = spgru.RNN(2, 3, weight_std=0.5)
    layer.set_weight_("weight_hh_l0", Moments(torch.zeros(3, 3), torch.zeros(3, 3)))
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
            (records,) = modes.records_of(self)
            record = records.pop()
            value = record.neurons["output"]
            if isinstance(value, Moments):
                value = Moments(value.mean, 2 * value.var)
            records.append(record._replace(neurons={"output": value}))
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
    assert len(figure.axes) == 12  # five layers and the output
    without = spgru.audit(module, x, draws=5, redraw=False)
    assert without.layers["head"].redrawn_ratio is None
    str(without)
    without.plot()


class Between(nn.Module):
    """Variance that the module itself adds between our layers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = spgru.Linear(6, 6, weight_std=0.01)
        self.second = spgru.Linear(6, 5, weight_std=0.01)
        self.rnn = spgru.RNN(6, 5, weight_std=0.01)

    def forward(self, x: torch.Tensor) -> Moments:
        if self.kind == "input":
            return self.second(Moments(x, torch.ones_like(x)))
        if self.kind == "dropout":
            return self.second(spgru.functional.dropout(self.first(x), 0.5))
        return self.rnn(x[None], Moments(torch.zeros(1, 7, 5), 0.1 * torch.ones(1, 7, 5)))[0]


@pytest.mark.parametrize(
    ("kind", "layer"), [("input", "second"), ("dropout", "second"), ("state", "rnn.l0")]
)
def test_variance_made_between_layers_counts(kind: str, layer: str) -> None:
    report = spgru.audit(Between(kind), torch.randn(7, 6), draws=1000, redraw=False)
    low, high = report.layers[layer].ratio_interval
    assert low - 0.05 < 1 < high + 0.05


def test_feed_forward_layers_have_a_row_per_step() -> None:
    class Head(nn.Module):
        def __init__(self, stream: bool) -> None:
            super().__init__()
            self.gru, self.head, self.stream = spgru.GRU(3, 4), spgru.Linear(4, 1), stream

        def forward(self, x: torch.Tensor) -> Moments:
            if not self.stream:
                return self.head(self.gru(x)[0])
            state, outputs = None, []
            for x_t in x:
                output, state = self.gru.step(x_t, state)
                outputs.append(self.head(output))
            return spgru.stack(outputs)

    x = torch.randn(6, 2, 3)
    whole = Head(stream=False)
    streamed = Head(stream=True)
    streamed.load_state_dict(whole.state_dict())
    reports = [spgru.audit(module, x, draws=20, redraw=False) for module in (whole, streamed)]
    for report in reports:
        assert len(report.layers["head"].ratio) == 6
        assert len(report.layers["gru.l0"].ratio) == 6
    torch.testing.assert_close(
        reports[0].layers["head"].closed_var, reports[1].layers["head"].closed_var
    )


def test_packed_input() -> None:
    """Padding is left out: each sequence reports what it reports alone."""
    lengths = [2, 5, 3]
    x = Moments(torch.randn(5, 3, 3), torch.rand(5, 3, 3))
    lstm = spgru.LSTM(3, 4)
    plain = pack_padded_sequence(x.mean, lengths, enforce_sorted=False)
    assert len(spgru.audit(lstm, plain, draws=5).layers["l0"].ratio) == 5
    state = Moments(torch.zeros(1, 3, 4), torch.ones(1, 3, 4))
    packed = spgru.pack_padded_moments(x, lengths, enforce_sorted=False)
    report = spgru.audit(lstm, (packed, (state, state)), draws=2000, redraw=False).layers["l0"]
    alone = spgru.audit(
        lstm, (x[:, 1:2], (state[:, 1:2], state[:, 1:2])), draws=2000, redraw=False
    ).layers["l0"]
    # Only the longest sequence is left at the last two steps.
    torch.testing.assert_close(report.closed_var[3:], alone.closed_var[3:] / 3)
    torch.testing.assert_close(report.ratio[3:], alone.ratio[3:], rtol=0.1, atol=0)
    torch.testing.assert_close(report.coverage[:, 3:], alone.coverage[:, 3:], rtol=0, atol=0.03)


def test_positive_linear_layers_are_exact_too() -> None:
    x = torch.rand(7, 6)
    for family in ("gamma", "poisson"):
        layer = spgru.Linear(6, 5, family=family)
        for value in (x, certain(x)):
            report = spgru.audit(layer, value, draws=4000, redraw=False).layers["output"]
            assert report.ratio.item() == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gamma_networks(dtype: torch.dtype) -> None:
    gru = spgru.GRU(3, 8, family="gamma", dtype=dtype)
    report = spgru.audit(gru, torch.rand(6, 4, 3, dtype=dtype), draws=300).layers["l0"]
    # Positive units all move together, so much is lost to shared weights; but nothing else is.
    assert ((report.redrawn_ratio > 0.85) & (report.redrawn_ratio < 1.15)).all()


def test_memory_does_not_grow_with_draws() -> None:
    """Keeping the states of 600 draws, 160 kB each, would take 98 MB."""
    gru, x = spgru.RNN(8, 64), torch.randn(10, 64, 8)
    spgru.audit(gru, x, draws=50, redraw=False)
    before = resident_kilobytes()
    spgru.audit(gru, x, draws=600, redraw=False)
    assert resident_kilobytes() - before < 20_000


class _Noisy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = spgru.GRU(2, 3, batch_first=True), spgru.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> spgru.Moments:
        y = self.head(self.gru(x)[0])
        return spgru.Moments(y.mean, y.var + 0.5)


def test_the_modules_own_output_and_its_noise() -> None:
    """The noise that a module adds is part of its output's variance, and of no layer's."""
    report = spgru.audit(_Noisy(), torch.randn(4, 5, 2), draws=300, redraw=False)
    assert list(report.layers) == ["gru.l0", "head"]
    assert report.output is not None
    assert report.output.true_var.tolist() == pytest.approx([0.5] * 5, rel=0.15)
    assert report.output.ratio.tolist() == pytest.approx([1] * 5, rel=0.15)
    assert report.output.coverage.mean(1).tolist() == pytest.approx([0.5, 0.9, 0.95], abs=0.03)
    assert report.output.plain_ratio is None
    assert "before calibration" not in str(report)
    assert str(report).count("output") == 5
    assert report.to_dict()["output"]["ratio"] == report.output.ratio.tolist()
    assert spgru.audit(spgru.GRU(2, 3), torch.randn(4, 5, 2), draws=2).output is None


def test_before_and_after_calibration() -> None:
    model, x = _Noisy(), torch.randn(4, 5, 2)
    before = spgru.audit(model, x, draws=5, redraw=False)
    model.gru.set_gains_({"weight_hh_l0": torch.full((9,), 3.0)})
    spgru.nn.output_scale.attach_scale(model).set_(spgru.nn.output_scale.Scale(torch.tensor([2.0])))
    after = spgru.audit(model, x, draws=5, redraw=False)
    assert after.output is not None
    assert before.output is not None
    assert torch.allclose(after.output.plain_ratio, before.output.ratio)
    assert bool((after.output.closed_var > 1.9 * before.output.closed_var).all())
    layer = after.layers["gru.l0"]
    assert torch.allclose(layer.plain_ratio, before.layers["gru.l0"].ratio)
    assert bool((layer.closed_var[1:] > layer.plain_var[1:]).all())
    assert "before calibration" in str(after)
    after.plot()


def test_audit_refuses_nan() -> None:
    with pytest.raises(ValueError, match="x holds NaN"):
        spgru.audit(spgru.GRU(2, 3), torch.full((4, 3, 2), torch.nan), draws=2)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batch", [5, 7])
def test_an_output_of_horizons_has_no_time_of_the_layer(batch: int, batch_first: bool) -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(2, 3, batch_first=batch_first), spgru.Linear(3, 5)

        def forward(self, x: Tensor) -> Moments:
            last = self.gru(x)[1][-1]
            return self.head(last).unflatten(-1, (5, 1))

    x = torch.randn(batch, 4, 2) if batch_first else torch.randn(4, batch, 2)
    report = spgru.audit(Direct(), x, draws=2)
    assert report.output is not None
    assert report.output.closed_var.shape == (1,)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batch", [5, 7])
def test_an_output_that_is_read_back_has_a_row_per_step(batch: int, batch_first: bool) -> None:
    """Its 5 steps are none of the layer's 8, but the layer was called as often."""

    class FedBack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(2, 3, batch_first=batch_first), spgru.Linear(3, 2)

        def forward(self, x: Tensor) -> Moments:
            time, value, state, outputs = int(batch_first), x, None, []
            for _ in range(5):
                output, state = self.gru(value, state)
                last = output[:, -1:] if batch_first else output[-1:]
                value = self.head(last)
                outputs.append(value)
            return spgru.cat(outputs, time)

    x = torch.randn(batch, 4, 2) if batch_first else torch.randn(4, batch, 2)
    report = spgru.audit(FedBack(), x, draws=2)
    assert report.output is not None
    assert len(report.layers["gru.l0"].closed_var) == 8
    assert report.output.closed_var.shape == (5,)


def test_an_output_without_the_first_steps_has_a_row_per_step() -> None:
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(2, 3), spgru.Linear(3, 1)

        def forward(self, x: Tensor) -> Moments:
            return self.head(self.gru(x)[0][2:])

    report = spgru.audit(Warm(), torch.randn(6, 3, 2), draws=2)
    assert report.output is not None
    assert report.output.closed_var.shape == (4,)


class _Transposed(nn.Module):
    """The batch first outside, time first inside."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = spgru.GRU(1, 3), spgru.Linear(3, 1)

    def forward(self, x: Tensor) -> Moments:
        return self.head(self.gru(x.transpose(0, 1))[0]).transpose(0, 1)


class _Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = spgru.GRUCell(1, 3), spgru.Linear(3, 1)

    def forward(self, x: Tensor) -> Moments:
        state, outputs = None, []
        for x_t in x.unbind(1):
            state = self.cell(x_t, state)
            outputs.append(self.head(state))
        return spgru.stack(outputs, 1)


@pytest.mark.parametrize("kind", [_Transposed, _Cells])
@pytest.mark.parametrize("batch", [5, 8])
def test_rows_of_the_output_are_its_steps_wherever_the_layer_has_them(
    kind: type[nn.Module], batch: int
) -> None:
    module, x = kind(), torch.randn(batch, 8, 1)
    output = spgru.audit(module, x, draws=2, redraw=False).output
    assert output is not None
    wanted = module(x).var.detach().double().mean((0, 2))
    torch.testing.assert_close(output.closed_var, wanted)


def test_a_squeezed_output_with_time_first_has_a_row_per_step() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(1, 3), spgru.Linear(3, 1)

        def forward(self, x: Tensor) -> Moments:
            return self.head(self.gru(x)[0]).squeeze(-1)

    output = spgru.audit(Squeezed(), torch.randn(6, 5, 1), draws=2, redraw=False).output
    assert output is not None
    assert output.closed_var.shape == (6,)


def test_a_report_is_json_where_nothing_varies() -> None:
    layer = spgru.Linear(2, 3, weight_std=0.0)
    report = spgru.audit(layer, torch.randn(4, 2), draws=2)
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["layers"]["output"]["ratio"] == [None]
