"""Calibration of modules as people write them: the factor acts once, and stays with its weights."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spgru
from spgru import Moments
from spgru.calibration import is_calibrated
from spgru.calibration.truth import Shape, own_variance
from spgru.models import ModelConfig, build
from spgru.nn.output_scale import attach_scale
from spgru.nn.scale import Scale

SILENT: dict[str, Any] = {"progress": False}
QUICK: dict[str, Any] = {**SILENT, "draws": 40, "steps": 20}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Sequence(nn.Module):
    """(B, T, 2) to (B, T, 3)."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.gru = spgru.GRU(2, 6, batch_first=batch_first)
        self.head = spgru.Linear(6, 3)

    def forward(self, x: Any) -> Moments:
        return self.head(self.gru(x)[0])


def _squares(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    found = model(x)
    return ((y - found.mean).square() / found.var).mean()


class _Children(nn.Module):
    """Calls all of its children, whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = spgru.Linear(8, 9), spgru.Linear(9, 1)

    def forward(self, x: Any) -> Moments:
        for child in self.children():
            x = child(x)
        return x


def _converted() -> nn.Module:
    return spgru.convert(nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 1)), weight_std=0.1)


@pytest.mark.parametrize("make", [_converted, _Children])
@torch.no_grad()
def test_a_factor_acts_once_where_forward_runs_over_the_children(make: Any) -> None:
    model, x, y = make(), torch.randn(80, 8), torch.randn(80, 1)
    before = model(x).var
    report = spgru.calibrate(model, x, y, form="scale", **SILENT)
    factor = model.output_scale.outcome_factor
    torch.testing.assert_close(model(x).var, before * factor)
    assert 0.5 < _squares(model, x, y) < 2
    assert report.chosen != "plain"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("form", ["scale per step", "scale by level"])
@torch.no_grad()
def test_one_sequence_has_the_variance_it_has_in_a_batch(batch_first: bool, form: Any) -> None:
    model = _Sequence(batch_first)
    x = torch.randn(24, 8, 2) * torch.linspace(0.2, 2, 24)[:, None, None]
    batch = x if batch_first else x.transpose(0, 1)
    spgru.calibrate(model, batch, form=form, draws=50, **SILENT)
    expected = model(batch).var[0] if batch_first else model(batch).var[:, 0]
    torch.testing.assert_close(model(x[0]).var, expected, rtol=1e-4, atol=0)


@torch.no_grad()
def test_an_inner_factor_is_not_changed_where_it_acts_several_times() -> None:
    class Roll(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            for _ in range(4):
                x = self.inner(x)
            return x

    inner, x = nn.Sequential(spgru.Linear(2, 2, weight_std=0.1)), torch.randn(60, 2)
    spgru.calibrate(inner, x, inner(x).mean + 0.5 * torch.randn(60, 2), form="scale", **SILENT)
    outer, factor = Roll(inner), inner.output_scale.outcome_factor.clone()
    y = outer(x).mean + torch.randn(60, 2)
    spgru.calibrate(outer, x, y, form="scale", **SILENT)
    assert torch.equal(inner.output_scale.outcome_factor, factor)
    assert 0.6 < _squares(outer, x, y) < 1.6


@torch.no_grad()
def test_a_scale_stays_where_some_weights_are_loaded_and_goes_with_all_of_them() -> None:
    model, x = _Sequence(), torch.randn(40, 8, 2)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    spgru.calibrate(model, x, 3 * torch.randn(40, 8, 3), **SILENT)
    before = model(x).var
    for part in ({}, {"head.bias": model.head.bias.clone()}):
        result = model.load_state_dict(part, strict=False)
        assert "output_scale.outcome_factor" in result.missing_keys
        assert torch.equal(model(x).var, before)
    model.load_state_dict(plain)
    assert model.output_scale.outcomes is None
    assert (model(x).var < before).any()


@torch.no_grad()
def test_the_scale_of_a_model_of_ours_stays_where_some_weights_are_loaded() -> None:
    config = ModelConfig(height=8, width=8, hidden_size=6, weight_std=0.1)
    model, frames = build(config), torch.rand(3, 12, 8, 8)
    spgru.calibrate(model, frames, torch.rand(3, 12, 8, 8), **SILENT)
    state = model.state_dict()
    part = {name: value for name, value in state.items() if name.startswith("future")}
    model.load_state_dict(part, strict=False)
    assert model.pixel_scale.outcomes is not None
    plain = {name: value for name, value in state.items() if not name.startswith("pixel_scale")}
    model.load_state_dict(plain)
    assert model.pixel_scale.outcomes is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@torch.no_grad()
def test_copies_of_a_calibrated_module_load_and_run_alone(duplicate: Any) -> None:
    model, x = _Sequence(), torch.randn(24, 8, 2)
    spgru.calibrate(model, x, 3 * torch.randn(24, 8, 3), **SILENT)
    expected = model(x).var
    other = duplicate(model)
    del model
    gc.collect()
    other.load_state_dict(other.state_dict())
    assert torch.equal(copy.deepcopy(other)(x).var, expected)


@torch.no_grad()
def test_a_later_fit_to_draws_takes_an_earlier_one_to_outcomes_out() -> None:
    model, x = _Sequence(), torch.randn(40, 8, 2)
    plain = model(x).var
    spgru.calibrate(model, x, 3 * torch.randn(40, 8, 3), form="scale", **SILENT)
    spgru.calibrate(model, x, form="scale per step", draws=20, **SILENT)
    assert (model(x).var < 10 * plain).all()


@torch.no_grad()
def test_variance_of_the_input_is_not_taken_for_noise_of_the_module() -> None:
    class Skips(_Sequence):
        def forward(self, x: Any) -> Moments:
            return x[:, -1] + super().forward(x)[:, -1, :2] + 0.1 * _noise(x)

    def _noise(x: Any) -> Moments:
        amount = x.mean[:, -1].square()
        return Moments(torch.zeros_like(amount), amount)

    model, mean = Skips(), torch.randn(60, 8, 2)
    x = Moments(mean, torch.full_like(mean, 0.05))
    noise = 0.01 * _noise(x).var
    found = own_variance(model, model, (x,), Shape(None, 0))
    torch.testing.assert_close(found.found.float(), noise)
    plain = model(x).var
    attach_scale(model).set_(Scale(torch.tensor([3.0]), noise_factor=torch.tensor(1.0)))
    torch.testing.assert_close(model(x).var, 3 * (plain - noise) + noise)


@torch.no_grad()
def test_a_certain_output_that_was_wrong_is_refused_where_factors_alone_are_tried() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = spgru.Linear(2, 1)

        def forward(self, x: Tensor) -> Moments:
            y = self.head(x)
            certain = Moments(y.mean, torch.zeros_like(y.var))
            return torch.cat([y, certain], -1)

    x = torch.randn(60, 2)
    with pytest.raises(ValueError, match="have no variance and were wrong, so no factor on"):
        spgru.calibrate(Half(), x, torch.randn(60, 2), form="scale", **SILENT)
    with pytest.raises(ValueError, match="have no variance and were wrong, so no factor"):
        spgru.calibrate(Half(), x, torch.randn(60, 2), form="scale", level=0.9, **SILENT)


@torch.no_grad()
def test_a_power_of_little_variance_is_as_in_32_bits_in_16_bits() -> None:
    numbers = {"power": -0.5, "low": 1e-9, "high": 1.0}
    scale = Scale(torch.ones(1), **{name: torch.tensor(value) for name, value in numbers.items()})
    half = Scale(*(None if part is None else part.half() for part in scale))
    assert not half(torch.zeros(3, 2, dtype=torch.float16)).any()
    small = torch.full((3, 2), 1e-5)
    wide = Scale(*(None if part is None else part.float() for part in half))
    torch.testing.assert_close(half(small.half()).float(), wide(small), rtol=0.02, atol=0)


# -- what a module returns -------------------------------------------------------------------------


@dataclass
class _Answer:
    y: Moments


def test_call_reaches_moments_inside_an_object() -> None:
    class Wrapped(_Sequence):
        def forward(self, x: Any) -> Any:
            return _Answer(super().forward(x))

    model, x = Wrapped(), torch.randn(24, 8, 2)
    report = spgru.calibrate(model, x, call=lambda x: model(x).y, draws=20, steps=3, **SILENT)
    assert "plain" in report.scores


def test_a_calibrated_module_may_return_a_loss() -> None:
    class Trained(_Sequence):
        def forward(self, x: Any, y: Tensor | None = None) -> Any:
            found = super().forward(x)
            return found if y is None else (found.mean - y).square().mean()

    model, x = Trained(), torch.randn(24, 8, 2)
    y = 3 * torch.randn(24, 8, 3)
    spgru.calibrate(model, x, y, **SILENT)
    assert model(x, y).ndim == 0


def test_a_compiled_module_is_calibrated_as_the_one_inside() -> None:
    model, x = _Sequence(), torch.randn(24, 8, 2)
    y = 3 * torch.randn(24, 8, 3)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(x)  # as it is before, to be compiled again
    spgru.calibrate(compiled, x, y, **SILENT)
    with torch.no_grad():
        assert _squares(model, x, y) < 2
        torch.testing.assert_close(compiled(x).var, model(x).var)


def test_checkpointed_code_is_calibrated() -> None:
    class Checkpointed(_Sequence):
        def forward(self, x: Any) -> Moments:
            hidden: Any = checkpoint(self.gru, x, use_reentrant=False)
            return self.head(hidden[0])

    x = torch.randn(24, 8, 2)
    found = []
    for kind in (Checkpointed, _Sequence):
        torch.manual_seed(1)
        model = kind()
        # A variance that gains alone can give it.
        model.head.weight.data *= 4
        report = spgru.calibrate(model, x, draws=200, steps=20, form="gains", **SILENT)
        assert report.chosen == "gains"
        found.append(model(x).var)
    torch.testing.assert_close(*found)


def test_inputs_made_in_inference_mode_are_taken() -> None:
    with torch.inference_mode():
        x = torch.randn(24, 8, 2)
    spgru.calibrate(_Sequence(), x, draws=20, steps=3, **SILENT)


def test_a_negative_batch_dim_counts_from_the_end() -> None:
    model, x = _Sequence(), torch.randn(24, 8, 2)
    reports = [
        spgru.calibrate(model, x, batch_dim=dim, draws=20, steps=3, **SILENT) for dim in (0, -3)
    ]
    assert reports[0].scores == reports[1].scores


def test_arguments_that_are_no_whole_numbers_are_named() -> None:
    for name in ("draws", "steps"):
        with pytest.raises(TypeError, match=f"{name} must be a whole number"):
            spgru.calibrate(_Sequence(), torch.randn(24, 8, 2), **{name: 2.5}, **SILENT)


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(ValueError, match="x is empty"):
        spgru.calibrate(_Sequence(), torch.randn(0, 8, 2), **SILENT)


def test_a_laplace_approximation_takes_a_calibration_out() -> None:
    model = spgru.convert(nn.Sequential(nn.Linear(2, 1)), weight_std=0.1)
    x, y = torch.randn(60, 2), 3 * torch.randn(60, 1)
    spgru.calibrate(model, x, y, **SILENT)
    spgru.laplace(model, [(x, y)], prior_precision=1.0)
    assert not hasattr(model, "output_scale")


def test_the_curvature_of_a_laplace_approximation_knows_no_calibration() -> None:
    x = torch.randn(200, 2)
    y = x[:, :1] + 3 * torch.randn(200, 1)
    layers = spgru.Linear(2, 8, weight_std=0.1), spgru.GaussianHead(8, 1, weight_std=0.1)
    plain = nn.Sequential(*layers)
    calibrated = copy.deepcopy(plain)
    assert spgru.calibrate(calibrated, x, y, **SILENT).chosen != "plain"
    for model in (plain, calibrated):
        spgru.laplace(model, [(x, y)], prior_precision=1.0)
    expected, found = (model[0].weight_moments("weight").var for model in (plain, calibrated))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("with_outcomes", [False, True])
def test_one_of_several_inputs_may_be_empty(with_outcomes: bool) -> None:
    """Covariates where there are none."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = spgru.GRU(2, 4, batch_first=True)

        def forward(self, x: torch.Tensor, covariates: torch.Tensor) -> spgru.Moments:
            output: spgru.Moments = self.gru(torch.cat([x, covariates], -1))[0]
            return output

    x = torch.randn(8, 5, 2)
    y = torch.randn(8, 5, 4) if with_outcomes else None
    quick = {} if with_outcomes else {"draws": 10, "steps": 2}
    report = spgru.calibrate(Joined(), (x, torch.zeros(8, 5, 0)), y, progress=False, **quick)
    assert report.chosen


@torch.no_grad()
def test_another_output_than_that_of_the_fit_is_refused() -> None:
    """Of one step alone, nothing tells which one."""

    class LastToo(_Sequence):
        def forward(self, x: Any, last: bool = False) -> Moments:
            found: Moments = super().forward(x)
            return found[:, -1] if last else found

    model, x = LastToo(), torch.randn(24, 8, 2)
    y = model(x).mean + torch.linspace(0.1, 5, 8)[:, None] * torch.randn(24, 8, 3)
    assert spgru.calibrate(model, x, y, **SILENT).chosen == "factor per step"
    with pytest.raises(ValueError, match="has 2 dimensions but had 3 when"):
        model(x, last=True)
    torch.testing.assert_close(model(x[0]).var, model(x).var[0])


@torch.no_grad()
def test_one_factor_holds_for_any_output() -> None:
    class LastToo(_Sequence):
        def forward(self, x: Any, last: bool = False) -> Moments:
            found: Moments = super().forward(x)
            return found[:, -1] if last else found

    model, x = LastToo(), torch.randn(24, 8, 2)
    plain = model(x, last=True).var
    attach_scale(model).set_(Scale(torch.tensor([3.0])).with_dims(3, 3))
    torch.testing.assert_close(model(x, last=True).var, 3 * plain)


@pytest.mark.parametrize(
    "regroup",
    [lambda m: m[:], lambda m: nn.Sequential(*m), lambda m: nn.Sequential(*m.children())],
    ids=["slice", "unpacked", "children"],
)
@torch.no_grad()
def test_a_new_module_of_the_same_children_is_not_calibrated(regroup: Any) -> None:
    model, x, y = _converted(), torch.randn(80, 8), torch.randn(80, 1)
    plain = model(x).var
    spgru.calibrate(model, x, y, form="scale", **SILENT)
    other = regroup(model)
    assert not is_calibrated(other)
    assert torch.equal(other(x).var, plain)
    spgru.calibrate(other, x, y, form="scale", **SILENT)
    torch.testing.assert_close(other(x).var, model(x).var)


@torch.no_grad()
def test_a_module_whose_scale_was_deleted_says_what_to_do() -> None:
    model, x = _converted(), torch.randn(80, 8)
    spgru.calibrate(model, x, torch.randn(80, 1), form="scale", **SILENT)
    del model[-1]
    with pytest.raises(RuntimeError, match=r"was taken away; call `spgru.uncalibrate`"):
        model(x)
    spgru.uncalibrate(model)
    assert torch.equal(model(x).var, _plain(model, x).var)


@torch.no_grad()
def test_a_scale_goes_with_weights_that_change_and_with_gains() -> None:
    x, y = torch.randn(40, 8, 2), 3 * torch.randn(40, 8, 3)
    other = {name: value for name, value in _Sequence().state_dict().items() if name != "head.bias"}
    model = _Sequence()
    spgru.calibrate(model, x, y, **SILENT)
    model.load_state_dict(other, strict=False)
    assert not is_calibrated(model)
    model = _Sequence()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    model.head.set_gains_({"weight": torch.full((3,), 6.0)})
    spgru.calibrate(model, x, y, **SILENT)
    del weights["gru.bias_ih_l0"]
    model.load_state_dict(weights, strict=False)  # of the same weights, without gains
    assert not is_calibrated(model)


def test_a_model_of_ours_is_freed_when_it_is_deleted() -> None:
    """And not when the garbage collector comes by: its memory may be that of a GPU."""
    model = build(ModelConfig(height=8, width=8, hidden_size=6))
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


class _Noisy(nn.Module):
    """With noise that depends on the input; (B, T, 2) to (B, T, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(2, 8, batch_first=True, weight_std=0.5)
        self.head = spgru.GaussianHead(8, 1, weight_std=0.1)
        nn.init.constant_(self.head.log_var.bias, -4.0)

    def forward(self, x: Any) -> Moments:
        found: Moments = self.head(self.gru(x)[0])
        return found


@pytest.mark.parametrize("form", ["auto", "scale", "scale per step"])
@torch.no_grad()
def test_noise_that_depends_on_the_input_stays_where_the_rest_is_scaled(form: Any) -> None:
    model, x = _Noisy(), torch.randn(48, 8, 2)
    report = spgru.calibrate(model, x, form=form, draws=300, steps=30, **SILENT)
    assert "scale" in report.chosen
    means, noises = [], []
    generator = torch.Generator().manual_seed(1)
    new = torch.randn(24, 8, 2)
    for _ in range(600):
        with spgru.sampling(model, generator):
            found = _plain(model, new)
        means.append(found.mean)
        noises.append(found.var)
    true = torch.stack(means).var(0) + torch.stack(noises).mean(0)
    ratio = model(new).var.mean((0, 2)) / true.mean((0, 2))
    assert ((ratio > 0.85) & (ratio < 1.15)).all(), ratio
    # What is left at the means of the weights is the noise, as it was.
    with spgru.at_mean(model):
        torch.testing.assert_close(model(new).var, _plain(model, new).var)
    torch.testing.assert_close(model(new[0]).var, model(new).var[0], rtol=1e-4, atol=1e-6)


@torch.no_grad()
def _plain(model: nn.Module, x: Any) -> Any:
    with spgru.uncalibrated(model):
        return model(x)


class _TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, 3, batch_first=True)
        self.first, self.second = spgru.Linear(3, 1), spgru.Linear(3, 1)

    def forward(self, x: Tensor) -> dict[str, Moments]:
        last = self.gru(x)[0][:, -1]
        return {"first": self.first(last), "second": self.second(last)}


def test_a_report_says_which_of_several_outputs_it_is_about() -> None:
    module, x = _TwoOutputs(), torch.randn(16, 4, 1)
    assert "of the first of 2 outputs" in str(spgru.calibrate(module, x, **QUICK))
    outcomes = spgru.calibrate(module, x, torch.randn(16, 1))
    assert (outcomes.outputs, "of the first of 2 outputs" in str(outcomes)) == (2, True)
    assert spgru.calibrate(module.gru, x, **QUICK).outputs == 1  # the other one is its state


def test_taking_out_the_calibration_of_a_module_inside_gets_a_warning() -> None:
    class Second(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Moments:
            return self.inner(x)["second"]

    inner, x = _TwoOutputs(), torch.randn(16, 4, 1)
    spgru.calibrate(inner, x, 5 * torch.randn(16, 1))
    outer = Second(inner)
    with pytest.warns(UserWarning, match="the calibration of inner was taken out"):
        spgru.calibrate(outer, x, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spgru.calibrate(outer, x, **QUICK)


def test_an_input_that_all_sequences_share() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(1, 3, batch_first=True), spgru.Linear(3, 1)

        def forward(self, x: Tensor, places: Tensor) -> Moments:
            return self.head(self.gru(x + places[:, None])[0])

    x, places = torch.randn(16, 6, 1), torch.linspace(0, 1, 6)
    report = spgru.calibrate(Placed(), (x, places), **QUICK)
    assert len(report.ratio) == 6
    assert report.copies
    inside = spgru.calibrate(Placed(), (x, places), torch.randn(16, 6, 1))
    assert inside.sequences == 4


def test_a_single_sequence_whose_output_is_a_number() -> None:
    class Number(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(1, 3), spgru.Linear(3, 1)

        def forward(self, x: Tensor) -> Moments:
            return self.head(self.gru(x)[0][-1]).squeeze(-1)

    module, x = Number(), torch.randn(12, 16, 1)
    spgru.calibrate(module, x, 5 * torch.randn(16))
    together, alone = module(x), module(x[:, 0])
    assert alone.shape == ()
    torch.testing.assert_close(alone.var, together.var[0])


def test_what_a_calibration_put_on_the_output_shows() -> None:
    module, five = _Sequence(), torch.ones(5)
    scale = attach_scale(module)
    scale.set_(Scale(five, power=five))
    assert "OutputScale(calibrated to drawn networks: factors for 5 steps by level)" in repr(module)
    scale.set_outcomes_(Scale(torch.ones(1), noise=torch.ones(3)))
    assert "to outcomes: one factor, noise apart" in repr(module)
    spgru.uncalibrate(module)
    assert "OutputScale" not in repr(module)
