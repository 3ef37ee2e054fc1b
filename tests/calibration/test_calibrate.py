"""`calibrate` against exact answers and against brute force on sequences it never saw."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.calibration.fit import fit_scale
from spgru.calibration.layout import Place, find_layout
from spgru.calibration.truth import Own, Shape, drawn_truths
from spgru.models import ModelConfig, build
from spgru.nn.contexts import recording
from spgru.nn.output_scale import attach_scale
from spgru.nn.scale import Scale

QUICK: dict[str, Any] = {"draws": 40, "steps": 20, "rate": 0.1, "progress": False}


class Forecaster(nn.Module):
    """Reads a series, and then goes on with its own predictions."""

    def __init__(self, horizon: int = 3, batch_first: bool = True, noise: float = 0.0) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, 6, batch_first=batch_first, weight_std=0.15)
        self.head = spgru.Linear(6, 1, weight_std=0.15)
        self.horizon, self.noise = horizon, noise

    def forward(self, x: Any) -> Moments:
        out, state = self.gru(x)
        time = 1 if self.gru.batch_first else 0
        y = self.head(out[:, -1] if time else out[-1])
        found = [y]
        for _ in range(self.horizon - 1):
            out, state = self.gru.step(y, state)
            y = self.head(out)
            found.append(y)
        result = spgru.stack(found, time)
        return Moments(result.mean, result.var + self.noise) if self.noise else result


@pytest.fixture
def forecaster() -> Forecaster:
    torch.manual_seed(2)
    model = Forecaster()
    with torch.no_grad():  # large weights, so that predictions matter to the next ones
        for name, parameter in model.named_parameters():
            if name.endswith(("weight_hh_l0", "weight_ih_l0", "head.weight")):
                parameter.mul_(2)
    return model


def _truth(model: nn.Module, x: Tensor, draws: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return drawn_truths(model, model, [(x,)], draws, generator, lambda: None)[0].output


def test_the_gain_of_inputs_that_move_together() -> None:
    """One uncertain number, copied to 5 units by certain weights: their sum has a known variance.

    The gain that makes it true is (sum of w u)^2 over the sum of (w u)^2.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        spgru.Linear(1, 5, bias=False, weight_std=0.0),
        spgru.Linear(5, 2, bias=False, weight_std=0.0),
    )
    first, second = model[0].weight.detach(), model[1].weight.detach()
    products = second * first.T
    expected = products.sum(1) ** 2 / (products**2).sum(1)
    x = Moments(torch.randn(16, 1), 0.5 + torch.rand(16, 1))
    report = spgru.calibrate(model, x, draws=1000, steps=100, progress=False)
    assert "gains" in report.chosen
    assert report.ratio.item() == pytest.approx(1, abs=0.1)
    # The standard error of a variance over 1,000 draws is 4.5 %.
    true = (second @ first).T ** 2 * x.var
    assert torch.allclose(model(x).var, true, rtol=0.18)
    gain = model[1].gain_w
    assert torch.allclose(gain / gain[0], expected / expected[0], rtol=0.2)


def test_predictions_that_are_read_back(forecaster: Forecaster) -> None:
    """On sequences that the fit has not seen, the variance is nearer to the truth."""
    torch.manual_seed(3)
    report = spgru.calibrate(forecaster, torch.randn(12, 3, 1), **{**QUICK, "draws": 150})
    x = torch.randn(12, 3, 1)
    true = _truth(forecaster, x).mean((0, 2))
    with torch.no_grad():
        after = forecaster(x).var.mean((0, 2)) / true
        with spgru.uncalibrated(forecaster):
            before = forecaster(x).var.mean((0, 2)) / true
    # Before it is 0.95, 1.6 and 1.6; of 150 draws a variance is known to 12 %.
    assert before.log().abs().max() > 0.35
    assert after.log().abs().max() < 0.25
    assert report.chosen != "plain"
    assert report.scores[report.chosen] < report.scores["plain"]
    text = str(report)
    assert f"(so many know a variance to {100 * (2 / report.draws) ** 0.5:.2g} %" in text
    assert "before" in text
    assert report.chosen in text
    assert len(report.ratio) == 3
    assert report.to_dict()["sequences"] == (9, 3)


