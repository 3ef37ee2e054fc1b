"""`calibrate` and what undoes, saves and compares it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.calibration.fit import Gains, Scale, Shape, fit_gains, fit_scale, score
from spgru.calibration.inputs import (
    as_arguments,
    check_inputs,
    count_sequences,
    find_shape,
    select,
    split,
)
from spgru.calibration.progress import Bar
from spgru.calibration.report import CalibrationReport, by_step, spread_of
from spgru.calibration.truth import device_of, drawn_truths, run_watched
from spgru.modes import enter_gains, enter_watching, weight_mode
from spgru.nn.layer import Layer, layers_of
from spgru.nn.output_scale import (
    CHILD,
    OutputScale,
    attach_scale,
    detach_scale,
    first_moments,
    scale_variance,
    scales_of,
)

__all__ = ["calibrate", "load_calibration", "uncalibrate", "uncalibrated"]

PLAIN = "plain"


class _Form(NamedTuple):
    """One way to calibrate."""

    name: str
    gains: Gains
    scale: Scale | None
    fitted: Tensor
    """variance of the output on the sequences of the fit"""
    held: Tensor
    """on those held out"""


def calibrate(
    module: nn.Module,
    x: Any,
    *,
    call: Callable[..., Any] | None = None,
    draws: int = 200,
    steps: int = 300,
    rate: float = 0.03,
    held_out: float = 0.25,
    batch_dim: int | None = None,
    time_dim: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> CalibrationReport:
    """Fit the closed form's variance to that of drawn networks, in place.

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

    Args:
        module: a layer of ours, or any module built from them
        x: what `module` is called with; a tuple is passed as several arguments
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
    _check(module, draws, steps, held_out)
    inputs = as_arguments(x)
    check_inputs("x", inputs)
    run = call or getattr(module, "calibration_output", None) or module
    with _prepared(module, seed) as scale:
        dim, shape = find_shape(module, run, inputs, batch_dim, time_dim)
        numbers = split(count_sequences(inputs, dim), held_out, seed)
        parts = [select(inputs, dim, index) for index in numbers]
        with Bar(progress, draws + steps) as bar:
            generator = torch.Generator(device_of(module)).manual_seed(seed)
            fitted, held = drawn_truths(module, run, parts, draws, generator, bar.advance)
            plain = _Form(PLAIN, {}, None, *_variances(module, run, parts))
            if not bool(((fitted.output > 0) & (plain.fitted > 0)).any()):
                raise ValueError(
                    "nothing in the output is random: neither weights nor inputs have a variance "
                    "that reaches it; give the layers a weight_std above 0"
                )
            found = fit_gains(module, run, parts[0], fitted, shape, steps, rate, bar.advance)
        with enter_gains(found):
            gained = _Form("gains", found, None, *_variances(module, run, parts))
        forms = [plain]
        scalable = scale is not None and _hands_on(module, run, scale, parts[1])
        for base in (plain, gained):
            forms += [base] if base.gains else []
            forms += _scaled_forms(base, fitted.output, shape) if scalable else []
    scores = {form.name: score(held.output, form.held, shape).item() for form in forms}
    best = _choose(scores, draws)
    form = next(form for form in forms if form.name == best)
    _apply(module, form)
    return CalibrationReport(
        chosen=best,
        scores=scores,
        true_var=by_step(held.output, shape.time),
        plain_var=by_step(plain.held, shape.time),
        var=by_step(form.held, shape.time),
        plain_spread=spread_of(held.output, plain.held),
        spread=spread_of(held.output, form.held),
        draws=draws,
        sequences=(len(numbers[0]), len(numbers[1])),
    )


@torch.no_grad()
def _variances(module: nn.Module, run: Callable[..., Any], parts: Sequence[Any]) -> list[Tensor]:
    return [run_watched(module, run, part).output.var.double() for part in parts]


def _scaled_forms(base: _Form, true: Tensor, shape: Shape) -> Iterator[_Form]:
    """The form with scales, from simple to complex."""
    steps = shape.time is not None
    options = {"one scale": (False, False)}
    if steps:
        options["scale per step"] = (True, False)
    options["scale by level"] = (steps, True)
    for name, option in options.items():
        scale = fit_scale(true, base.fitted, shape, *option)
        if scale is not None:
            vars = (scale_variance(var, *scale) for var in (base.fitted, base.held))
            yield _Form(f"gains, {name}" if base.gains else name, base.gains, scale, *vars)


def _hands_on(
    module: nn.Module, run: Callable[..., Any], scale: OutputScale, inputs: Sequence[Any]
) -> bool:
    """Whether what the scale gives is what `run` gives."""
    given: list[Any] = []
    with torch.no_grad(), enter_watching({scale: given}):
        output = first_moments(run(*inputs))
    return any(value is output for value in given)


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
    """Within: the plain form in evaluation, parameters that do not learn, a scale to try.

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
            stack.enter_context(uncalibrated(module))
            yield scales[0] if len(scales) == 1 else None
    finally:
        if is_new:
            detach_scale(module)
        for child, mode in training.items():
            child.training = mode
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)


def _apply(module: nn.Module, form: _Form) -> None:
    uncalibrate(module)
    for layer, gains in form.gains.items():
        layer.set_gains_(gains)
    if form.scale is not None:
        scales = scales_of(module)
        (scales[0] if scales else attach_scale(module)).set_(*form.scale)


def uncalibrate(module: nn.Module) -> None:
    """Take gains and factors out again: the plain closed form, bit for bit."""
    for _, layer in layers_of(module):
        layer.set_gains_({})
    for child in module.modules():
        detach_scale(child)
    for scale in scales_of(module):
        scale.set_(None)


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
