"""`calibrate` to what really happened: known factors, intervals that hold, what is missing."""

from __future__ import annotations

import copy
import json
import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from crepes import ConformalRegressor
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru import Moments
from spgru.calibration.outcomes import Outcomes, conformal_factor
from spgru.moments import pad_packed_moments
from spgru.nn.output_scale import OutputScale, scales_of
from spgru.nn.scale import Scale


class Model(nn.Module):
    """Certain mean 0; a variance from the weights that depends on the input, and noise."""

    def __init__(self, noise: float = 0.0, varies: bool = False) -> None:
        super().__init__()
        self.linear = spgru.Linear(1, 2, bias=False, weight_std=0.5)
        nn.init.zeros_(self.linear.weight)
        self.noise, self.varies = noise, varies

    def forward(self, x: Tensor) -> Moments:
        y = self.linear(x)
        noise = self.noise * (1 + x.abs()) if self.varies else self.noise
        return Moments(y.mean, y.var + noise)


def _data(a: float, b: Any) -> tuple[Tensor, Tensor]:
    """Sequences (400, 5, 1), and outcomes of variance a x^2 / 4 + b."""
    x = 3 * torch.randn(400, 5, 1)
    return x, (a * 0.25 * x**2 + b).sqrt() * torch.randn(400, 5, 2)


def test_one_factor_for_weights_and_one_for_the_noise() -> None:
    model = Model(noise=0.5)
    x, y = _data(a=4.0, b=0.2)
    report = spgru.calibrate(model, x, y)
    assert report.chosen == "weights and noise"
    scale = model.output_scale.outcomes
    # Of 3,000 outcomes a variance is known to 3 %.
    assert scale.factor.item() == pytest.approx(4.0, rel=0.15)
    assert scale.noise.tolist() == pytest.approx([0.2, 0.2], rel=0.25)
    var = model(x).var
    assert torch.allclose(var, 4 * 0.25 * x**2 + 0.2, rtol=0.25)
    assert report.squares.mean().item() == pytest.approx(1, abs=0.1)
    assert report.coverage == pytest.approx(0.9, abs=0.03)
    assert "before" in str(report)
    assert report.to_dict()["missing"] == 0
    spgru.uncalibrate(model)
    assert torch.equal(model(x).var, Model.forward(model, x).var)


def test_a_module_without_noise_gets_some_for_every_feature() -> None:
    model = Model()
    x, y = _data(a=2.0, b=torch.tensor([0.1, 1.0]))
    spgru.calibrate(model, x, y)
    scale = model.output_scale.outcomes
    assert scale.factor.item() == pytest.approx(2.0, rel=0.15)
    assert scale.noise.tolist() == pytest.approx([0.1, 1.0], rel=0.25)


def test_noise_that_depends_on_the_input() -> None:
    """It is found by a pass at the means of the weights, here and at every call afterwards."""
    model = Model(noise=0.5, varies=True)
    x = 3 * torch.randn(400, 5, 1)
    y = (3 * 0.25 * x**2 + 0.1 * (1 + x.abs())).sqrt() * torch.randn(400, 5, 2)
    report = spgru.calibrate(model, x, y)
    assert report.chosen == "weights and noise"
    scale = model.output_scale.outcomes
    assert scale.noise_factor.item() == pytest.approx(0.2, rel=0.35)
    expected = 3 * 0.25 * x**2 + 0.1 * (1 + x.abs())
    assert torch.allclose(model(x).var.mean(0), expected.mean(0), rtol=0.15)


def test_outcomes_after_drawn_networks() -> None:
    """The factors act on what the first calibration made of the variance."""
    model = Model()
    x, y = _data(a=2.0, b=0.3)
    spgru.nn.output_scale.attach_scale(model).set_(
        spgru.nn.output_scale.Scale(torch.linspace(1, 2, 5)[None])
    )
    first = model(x).var
    spgru.calibrate(model, x, y)
    scale = model.output_scale.outcomes
    assert torch.allclose(model(x).var, scale.factor * first + scale.noise, rtol=1e-4)


def test_outcomes_that_were_not_observed() -> None:
    x, y = _data(a=4.0, b=0.2)
    holes = torch.rand(y.shape) < 0.5
    models = Model(noise=0.5), Model(noise=0.5)
    report = spgru.calibrate(models[0], x, y.masked_fill(holes, torch.nan))
    assert report.missing > 0
    assert "not observed" in str(report)
    assert models[0].output_scale.outcomes.factor.item() == pytest.approx(4, rel=0.25)
    with pytest.raises(ValueError, match="NaN for all"):
        spgru.calibrate(models[1], x, torch.full_like(y, torch.nan))
    assert list(models[1].state_dict()) == list(Model().state_dict())


