"""The forms that a calibration to drawn networks may take, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from spgru.calibration.fit import Gains, fit_gains, fit_scale, score
from spgru.calibration.problem import Problem
from spgru.calibration.progress import Bar
from spgru.calibration.report import CalibrationReport, by_step, spread_of
from spgru.calibration.state import uncalibrate
from spgru.calibration.truth import Own, Shape, device_of, drawn_truths, own_variances, run_watched
from spgru.modes import enter_gains
from spgru.nn.output_scale import place_of
from spgru.nn.scale import Scale

__all__ = ["PLAIN", "Form", "FormName", "Found", "search"]

PLAIN = "plain"
_WORSE = 1.5
"""Times the best score on sequences that a form may have which is better on copies."""
FormName = Literal[
    "auto", "gains", "scale", "one scale", "scale per step", "scale by level",
    "gains, one scale", "gains, scale per step", "gains, scale by level",
]  # fmt: skip
"""All of them, some of them, or the name of one as it stands in a report."""


class Form(NamedTuple):
    """One way to calibrate."""

    name: str
    gains: Gains
    scale: Scale | None
    fitted: Tensor
    """variance of the output on the sequences of the fit"""
    held: Tensor
    """on those held out"""
    mean: Tensor
    """of the output on those held out"""

    def apply(self, module: nn.Module, problem: Problem, keep_mean: bool = False) -> None:
        """Put it in place of what the module has; for `keep_mean` see `spgru.calibrate`."""
        uncalibrate(module)
        for layer, gains in self.gains.items():
            layer.set_gains_(gains)
        scale = self.scale
        if keep_mean and self.gains:
            flag = torch.ones((), device=self.held.device)
            scale = (scale or Scale(flag.reshape(1)))._replace(plain_mean=flag)
        if scale is not None:
            scale = scale.with_dims(problem.input_dims, self.held.ndim)
            place_of(module, problem.scale).set_(scale)


class Found(NamedTuple):
    """All forms of one calibration, from simple to complex."""

    forms: dict[str, Form]
    scores: dict[str, float]
    best: str
    true: Tensor
    """variance of drawn networks on the sequences held out"""
    shape: Shape
    has_copies: bool
    draws: int
    sequences: tuple[int, int]
    outputs: int

    def report(self, keep_mean: bool = False) -> CalibrationReport:
        forms = self.forms[PLAIN], self.forms[self.best]
        # Of the user's own sequences, not of copies.
        true, plain, best, before, after = (
            self.shape.halves(values, self.has_copies)[0]
            for values in (self.true, *(f.held for f in forms), *(f.mean for f in forms))
        )
        moved = 0.0 if keep_mean else (after - before).double().square().sum() / true.sum()
        return CalibrationReport(
            chosen=self.best,
            scores=self.scores,
            true_var=by_step(true, self.shape.time),
            plain_var=by_step(plain, self.shape.time),
            var=by_step(best, self.shape.time),
            plain_spread=spread_of(true, plain),
            spread=spread_of(true, best),
            mean_shift=float(moved) ** 0.5,
            draws=self.draws,
            sequences=self.sequences,
            copies=self.has_copies,
            outputs=self.outputs,
        )


def search(
    problem: Problem,
    form: FormName,
    draws: int,
    steps: int,
    rate: float,
    seed: int,
    progress: bool,
) -> Found:
    """All forms, and the best of them on the sequences held out; the module stays as it is."""
    module, run, parts, shape = problem.module, problem.run, problem.parts, problem.shape
    copied = problem.has_copies
    if not form.startswith(("auto", "gains")):
        steps = 0
    gains: Gains = {}
    with Bar(progress, draws + steps) as bar:
        generator = torch.Generator(device_of(module)).manual_seed(seed)
        fitted, held = drawn_truths(module, run, parts, draws, generator, bar.advance)
        plain = Form(PLAIN, {}, None, *_outputs(problem))
        if not bool(((fitted.output > 0) & (plain.fitted > 0)).any()):
            raise ValueError(
                "nothing in the output is random: neither weights nor inputs have a variance that "
                "reaches it; give the layers a weight_std above 0"
            )
        if steps:
            gains = fit_gains(
                module, run, parts[0], fitted, shape, copied, steps, rate, bar.advance
            )
    bases = [plain]
    if gains:
        with enter_gains(gains):
            bases.append(Form("gains", gains, None, *_outputs(problem)))
    scalable = form != "gains" and problem.scale is not None
    owns = own_variances(module, run, parts, shape) if scalable else []
    forms = []
    for base in bases:
        forms.append(base)
        if scalable:
            forms += _scaled_forms(base, [fitted.output, held.output], shape, owns, copied)
    if form not in ("auto", "gains", "scale"):
        forms = [plain, *(one for one in forms if one.name == form)]
    if form not in ("auto", "gains") and len(forms) == 1:
        raise ValueError(
            f"form={form!r} cannot be fitted to {type(module).__name__} and x: a scale takes a "
            "module whose output it is, random at every step; a scale per step an output that has "
            "steps; a scale by level sequences whose variances differ; gains a matrix with "
            'uncertain inputs; leave it at "auto"'
        )
    # Off the familiar path a power goes furthest astray, so it comes last.
    forms.sort(key=lambda one: one.scale is not None and one.scale.power is not None)
    scores = {one.name: score(held.output, one.held, shape, copied).item() for one in forms}
    true = shape.halves(held.output, copied)[0]
    own_scores = {
        one.name: score(true, shape.halves(one.held, copied)[0], shape).item() for one in forms
    }
    return Found(
        forms={one.name: one for one in forms},
        scores=scores,
        best=_choose(scores, own_scores, draws),
        true=held.output,
        shape=shape,
        has_copies=copied,
        draws=draws,
        sequences=problem.counts,
        outputs=problem.outputs,
    )


@torch.no_grad()
def _outputs(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Variances on the sequences of the fit and on those held out, means on the latter."""
    fitted, held = (run_watched(problem.module, problem.run, part).output for part in problem.parts)
    return fitted.var.double(), held.var.double(), held.mean