def test_nothing_else_changes(forecaster: Forecaster) -> None:
    forecaster.train()
    forecaster.head.eval()
    forecaster.gru.weight_hh_l0.requires_grad_(False)
    forecaster.head.weight.grad = torch.ones_like(forecaster.head.weight)
    x = torch.randn(8, 4, 1)
    before, state = forecaster(x), torch.get_rng_state()
    keys = list(forecaster.state_dict())
    report = spgru.calibrate(forecaster, x, **QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    assert forecaster.training
    assert forecaster.gru.training
    assert not forecaster.head.training
    assert not forecaster.gru.weight_hh_l0.requires_grad
    assert forecaster.gru.weight_ih_l0.requires_grad
    assert torch.equal(forecaster.head.weight.grad, torch.ones_like(forecaster.head.weight))
    assert forecaster.gru.weight_ih_l0.grad is None
    assert torch.equal(forecaster(x).mean, before.mean) or "gains" in report.chosen
    assert not torch.equal(forecaster(x).var, before.var)
    spgru.uncalibrate(forecaster)
    assert list(forecaster.state_dict()) == keys
    after = forecaster(x)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.var, before.var)
    assert not forecaster._forward_hooks


def test_the_same_seed_the_same_calibration(forecaster: Forecaster) -> None:
    x = torch.randn(8, 4, 1)
    reports = []
    for seed in (0, 0, 1):
        torch.rand(3)
        reports.append(spgru.calibrate(forecaster, x, seed=seed, **QUICK).to_dict())
    assert reports[0] == reports[1] != reports[2]


@pytest.mark.parametrize("batch_first", [True, False], ids=["(B, T)", "(T, B)"])
def test_layouts_are_found_out(batch_first: bool) -> None:
    """With as many steps as sequences, too."""
    model = Forecaster(3, batch_first)
    x = torch.randn(5, 5, 1)
    spgru.calibrate(model, x, **QUICK)
    report = spgru.calibrate(model, x, time_dim=1 if batch_first else 0, **QUICK)
    assert len(report.ratio) == 3
    with pytest.raises(ValueError, match="holds sequences"):
        spgru.calibrate(model, x, time_dim=0 if batch_first else 1, **QUICK)


@pytest.mark.parametrize("layer", [spgru.GRU, spgru.LSTM, spgru.RNN])
def test_a_layer_has_gains_only(layer: Any) -> None:
    torch.manual_seed(1)
    gru = layer(2, 6, weight_std=0.2)
    report = spgru.calibrate(gru, torch.randn(5, 8, 2), **QUICK)
    assert set(report.scores) == {"plain", "gains"}
    assert not gru._forward_hooks


def test_a_form_that_is_asked_for(forecaster: Forecaster) -> None:
    """Gains act in a stream too, where no output of the module is there to be scaled."""
    x = torch.randn(8, 4, 1)
    _, state = forecaster.gru.step(x[:, 0])
    plain, _ = forecaster.gru.step(x[:, 1], state)
    report = spgru.calibrate(forecaster, x, form="gains", **QUICK)
    assert set(report.scores) == {"plain", "gains"}
    assert not hasattr(forecaster, "output_scale")
    after, _ = forecaster.gru.step(x[:, 1], state)
    assert not torch.equal(after.var, plain.var)
    report = spgru.calibrate(forecaster, x, form="scale", **QUICK)
    assert not any("gains" in name for name in report.scores)
    assert not forecaster.gru.gains()
    with pytest.raises(ValueError, match="form"):
        spgru.calibrate(forecaster, x, form="other", **QUICK)