def test_intervals_hold_by_split_conformal() -> None:
    """Outcomes with heavy tails, where no variance makes Gaussian intervals hold."""
    model = Model(noise=0.5)
    x = 3 * torch.randn(800, 5, 1)

    def outcomes() -> Tensor:
        heavy = torch.distributions.StudentT(2.5).sample((800, 5, 2))
        return (0.25 * x**2 + 0.5).sqrt() * heavy

    report = spgru.calibrate(model, x, outcomes(), level=0.9)
    inside = spgru.metrics.coverage(model(x), outcomes(), 0.9).item()
    assert inside == pytest.approx(0.9, abs=0.02)
    assert report.coverage >= 0.9
    few = Outcomes(torch.zeros(8), torch.ones(8), torch.zeros(8), torch.randn(8))
    with pytest.raises(ValueError, match="takes at least 9 sequences"):
        conformal_factor(few, few.var, 0.9, 0)


def test_with_one_entry_a_sequence_intervals_are_those_of_a_split_conformal_library() -> None:
    # Where (count + 1) / 10 is whole the library takes the next rank: it rounds 1 - 0.9 down.
    for count in (10, 17, 50, 200):
        mean, y = torch.randn(2, count, dtype=torch.float64)
        var = torch.rand(count, dtype=torch.float64) + 0.1
        factor = conformal_factor(Outcomes(mean, var, torch.zeros_like(var), y), var, 0.9, 0)
        half = (factor * var).sqrt() * NormalDist().inv_cdf(0.95)
        library = ConformalRegressor().fit((y - mean).numpy(), sigmas=var.sqrt().numpy())
        wanted = library.predict_int(mean.numpy(), sigmas=var.sqrt().numpy(), confidence=0.9)
        found = torch.stack([mean - half, mean + half], 1)
        torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=1e-6, atol=3e-6)


def test_the_interval_that_is_found_holds_what_it_was_made_of() -> None:
    """With nine sequences held out all of them must lie within; the last one at its end."""
    model = spgru.nn.GaussianHead(3, 1)
    for seed in range(20):
        x, y = torch.randn(36, 3), torch.randn(36, 1)
        report = spgru.calibrate(model, x, y, level=0.9, seed=seed)
        assert report.sequences == 9
        assert report.coverage == 1


def test_a_report_is_json_where_a_step_was_never_observed() -> None:
    x, y = 3 * torch.randn(40, 5, 1), torch.randn(40, 5, 2)
    y[:, 2] = torch.nan
    report = spgru.calibrate(Model(noise=0.5), x, y)
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["squares"][2] is None
    assert found["squares"][1] == pytest.approx(report.squares[1].item())


