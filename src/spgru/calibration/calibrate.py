"""`calibrate`: fit the variance of a module to drawn networks or to outcomes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, get_args

from torch import Tensor, nn

from spgru.calibration.forms import FormName, search
from spgru.calibration.outcomes import find_scale
from spgru.calibration.perturb import check_changes
from spgru.calibration.problem import pose
from spgru.calibration.report import CalibrationReport, OutcomeReport
from spgru.calibration.state import at_rest, uncalibrated, without_outcomes
from spgru.checks import check_choice, is_compiled
from spgru.modes import weight_mode
from spgru.nn.layer import Layer, layers_of
from spgru.nn.output_scale import CHILD, named_scales, place_of

__all__ = ["calibrate"]


def calibrate(
    module: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    level: float | None = None,
    form: FormName = "auto",
    keep_mean: bool = False,
    call: Callable[..., Any] | None = None,
    draws: int = 200,
    steps: int = 300,
    rate: float = 0.03,
    held_out: float = 0.25,
    perturb: float | Sequence[float] | None = (1.0, 2.0),
    skip: float | Sequence[float] | None = (0.1, 0.2, 0.3),
    batch_dim: int | None = None,
    time_dim: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> CalibrationReport | OutcomeReport:
    """Fit the closed form's variance to that of drawn networks, or to outcomes, in place.

    Some sequences of `x` serve the fit, the others choose the form: nothing, one factor on the
    variance of the output, one for each step, such factors that depend on the sequence's own
    variance, gains in every matrix and state, or gains and factors. What is best on the others is
    kept, the plain closed form where nothing is better. What an earlier calibration put into the
    module, to outcomes too, is taken out first.

        report = spgru.calibrate(model, x)      # x as in training, some dozen sequences
        print(report)
        spgru.uncalibrate(model)                # and everything is as before, bit for bit

    Gains and factors are buffers: saved, moved, cast, exported with the module. A module that is
    not of this package has one child more then, and its state dict is read by `load_calibration`.
    A layer of ours gets gains only, since it may stream, and a step has no place in time there.

    With `y` the fit is to outcomes, by likelihood, on data that the training has not seen: one
    factor on the whole variance, one for each step, or one for what the weights do not know and one
    for the noise. It takes the place of an earlier fit to outcomes, and acts on what a fit to drawn
    networks made of the variance, so one may come first.

    Noise that the module adds itself keeps its variance in a fit to drawn networks. Where it
    depends on the input, as that of `GaussianHead`, a module with factors on its output runs twice
    at every call, once with its weights at their means to find the noise; `form="gains"` does
    without. One with `keep_mean` runs twice, too. What such a module keeps from call to call (a
    state of its own, statistics of batches in training) is that of the second run. Pass states as
    arguments instead.

    Args:
        module: a layer of ours, or any module built from them; with `y` any module that gives
            Moments
        x: what `module` is called with; a tuple is passed as several arguments
        y: what happened, in the shape of the output; NaN where nothing was observed
        level: with `y`, of a central interval that is to hold: the variance is scaled once more, by
            the sequences held out, until of a new sequence like them that share of the entries lies
            within on average (conformal). Takes level / (1 - level) of them or more, 9 for 0.9
        form: `"gains"` or `"scale"` to try that alone, or one form by its name in the report, as
            `"gains, scale per step"`. Gains hold in a stream, step by step, too; a scale of the
            output is there only where the module is called. With `y`, `"scale"` tries factors on
            the whole variance alone, so that its parts keep their shares
        keep_mean: leave the mean of the output as it is. Gains change it, since the mean of an
            activation depends on the variance that comes in; it comes nearer to that of drawn
            networks, and may leave that of the data. With this, a module that got gains runs twice:
            once with them for the variance, once without for the mean
        call: what to calibrate instead of `module(*x)`: a function of the inputs that returns
            Moments. Of several Moments the first is taken
        draws: networks drawn for the truth; its relative error is the root of 2 / draws
        steps: of the fit of gains
        rate: of its optimiser, Adam
        held_out: share of the sequences that the fit does not see
        perturb: standard deviations of noise, in those of the input. Every sequence has a changed
            copy, and copies count as much as sequences in the fit and in the choice: so the
            variance holds beside the familiar inputs, too. Every other copy has noise of one of
            these standard deviations, within the range of the input; what is constant or whole
            numbers stays as it is. `()` for none; with `y` there are no copies
        skip: shares of the steps. The other copies go on by two steps in place of one at such a
            share of the steps that recurrent layers run over, at random places, and so run ahead;
            where nothing is left they repeat the last one. Padding counts as steps. `()` for none.
            Where only one of the two changes is possible all copies have that one
        batch_dim: dimension of the inputs that holds sequences; found out by default: the first one
            along which the module may be called on a part, which may be time where it has no state.
            Inputs may differ in it, as states do from sequences
        time_dim: dimension of the output that holds steps; by default the other one of the first
            two, if the output has three dimensions or more
        seed: the same seed gives the same result
        progress: show a bar, on a terminal and where rich is installed
    """
    if is_compiled(module):
        module = module.get_submodule("_orig_mod")  # what was compiled notices the change
    _check(module, draws, steps, needs_random=y is None)
    check_choice("form", form, get_args(FormName))
    if keep_mean and (isinstance(module, Layer) or call is not None or y is not None):
        raise ValueError(
            "keep_mean runs a module twice where it is called, which a layer alone, call= and y "
            "have no place for; leave it out, or calibrate a module that holds the layer"
        )
    if y is None:
        if level is not None:
            raise ValueError("level is about outcomes; pass them as y")
        changes = check_changes(perturb, skip)
        with at_rest(module, seed) as scales, uncalibrated(module):
            problem = pose(module, x, call, held_out, batch_dim, time_dim, seed, scales, changes)
            if keep_mean and problem.scale is None:
                raise ValueError(
                    f"keep_mean has no place in {type(module).__name__}, whose output is not what "
                    "it is calibrated for; calibrate the model inside"
                )
            found = search(problem, form, draws, steps, rate, seed, progress)
        before = _calibrated_inside(module)
        found.forms[found.best].apply(module, problem, keep_mean)
        _tell_of_lost(module, before)
        return found.report(keep_mean)
    if form not in ("auto", "gains", "scale"):
        raise ValueError(f"form={form!r} is one of a fit to drawn networks; leave it out with y")
    if level is not None and not (isinstance(level, Real) and 0 < level < 1):
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    with at_rest(module, seed) as scales:
        problem = pose(
            module, x, call, held_out, batch_dim, time_dim, seed, scales, may_be_alike=True
        )
        with without_outcomes(problem.scale):
            chosen, report = find_scale(problem, y, level, whole=form == "scale")
    if chosen is not None:
        chosen = chosen.with_dims(problem.input_dims, y.ndim)
        place_of(module, problem.scale).set_outcomes_(chosen)
    elif problem.scale is not None:
        problem.scale.set_outcomes_(None)
    return report


def _calibrated_inside(module: nn.Module) -> set[str]:
    """Names of modules of a user's own inside this one whose output is scaled."""
    return {
        name.removesuffix(f".{CHILD}")
        for name, scale in named_scales(module)
        if scale.is_attached and name != CHILD and (scale.scale or scale.outcomes)
    }


def _tell_of_lost(module: nn.Module, before: set[str]) -> None:
    lost = sorted(before - _calibrated_inside(module))
    if lost:
        warnings.warn(
            f"the calibration of {', '.join(lost)} was taken out: gains are those of one output; "
            "calibrate a copy.deepcopy where the calibration of the module inside is to stay",
            stacklevel=3,
        )


def _check(module: nn.Module, draws: int, steps: int, needs_random: bool) -> None:
    layers = [layer for _, layer in layers_of(module)]
    if needs_random and not layers:
        raise ValueError(
            f"module ({type(module).__name__}) holds no random weights; build it from spgru layers"
        )
    if any(weight_mode(layer) is not None for layer in layers):
        raise ValueError(
            "calibrate draws weights itself and cannot run while they are drawn or at their means; "
            "call it outside of `sampling` and `at_mean`"
        )
    if any(parameter.is_inference() for parameter in module.parameters()):
        raise ValueError(
            f"{type(module).__name__} was built under torch.inference_mode(), where nothing can be "
            "differentiated; build it outside"
        )
    for name, value in (("draws", draws), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to measure a variance, got {draws}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