def test_one_form_by_its_name(forecaster: Forecaster) -> None:
    """It competes with the plain form alone, and has the numbers that a search of all has."""
    x = torch.randn(8, 4, 1)
    scores = spgru.calibrate(forecaster, x, **QUICK).scores
    name: Any = "gains, one scale"
    report = spgru.calibrate(forecaster, x, form=name, **QUICK)
    assert report.scores == {"plain": scores["plain"], name: scores[name]}
    assert report.chosen == name
    with pytest.raises(ValueError, match="cannot be fitted to GRU and x: a scale takes a"):
        spgru.calibrate(forecaster.gru, x, form="one scale", **QUICK)
    with pytest.raises(ValueError, match="leave it out with y"):
        spgru.calibrate(forecaster, x, torch.zeros(8, 1), form=name, **QUICK)


def test_calibrated_modules_travel(forecaster: Forecaster) -> None:
    x = torch.randn(8, 4, 1)
    report = spgru.calibrate(forecaster, x, **QUICK)
    assert "scale" in report.chosen
    with torch.no_grad():
        expected = forecaster(x).var
        assert torch.equal(copy.deepcopy(forecaster)(x).var, expected)
        assert torch.equal(pickle.loads(pickle.dumps(forecaster))(x).var, expected)
        fresh = Forecaster()
        with pytest.raises(RuntimeError, match="output_scale"):
            fresh.load_state_dict(forecaster.state_dict())
        spgru.load_calibration(fresh, forecaster.state_dict())
        assert torch.equal(fresh(x).var, expected)
        spgru.load_calibration(fresh, Forecaster().state_dict())
        assert not fresh.gru.gains()
        assert fresh.output_scale.scale is None
        assert copy.deepcopy(forecaster).double().output_scale.factor.dtype == torch.float64
        # Steps beyond those of the calibration have the factor of its last.
        forecaster.horizon = 5
        longer = forecaster(x).var
        with spgru.uncalibrated(forecaster):
            plain = forecaster(x).var
    assert longer.shape == (8, 5, 1)
    ratio = longer / plain
    assert torch.allclose(ratio[:, 3:], ratio[:, 2:3], rtol=1e-4) or "gains" in report.chosen
    assert not torch.allclose(ratio[:, 3:], torch.ones(8, 2, 1), rtol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own torch.jit
def test_compiled_and_exported() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(1, 4), spgru.Linear(4, 2)

        def forward(self, x: Any) -> Moments:
            return self.head(self.gru(x)[0])

    network, x = Network(), torch.randn(6, 3, 1)
    plain = network(x).var
    power = torch.linspace(0.1, 0.3, 6)
    scale = Scale(torch.rand(6) + 1, power, torch.rand(2) * 1e-3, torch.rand(2))
    attach_scale(network).set_(scale)
    expected = network(x).var
    assert not torch.allclose(expected, plain)
    with torch.no_grad():
        compiled = torch.compile(network, backend="aot_eager")
        assert torch.allclose(compiled(x).var, expected, rtol=1e-5)
    time = torch.export.Dim("time", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(network, (x,), dynamic_shapes={"x": {0: time}}).module()
        assert torch.allclose(exported(x).var, expected, rtol=1e-5)
        longer = torch.randn(9, 3, 1)
        assert torch.allclose(exported(longer).var, network(longer).var, rtol=1e-5)


def test_a_function_of_the_output(forecaster: Forecaster) -> None:
    """Where `call` does something with the output, no scale of it can be fitted."""
    x = torch.randn(8, 4, 1)
    report = spgru.calibrate(forecaster, x, call=lambda x: torch.sigmoid(forecaster(x)), **QUICK)
    assert set(report.scores) == {"plain", "gains"}
    assert not hasattr(forecaster, "output_scale")


def test_noise_of_the_module_is_left_alone(forecaster: Forecaster) -> None:
    """Truth is the variance of the weights' part plus the noise, and factors act on the former."""
    forecaster.noise = 0.3
    x = torch.randn(12, 4, 1)
    report = spgru.calibrate(forecaster, x, **{**QUICK, "draws": 150})
    assert report.ratio.mean().item() == pytest.approx(1, abs=0.15)
    assert bool((forecaster(x).var >= 0.3).all())


@pytest.mark.parametrize("time", [0, 1])
def test_scales_that_are_known(time: int) -> None:
    """Noise of the module, a factor for each step and a power of the level, found again."""
    own, factor = torch.rand(2).double(), torch.rand(4).double() + 0.5
    weights = torch.rand(4, 7, 1).double().expand(4, 7, 2)
    for powered, power in ((False, 0.0), (True, -0.4)):
        true = own + factor[:, None, None] * weights ** (1 + power)
        var, shape = own + weights, Shape(time, 1 - time)
        if time:
            true, var = true.transpose(0, 1), var.transpose(0, 1)
        scale = fit_scale(true, var, shape, Own(own.float(), False, own), True, powered)
        assert scale is not None
        assert torch.allclose(scale(var), true, rtol=1e-5)
        assert torch.allclose(scale.factor.flatten().double(), factor, rtol=1e-5)


# -- degenerate input -----------------------------------------------------------------------------


def test_a_network_that_is_already_true_stays_as_it_is() -> None:
    layer, x = spgru.Linear(3, 2, weight_std=0.3), torch.randn(20, 3)
    for module in (layer, nn.Sequential(layer)):
        before = module(x)
        report = spgru.calibrate(module, x, draws=300, steps=5, progress=False)
        assert report.chosen == "plain"
        assert torch.equal(module(x).var, before.var)
        assert not module._forward_hooks


def test_a_name_that_a_calibration_needs_is_not_taken_away() -> None:
    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output_scale = spgru.Linear(3, 2)

        def forward(self, x: Tensor) -> Moments:
            found: Moments = self.output_scale(x)
            return found

    model, x = Taken(), torch.randn(12, 3)
    before = model(x)
    with pytest.raises(ValueError, match="has an attribute 'output_scale', the name of what a"):
        spgru.calibrate(model, x, draws=10, steps=2, progress=False)
    assert torch.equal(model(x).var, before.var)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(1, 4, 1), "at least 4 sequences"),
        (torch.randn(3, 3, 1), "at least 4 sequences"),
        (torch.full((6, 4, 1), torch.nan), "NaN"),
        (torch.ones(6, 4, 1), "all sequences of x are the same"),
        (torch.randn(1, 4, 1).expand(6, 4, 1), "all sequences of x are the same"),
        ("text", "no Tensor"),
    ],
)
def test_input_that_cannot_be_used(forecaster: Forecaster, x: Any, message: str) -> None:
    keys = list(forecaster.state_dict())
    with pytest.raises((ValueError, TypeError), match=message):
        spgru.calibrate(forecaster, x, **QUICK)
    assert list(forecaster.state_dict()) == keys
    assert forecaster.training
    assert not forecaster._forward_hooks