def test_a_rank_that_is_whole_is_taken() -> None:
    for count in (9, 19, 199):
        y = torch.randn(count, dtype=torch.float64)
        known = Outcomes(torch.zeros_like(y), torch.ones_like(y), torch.zeros_like(y), y)
        found = conformal_factor(known, known.var, 0.9, 0).sqrt() * NormalDist().inv_cdf(0.95)
        wanted = y.abs().sort().values[(count + 1) * 9 // 10 - 1]
        assert found.item() == pytest.approx(wanted.item())


def test_intervals_hold_where_a_sequence_errs_as_a_whole() -> None:
    """15 sequences of 20 equal entries: by entries 14 of 16 new ones lie within, 0.875."""
    inside = []
    for _ in range(3000):
        error = torch.randn(16, 1, dtype=torch.float64).expand(16, 20).clone()
        error[:15][torch.rand(15, 20) < 0.3] = torch.nan  # not observed
        y = error[:15].T  # (time, sequences)
        known = Outcomes(torch.zeros_like(y), torch.ones_like(y), torch.zeros_like(y), y)
        factor = conformal_factor(known, known.var, 0.9, batch=1)
        inside.append(error[15, 0].square() <= factor * NormalDist().inv_cdf(0.95) ** 2)
    # 15 of 16 is the next above 0.9 that a rank can have.
    share = torch.stack(inside).double().mean().item()
    assert share == pytest.approx(15 / 16, abs=4 * math.sqrt(15 / 16 / 16 / 3000))


class Outer(nn.Module):
    """A module around one of the same kind, with a layer of its own or without."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = Model(), last

    def forward(self, x: Tensor) -> Moments:
        output: Moments = self.last(self.inner(x))
        return output


@pytest.mark.parametrize("last", [nn.Identity(), spgru.Linear(2, 2, weight_std=0.3)])
def test_an_outer_module_is_calibrated_after_an_inner_one(last: nn.Module) -> None:
    outer, (x, y) = Outer(last), _data(a=4.0, b=0.2)
    spgru.calibrate(outer.inner, x, y)
    plain = outer(x)
    outcomes = plain.mean + 3 * plain.var.sqrt() * torch.randn_like(plain.mean)
    spgru.calibrate(outer, x, outcomes)
    assert (outer(x).var / plain.var).mean().item() == pytest.approx(9, rel=0.15)
    # The inner one is not changed, unless its output is all there is.
    assert (len(scales_of(outer)) == 1) == isinstance(last, nn.Identity)
    spgru.uncalibrate(outer)
    assert not scales_of(outer)


def test_outcomes_that_are_the_mean_leave_the_module_as_it_is() -> None:
    model, (x, _) = Model(noise=0.5), _data(1.0, 0.1)
    before = model(x)
    for level in (None, 0.9):
        assert spgru.calibrate(model, x, before.mean, level=level).chosen == "plain"
        assert torch.equal(model(x).var, before.var)


def test_outcomes_that_cannot_be_used() -> None:
    model, (x, y) = Model(), _data(1.0, 0.1)
    for wrong, kind, message in (
        (y[:3], ValueError, "must be equal"),
        (y * torch.inf, ValueError, "infinite"),
        ([1.0], TypeError, "must be a Tensor"),
    ):
        with pytest.raises(kind, match=message):
            spgru.calibrate(model, x, wrong)
    with pytest.raises(ValueError, match="level must lie"):
        spgru.calibrate(model, x, y, level=2.0)
    with pytest.raises(ValueError, match="no place for a scale"):
        spgru.calibrate(spgru.GRU(1, 2), torch.randn(5, 6, 1), torch.randn(5, 6, 2))
    with pytest.raises(ValueError, match="at least 4 sequences"):
        spgru.calibrate(model, x[:2, :3], y[:2, :3])


def test_factors_on_the_whole_variance_alone() -> None:
    """With form="scale", where two factors would be better, there is one all the same."""
    model = Model(noise=0.5)
    x, y = _data(a=4.0, b=0.2)
    report = spgru.calibrate(model, x, y, form="scale")
    assert set(report.scores) == {"plain", "one factor", "factor per step"}
    assert report.chosen != "plain"
    before = Model.forward(model, x).var
    ratio = model(x).var / before
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_a_module_of_certain_weights() -> None:
    """Whose variance is noise alone: a quarter of the true one, so the factor is 4."""

    class Head(nn.Module):
        def forward(self, x: Tensor) -> Moments:
            return Moments(x, torch.full_like(x, 0.25))

    torch.manual_seed(0)
    x, head = torch.randn(2000, 3), Head()
    y = x + torch.randn_like(x)
    report = spgru.calibrate(head, x, y, form="scale", batch_dim=0, progress=False)
    assert report.chosen == "one factor"
    # The variance of a mean of n squares is 2 / n.
    error = 5 * (2 / (0.75 * y.numel())) ** 0.5
    torch.testing.assert_close(head(x).var, torch.ones_like(x), rtol=error, atol=0)
    with pytest.raises(ValueError, match="holds no random weights"):
        spgru.calibrate(Head(), x, progress=False)


@pytest.mark.parametrize("varies", [False, True])
@torch.no_grad()
def test_noise_of_outcomes_is_that_of_the_output_as_scaled_before(varies: bool) -> None:
    """a (f v - f own) + b f own, where the first fit has a factor f on everything."""
    v, own = torch.tensor([[3.0, 5.0]]), torch.tensor([[1.0, 1.5]])
    f, a, b = 4.0, 2.0, 3.0
    scale = OutputScale()
    scale.set_(Scale(torch.tensor([f])))
    if varies:
        outcomes = Scale(torch.tensor([a]), noise_factor=torch.tensor(b))
    else:
        outcomes = Scale(torch.tensor([a]), own=f * own[0], noise=b * f * own[0])
    scale.set_outcomes_(outcomes)
    found = scale.scaled(Moments(torch.zeros(1, 2), v), own if varies else None)
    assert torch.allclose(found.var, a * (f * v - f * own) + b * f * own)


@torch.no_grad()
def test_a_fit_to_outcomes_takes_the_place_of_an_earlier_one() -> None:
    """And all forms are tried again; what a fit to drawn networks found stays."""
    model, x = Recurrent(True), torch.randn(200, 6, 3)
    dims = {"batch_dim": 0, "time_dim": 1}
    spgru.calibrate(model, x[:24], draws=50, form="scale per step", **dims)  # type: ignore[arg-type]
    drawn, mean = model(x).var, model(x).mean
    first = mean + torch.tensor([0.1, 1.0]) * torch.randn(200, 6, 2)
    second = mean + torch.linspace(0.1, 3, 6)[:, None] * torch.randn(200, 6, 2)
    fresh = copy.deepcopy(model)
    assert spgru.calibrate(model, x, first, **dims).chosen == "weights and noise"  # type: ignore[arg-type]
    for one in (model, fresh):
        assert spgru.calibrate(one, x, second, **dims).chosen == "factor per step"  # type: ignore[arg-type]
    assert torch.equal(model(x).var, fresh(x).var)
    # Outcomes that say nothing new take the earlier ones out, too.
    outcomes = mean + drawn.sqrt() * torch.randn(200, 6, 2)
    spgru.calibrate(model, x, outcomes, **dims)  # type: ignore[arg-type]
    assert torch.allclose(model(x).var, drawn, rtol=0.2)


def test_the_pass_that_finds_the_noise_is_not_recorded() -> None:
    torch.manual_seed(0)
    model = Model(noise=0.5, varies=True)
    x, y = _data(a=4.0, b=0.2)
    plain = spgru.trace(model, x[:8])
    spgru.calibrate(model, x, y)
    assert model.output_scale.outcomes.noise_factor is not None
    for name, neurons in spgru.trace(model, x[:8]).items():
        assert {k: v.shape for k, v in neurons.items()} == {
            k: v.shape for k, v in plain[name].items()
        }
    assert spgru.audit(model, x[:8], draws=10).output is not None


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.gru = spgru.GRU(3, 2, batch_first=batch_first, weight_std=0.4)

    def forward(self, x: Any) -> Moments:
        found: Moments = self.gru(x)[0]
        return found


@pytest.mark.parametrize("batch_first", [True, False])
def test_factors_of_steps_hold_for_packed_sequences(batch_first: bool) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(batch_first), torch.randn(24, 6, 3)
    y = torch.linspace(0.5, 3, 6)[:, None] * torch.randn(24, 6, 2)
    if not batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    dims = {"batch_dim": 0, "time_dim": 1} if batch_first else {"batch_dim": 1, "time_dim": 0}
    assert spgru.calibrate(model, x, y, **dims).chosen == "factor per step"  # type: ignore[arg-type]
    lengths, batch = [3, 6, 2, 5], 0 if batch_first else 1
    packed = model(
        pack_padded_sequence(x.narrow(batch, 0, 4), torch.tensor(lengths), batch_first, False)
    )
    padded, _ = pad_packed_moments(packed, batch_first)
    for number, length in enumerate(lengths):
        cut = (slice(number, number + 1), slice(length))
        cut = cut if batch_first else cut[::-1]
        torch.testing.assert_close(padded[cut].var, model(x[cut]).var, rtol=1e-5, atol=1e-7)


def test_noise_that_depends_on_the_input_is_scaled_in_packed_sequences() -> None:
    scale = OutputScale()
    scale.set_(Scale(torch.tensor([3.0]), noise_factor=torch.tensor(2.0)))
    x, own = (torch.rand(5, 4, 2) for _ in range(2))
    lengths = torch.tensor([2, 5, 1, 4])
    whole = scale.scaled(Moments(x, 1 + x), own)
    parts = [pack_padded_sequence(part, lengths, enforce_sorted=False) for part in (x, 1 + x, own)]
    packed = scale.scaled(Moments(parts[0], parts[1]), parts[2])  # type: ignore[arg-type]
    found, _ = pad_packed_moments(packed)
    for number, length in enumerate(lengths.tolist()):
        assert torch.equal(found.var[:length, number], whole.var[:length, number])


def test_a_module_inside_keeps_its_calibration_when_loaded() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(Recurrent(True), spgru.Linear(2, 1)) for _ in range(2)]
    x = torch.randn(24, 6, 3)
    spgru.calibrate(models[0][0], x, 3 * torch.randn(24, 6, 2))
    spgru.load_calibration(models[1], models[0].state_dict())
    assert torch.equal(models[1](x).var, models[0](x).var)
    spgru.uncalibrate(models[0])
    assert not torch.equal(models[1](x).var, models[0](x).var)


def test_a_feature_that_was_never_observed_leaves_the_others_theirs() -> None:
    model = Model()
    x, y = _data(a=2.0, b=torch.tensor([0.1, 1.0]))
    y[..., 1] = torch.nan
    assert spgru.calibrate(model, x, y).chosen == "weights and noise"
    assert model.output_scale.outcomes.noise[0].item() == pytest.approx(0.1, rel=0.3)
    assert bool(model(x).var.isfinite().all())
