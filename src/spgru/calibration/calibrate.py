"""`calibrate` and what undoes, saves and compares it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.calibration.fit import Gains, fit_gains, fit_scale, score
from spgru.calibration.inputs import (
    as_arguments,
    check_inputs,
    check_observed,
    check_outcomes,
    count_sequences,
    find_shape,
    select,
    split,
)
from spgru.calibration.outcomes import Outcomes, conformal_factor, fit_outcomes, likelihood
from spgru.calibration.progress import Bar
from spgru.calibration.report import CalibrationReport, OutcomeReport, by_step, spread_of
from spgru.calibration.truth import Own, Shape, device_of, drawn_truths, own_variance, run_watched
from spgru.modes import enter_gains, enter_watching, weight_mode
from spgru.nn.layer import Layer, layers_of
from spgru.nn.output_scale import (
    CHILD,
    OutputScale,
    Scale,
    attach_scale,
    detach_scale,
    first_moments,
    scales_of,
)

__all__ = ["calibrate", "is_calibrated", "load_calibration", "uncalibrate", "uncalibrated"]

PLAIN = "plain"


class Form(NamedTuple):
    """One way to calibrate."""

    name: str
    gains: Gains
    scale: Scale | None
    fitted: Tensor
    """variance of the output on the sequences of the fit"""
    held: Tensor
    """on those held out"""

    def apply(self, module: nn.Module) -> None:
        """Put it in place of what the module has."""
        uncalibrate(module)
        for layer, gains in self.gains.items():
            layer.set_gains_(gains)
        if self.scale is not None:
            scales = scales_of(module)
            scale = scales[0] if scales else attach_scale(module)
            scale.set_(self.scale)


def calibrate(
    module: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    level: float | None = None,
    call: Callable[..., Any] | None = None,
    draws: int = 200,
    steps: int = 300,
    rate: float = 0.03,
    held_out: float = 0.25,
    batch_dim: int | None = None,
    time_dim: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> CalibrationReport | OutcomeReport:
    """Fit the closed form's variance to that of drawn networks, or to outcomes, in place.

    Some sequences of `x` serve the fit, the others choose the form: nothing, one factor on the
    variance of the output, one for each step, such factors that depend on the sequence's own
    variance, gains in every matrix, or gains and factors. What is best on the others is
    kept, and the module stays as it is where nothing is better.

        report = spgru.calibrate(model, x)      # x as in training, some dozen sequences
        print(report)
        spgru.uncalibrate(model)                # and everything is as before, bit for bit

    Gains and factors are buffers: saved, moved, cast, exported with the module. A module that is
    not of this package has one child more then, and its state dict is read by `load_calibration`.
    A layer of ours gets gains only, since it may stream, and a step has no place in time there.

    With `y` the fit is to outcomes, by likelihood, on data that the training has not seen: one
    factor on the whole variance, one for each step, or one for what the weights do not know and one
    for the noise. It acts on the variance as it is, so a fit to drawn networks may come first.

    Args:
        module: a layer of ours, or any module built from them
        x: what `module` is called with; a tuple is passed as several arguments
        y: what happened, in the shape of the output; NaN where nothing was observed
        level: with `y`, of a central interval that is to hold on the sequences held out (split
            conformal): the variance is scaled once more until it does
        call: what to calibrate instead of `module(*x)`: a function of the inputs that returns
            Moments. Of several Moments the first is taken
        draws: networks drawn for the truth; its relative error is the root of 2 / draws
        steps: of the fit of gains
        rate: of its optimiser, Adam
        held_out: share of the sequences that the fit does not see
        batch_dim: dimension of the inputs that holds sequences; found out by default
        time_dim: dimension of the output that holds steps; by default the other one of the first
            two, if the output has three dimensions or more
        seed: the same seed gives the same result
        progress: show a bar, on a terminal and where rich is installed
    """
    if y is not None:
        return _calibrate_to_outcomes(
            module, x, y, level, call, held_out, batch_dim, time_dim, seed
        )  # fmt: skip
    if level is not None:
        raise ValueError("level is about outcomes; pass them as y")
    found = search(
        module, x, call=call, draws=draws, steps=steps, rate=rate, held_out=held_out,
        batch_dim=batch_dim, time_dim=time_dim, seed=seed, progress=progress,
    )  # fmt: skip
    found.forms[found.best].apply(module)
    return found.report()


class Found(NamedTuple):
    """All forms of one calibration, from simple to complex."""

    forms: dict[str, Form]
    scores: dict[str, float]
    best: str
    true: Tensor
    """variance of drawn networks on the sequences held out"""
    shape: Shape
    draws: int
    sequences: tuple[int, int]

    def report(self) -> CalibrationReport:
        plain, best = self.forms[PLAIN].held, self.forms[self.best].held
        return CalibrationReport(
            chosen=self.best,
            scores=self.scores,
            true_var=by_step(self.true, self.shape.time),
            plain_var=by_step(plain, self.shape.time),
            var=by_step(best, self.shape.time),
            plain_spread=spread_of(self.true, plain),
            spread=spread_of(self.true, best),
            draws=self.draws,
            sequences=self.sequences,
        )


def search(
    module: nn.Module,
    x: Any,
    *,
    call: Callable[..., Any] | None,
    draws: int,
    steps: int,
    rate: float,
    held_out: float,
    batch_dim: int | None,
    time_dim: int | None,
    seed: int,
    progress: bool,
) -> Found:
    """What `calibrate` does, but for applying the best form."""
    _check(module, draws, steps, held_out)
    inputs = as_arguments(x)
    check_inputs("x", inputs)
    run = call or getattr(module, "calibration_output", None) or module
    with _prepared(module, seed) as scale, uncalibrated(module):
        dim, shape = find_shape(module, run, inputs, batch_dim, time_dim)
        numbers = split(count_sequences(inputs, dim), held_out, seed)
        parts = [select(inputs, dim, index) for index in numbers]
        with Bar(progress, draws + steps) as bar:
            generator = torch.Generator(device_of(module)).manual_seed(seed)
            fitted, held = drawn_truths(module, run, parts, draws, generator, bar.advance)
            plain = Form(PLAIN, {}, None, *_variances(module, run, parts))
            if not bool(((fitted.output > 0) & (plain.fitted > 0)).any()):
                raise ValueError(
                    "nothing in the output is random: neither weights nor inputs have a variance "
                    "that reaches it; give the layers a weight_std above 0"
                )
            gains = fit_gains(module, run, parts[0], fitted, shape, steps, rate, bar.advance)
        with enter_gains(gains):
            gained = Form("gains", gains, None, *_variances(module, run, parts))
        forms = [plain]
        own = own_variance(module, run, inputs, shape)
        # Of variance that depends on the input no factor could be kept away.
        scalable = scale is not None and _hands_on(run, scale, parts[1]) and not own.varies
        for base in (plain, gained) if gains else (plain,):
            forms += [base] if base is gained else []
            forms += _scaled_forms(base, fitted.output, shape, own) if scalable else []
    scores = {form.name: score(held.output, form.held, shape).item() for form in forms}
    return Found(
        forms={form.name: form for form in forms},
        scores=scores,
        best=_choose(scores, draws),
        true=held.output,
        shape=shape,
        draws=draws,
        sequences=(len(numbers[0]), len(numbers[1])),
    )


@torch.no_grad()
def _variances(module: nn.Module, run: Callable[..., Any], parts: Sequence[Any]) -> list[Tensor]:
    return [run_watched(module, run, part).output.var.double() for part in parts]


def _scaled_forms(base: Form, true: Tensor, shape: Shape, own: Own) -> Iterator[Form]:
    """The form with scales, from simple to complex."""
    steps = shape.time is not None
    options = {"one scale": (False, False)}
    if steps:
        options["scale per step"] = (True, False)
    options["scale by level"] = (steps, True)
    for name, option in options.items():
        scale = fit_scale(true, base.fitted, shape, own.constant, *option)
        if scale is not None:
            vars = (scale(var) for var in (base.fitted, base.held))
            yield Form(f"gains, {name}" if base.gains else name, base.gains, scale, *vars)


def _hands_on(run: Callable[..., Any], scale: OutputScale, inputs: Sequence[Any]) -> bool:
    """Whether what the scale gives is what `run` gives."""
    given: list[Any] = []
    with torch.no_grad(), enter_watching({scale: given}):
        output = first_moments(run(*inputs))
    return any(value is output for value in given)


def _calibrate_to_outcomes(
    module: nn.Module,
    x: Any,
    y: Tensor,
    level: float | None,
    call: Callable[..., Any] | None,
    held_out: float,
    batch_dim: int | None,
    time_dim: int | None,
    seed: int,
) -> OutcomeReport:
    _check(module, 2, 1, held_out)
    if level is not None and not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    inputs = as_arguments(x)
    check_inputs("x", inputs)
    run = call or getattr(module, "calibration_output", None) or module
    with _prepared(module, seed) as scale:
        dim, shape = find_shape(module, run, inputs, batch_dim, time_dim)
        if scale is None or not _hands_on(run, scale, inputs):
            raise ValueError(
                f"the output of {type(module).__name__} has no place for a scale; calibrate a "
                "module that returns the layer's output, without call="
            )
        with torch.no_grad():
            output = first_moments(run(*inputs)).to(torch.float64)
        check_outcomes(y, output)
        own = own_variance(module, run, inputs, shape)
        numbers = split(count_sequences(inputs, dim), held_out, seed)
        known = (*output, own.found, y.to(output.mean))
        fitted, held = (
            Outcomes(*(part.index_select(shape.batch, index.to(part.device)) for part in known))
            for index in numbers
        )
        check_observed(fitted.y, held.y)
        found = {PLAIN: Scale(torch.ones(1, device=y.device)), **fit_outcomes(fitted, own, shape)}
        before = scale.scale
    scales = {
        name: composed
        for name, outer in found.items()
        if (composed := _compose(outer, before)) is not None
    }
    variances = {name: _with_noise(found[name], held)(held.var) for name in scales}
    scores = {name: likelihood(held, var).item() for name, var in variances.items()}
    best = min(scores, key=lambda name: scores[name] if scores[name] == scores[name] else math.inf)
    chosen, var = scales[best], variances[best]
    factor = None
    if level is not None:
        factor = conformal_factor(held, var, level)
        chosen, var = _times(chosen, factor.float()), factor * var
    if best != PLAIN or factor is not None:
        scales_here = scales_of(module)
        (scales_here[0] if scales_here else attach_scale(module)).set_(chosen)
    return OutcomeReport.of(best, scores, held, held.var, var, shape, level)


def _with_noise(scale: Scale, outcomes: Outcomes) -> Scale:
    """The scale with `own` in the shape of these outcomes, where it depends on the input."""
    if scale.noise_factor is None:
        return scale
    return scale._replace(own=outcomes.own, noise=scale.noise_factor * outcomes.own)


def _times(scale: Scale, factor: Tensor) -> Scale:
    """The scale, and then this factor on everything."""
    return scale._replace(
        factor=scale.factor * factor,
        noise=None if scale.noise is None else scale.noise * factor,
        noise_factor=None if scale.noise_factor is None else scale.noise_factor * factor,
    )


def _compose(outer: Scale, inner: Scale | None) -> Scale | None:
    """One scale in place of two, None where there is none."""
    if inner is None:
        return outer
    if inner.noise is None and inner.noise_factor is None:
        factor = outer.factor
        if inner.factor.numel() > 1 < factor.numel() and factor.shape != inner.factor.shape:
            return None
        return outer._replace(factor=factor * inner.factor, power=inner.power)
    if outer.factor.numel() > 1:
        return None  # noise has no factor for each step
    if outer.noise is None and outer.noise_factor is None:
        return _times(inner, outer.factor.reshape(()))
    if outer.noise_factor is not None:
        if inner.noise_factor is None:
            return None
        noise_factor = inner.noise_factor * outer.noise_factor
        return inner._replace(factor=inner.factor * outer.factor, noise_factor=noise_factor)
    return inner._replace(factor=inner.factor * outer.factor, noise=outer.noise)


def _choose(scores: Mapping[str, float], draws: int) -> str:
    """The best, or the first (they become more complex) that noise cannot tell from it.

    A truth from n draws diverges from itself by 1 / (2 n).
    """
    least = min(scores.values())
    return next(name for name, value in scores.items() if value <= least + 0.5 / draws)


def _check(module: nn.Module, draws: int, steps: int, held_out: float) -> None:
    layers = [layer for _, layer in layers_of(module)]
    if not layers:
        raise ValueError(
            f"module ({type(module).__name__}) holds no random weights; build it from spgru layers"
        )
    if any(weight_mode(layer) is not None for layer in layers):
        raise ValueError(
            "calibrate draws weights itself and cannot run while they are drawn or at their means; "
            "call it outside of `sampling` and `at_mean`"
        )
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to measure a variance, got {draws}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is a share between 0 and 1, got {held_out}")


@contextmanager
def _prepared(module: nn.Module, seed: int) -> Iterator[OutputScale | None]:
    """Within: evaluation, parameters that do not learn, and a scale to try.

    Afterwards everything is as it was, a scale included that the module did not have.
    """
    training = {child: child.training for child in module.modules()}
    learning = {parameter: parameter.requires_grad for parameter in module.parameters()}
    scales = scales_of(module)
    is_new = not scales and not isinstance(module, Layer)
    try:
        if is_new:
            scales = [attach_scale(module)]
        module.eval()
        module.requires_grad_(False)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            # Modules with real dropout, or a random part of their own, draw from here.
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(seed)
            yield scales[0] if len(scales) == 1 else None
    finally:
        if is_new:
            detach_scale(module)
        for child, mode in training.items():
            child.training = mode
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)


def uncalibrate(module: nn.Module) -> None:
    """Take gains and factors out again: the plain closed form, bit for bit."""
    for _, layer in layers_of(module):
        layer.set_gains_({})
    for child in module.modules():
        detach_scale(child)
    for scale in scales_of(module):
        scale.set_(None)


def is_calibrated(module: nn.Module) -> bool:
    """Whether there are gains or factors in it."""
    return any(layer.gains() for _, layer in layers_of(module)) or any(
        scale.scale is not None for scale in scales_of(module)
    )


@contextmanager
def uncalibrated(module: nn.Module) -> Iterator[None]:
    """Within this block the module runs in the plain closed form, for a comparison."""
    layers: list[nn.Module] = [layer for _, layer in layers_of(module)]
    with enter_gains({child: {} for child in (*layers, *scales_of(module))}):
        yield


def load_calibration(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """`module.load_state_dict` for a state dict saved after `calibrate`.

        torch.save(model.state_dict(), "model.pt")
        spgru.load_calibration(Model(), torch.load("model.pt"))

    Only a module of your own whose output was scaled needs it: the scale is a child that a new
    module does not have. Layers and models of this package make room for their own.
    """
    if f"{CHILD}.factor" in state_dict and not isinstance(module._modules.get(CHILD), OutputScale):
        attach_scale(module)
    module.load_state_dict(state_dict)