def test_networks_that_cannot_be_calibrated() -> None:
    x = torch.randn(3, 6, 2)
    with pytest.raises(ValueError, match="nothing in the output is random"):
        spgru.calibrate(spgru.GRU(2, 3, weight_std=0.0), x, **QUICK)
    with pytest.raises(ValueError, match="no random weights"):
        spgru.calibrate(nn.Linear(2, 3), x, **QUICK)
    with pytest.raises(TypeError, match="without Moments"):
        spgru.calibrate(nn.Sequential(spgru.Linear(2, 3), _Mean()), x, **QUICK)
    for wrong in ({"draws": 1}, {"steps": 0}, {"held_out": 1.0}, {"level": 0.9}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            spgru.calibrate(spgru.GRU(2, 3), x, **{**QUICK, **wrong})


class _Mean(nn.Module):
    def forward(self, x: Moments) -> Tensor:
        return x.mean


class Rounded(nn.Module):
    """A layer whose entries are off by up to 1 %, differently for each number of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(2, 6)

    def forward(self, x: Tensor) -> Moments:
        output = self.gru(x)[0]
        generator = torch.Generator().manual_seed(x.shape[1])
        off = 1 + 0.01 * torch.rand(output.shape, generator=generator)
        return Moments(output.mean * off, output.var)


def test_sequences_are_found_through_rounding() -> None:
    module, x = Rounded(), torch.randn(5, 8, 2)
    found = find_layout(module, module, (x,), None, None)
    assert found == ((Place(1, 0),), 8, Shape(time=0, batch=1), 1)


def test_keep_mean_leaves_the_mean_as_it_was_and_the_variance_calibrated(
    forecaster: Forecaster,
) -> None:
    x = torch.randn(12, 5, 1)
    plain = forecaster(x)
    report = spgru.calibrate(forecaster, x, form="gains", **QUICK)
    both = forecaster(x)
    assert not torch.allclose(both.mean, plain.mean, rtol=1e-3)  # else this test cannot fail
    assert report.mean_shift > 0
    assert "the mean has moved by" in str(report)
    kept = spgru.calibrate(forecaster, x, form="gains", keep_mean=True, **QUICK)
    assert kept.mean_shift == 0
    assert kept.scores == report.scores
    found = forecaster(x)
    assert torch.equal(found.mean, plain.mean)
    assert torch.equal(found.var, both.var)
    with spgru.frozen(forecaster):
        for _ in range(2):
            cached = forecaster(x)
            assert torch.allclose(cached.mean, plain.mean, rtol=1e-6)
            assert torch.allclose(cached.var, both.var, rtol=1e-5)
    again = Forecaster()
    spgru.load_calibration(again, forecaster.state_dict())
    assert torch.equal(again(x).mean, found.mean)
    assert torch.equal(again(x).var, found.var)
    spgru.uncalibrate(forecaster)
    assert torch.equal(forecaster(x).var, plain.var)


def test_keep_mean_needs_a_module_to_run_twice(forecaster: Forecaster) -> None:
    x = torch.randn(12, 5, 1)
    for module, more in (
        (forecaster.gru, {}),
        (forecaster, {"call": forecaster.forward}),
        (forecaster, {"y": torch.randn(12, 3, 1)}),
    ):
        with pytest.raises(ValueError, match="keep_mean runs a module twice"):
            spgru.calibrate(module, x, keep_mean=True, **more, **QUICK)  # type: ignore[arg-type]


def test_a_module_that_keeps_its_mean_is_audited_recorded_and_fitted_to_outcomes(
    forecaster: Forecaster,
) -> None:
    """The second pass is nobody's business."""
    x = torch.randn(24, 5, 1)
    spgru.calibrate(forecaster, x, form="gains", keep_mean=True, **QUICK)
    before = forecaster(x)
    with recording(forecaster) as records:
        forecaster(x)
    steps = [len(found) for found in records.values()]
    with spgru.uncalibrated(forecaster), recording(forecaster) as plain:
        forecaster(x)
    assert steps == [len(found) for found in plain.values()]
    assert spgru.audit(forecaster, x[:3], draws=10).output is not None
    y = before.mean + 3 * before.std * torch.randn_like(before.mean)
    spgru.calibrate(forecaster, x, y, progress=False)
    after = forecaster(x)
    assert torch.equal(after.mean, before.mean)
    assert (after.var / before.var).mean().item() == pytest.approx(9, rel=0.5)


class Wrapper(nn.Module):
    """A module around a model that makes its output."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build(ModelConfig("predictor", height=4, width=4, hidden_size=3))

    def forward(self, x: Tensor) -> Moments:
        future: Moments = self.model(x)[0]
        return future


def test_keep_mean_holds_where_a_model_inside_makes_the_output() -> None:
    wrapper, x = Wrapper(), torch.rand(3, 8, 4, 4)
    before = wrapper(x)
    report = spgru.calibrate(
        wrapper, x, keep_mean=True, form="gains, one scale", perturb=(), skip=(), **QUICK
    )
    after = wrapper(x)
    assert report.chosen == "gains, one scale"
    assert torch.equal(after.mean, before.mean)
    assert not torch.equal(after.var, before.var)


def test_keep_mean_is_refused_where_the_output_is_not_what_is_called_for() -> None:
    class Other(Wrapper):
        def calibration_output(self, x: Tensor) -> Moments:
            return self.forward(x)

    with pytest.raises(ValueError, match="keep_mean has no place in Other"):
        spgru.calibrate(Other(), torch.rand(3, 8, 4, 4), keep_mean=True, **QUICK)