def _scaled_forms(
    base: Form, true: Sequence[Tensor], shape: Shape, owns: Sequence[Own], has_copies: bool
) -> Iterator[Form]:
    """The form with scales, from simple to complex.

    They are judged by a fit without the sequences held out, and kept as fitted to all: so few
    numbers gain more by more sequences than they lose.
    """
    steps = shape.time is not None
    options = {"one scale": (False, False)}
    if steps:
        options["scale per step"] = (True, False)
    options["scale by level"] = (steps, True)
    all_true, all_var, all_found = (
        torch.cat([first, second], shape.batch)
        for first, second in (true, (base.fitted, base.held), [own.found for own in owns])
    )
    fitted_own = owns[0]
    all_own = fitted_own._replace(found=all_found)
    for name, option in options.items():
        judged = fit_scale(true[0], base.fitted, shape, fitted_own, *option, has_copies)
        kept = fit_scale(all_true, all_var, shape, all_own, *option, has_copies)
        if judged is not None and kept is not None:
            full = f"gains, {name}" if base.gains else name
            fitted, held = (
                judged.with_own(own.found)(var)
                for own, var in zip(owns, (base.fitted, base.held), strict=True)
            )
            yield Form(full, base.gains, kept, fitted, held, base.mean)


def _choose(scores: Mapping[str, float], own: Mapping[str, float], draws: int) -> str:
    """The best, or the first (they become more complex) that noise cannot tell from it.

    A truth from n draws is off by a log distance of 1 / n on average.

    Args:
        scores: of sequences and copies
        own: of sequences alone; what is much worse there is not chosen for the sake of copies
    """
    noise = 1 / draws
    # A fit that went astray has no score.
    known = {name: value for name, value in scores.items() if math.isfinite(value)}
    if not known:
        raise ValueError(
            "the variance is NaN or infinite for some sequences of x in every form; leave those "
            "sequences out"
        )
    most = _WORSE * min(own[name] for name in known) + noise
    fair = {name: value for name, value in known.items() if own[name] <= most}
    least = min(fair.values())
    return next(name for name, value in fair.items() if value <= least + noise)
