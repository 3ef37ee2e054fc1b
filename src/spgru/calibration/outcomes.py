"""Fits to what really happened: one factor for what the weights do not know, one for the noise.

The variance of an outcome is that of the prediction, a (var - own) + b own, where `own` is what the
module adds itself as noise; a module that adds none gets a constant for every feature. Likelihood
decides, that of a Gaussian, on outcomes that no fit has seen.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from spgru.calibration.inputs import check_observed, check_outcomes
from spgru.calibration.problem import Problem
from spgru.calibration.report import OutcomeReport, by_step
from spgru.calibration.truth import Own, Shape, own_variance
from spgru.moments.nested import first_moments
from spgru.nn.scale import Scale

__all__ = ["Outcomes", "conformal_factor", "find_scale", "least_sequences"]


class Outcomes(NamedTuple):
    """A prediction and what happened, on some sequences. NaN in `y` is left out."""

    mean: Tensor
    var: Tensor
    own: Tensor
    """of `var`, what the module adds itself"""
    y: Tensor


def _nll(outcomes: Outcomes, var: Tensor) -> Tensor:
    """Mean of -log N(y; mean, var) over what was observed."""
    seen = ~outcomes.y.isnan()
    error = torch.where(seen, outcomes.y - outcomes.mean, 0.0)
    nll = 0.5 * (error.square() / var + var.log() + math.log(2 * math.pi))
    # Where var is 0 the prediction claims to be certain: infinitely bad, unless it is right.
    return torch.where(seen, nll, 0.0).sum() / seen.sum()


def _fit(outcomes: Outcomes, own: Own, shape: Shape, whole: bool) -> dict[str, Scale]:
    """Scales by name, from simple to complex; with `whole` those of the whole variance alone."""
    squares = (outcomes.y - outcomes.mean).square()
    ratio = squares / outcomes.var
    found: dict[str, Scale] = {}
    if bool((outcomes.var > 0).all()):
        # The variance that makes outcomes most likely has a mean of z^2 of 1.
        one = ratio.nanmean().reshape(1)
        found["one factor"] = Scale(one.float())
        if shape.time is not None:
            ordered = ratio.movedim(shape.time, 0).flatten(1).nanmean(1)
            if bool(ordered.isfinite().all()) and bool((ordered > 0).all()):
                factor = ordered.float().reshape(*[1] * shape.time, -1)
                found["factor per step"] = Scale(factor)
    if not whole:
        found["weights and noise"] = _two_factors(outcomes, own, shape)
    return found


def _two_factors(outcomes: Outcomes, own: Own, shape: Shape, steps: int = 300) -> Scale:
    """v = a (var - own) + b own, or a var + b for every feature where there is no own."""
    before = 1 if shape.time is None else 2
    squares = (outcomes.y - outcomes.mean).square()
    start = squares.flatten(0, before - 1).nanmean(0)
    start = torch.where(start.isnan(), squares.nanmean(), start)  # of features never observed
    floor = 1e-8 * squares.nanmean().clamp(min=torch.finfo(torch.float32).tiny)
    has_own = own.varies or own.constant is not None
    log_a = torch.zeros((), dtype=torch.float64, device=squares.device, requires_grad=True)
    log_b = (torch.zeros_like(log_a) if has_own else (0.5 * start + floor).log()).requires_grad_()
    rest = (outcomes.var - outcomes.own).clamp(min=0)
    optimizer = torch.optim.LBFGS(
        [log_a, log_b], lr=1.0, max_iter=steps, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        noise = log_b.exp() * outcomes.own if has_own else log_b.exp()
        value = _nll(outcomes, log_a.exp() * rest + noise + floor)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    factor, noise = log_a.detach().exp().float().reshape(1), log_b.detach().exp().float()
    if own.varies:
        return Scale(factor, noise_factor=noise)
    if own.constant is not None:
        return Scale(factor, own=own.constant, noise=noise * own.constant)
    return Scale(factor, noise=noise)


_MARGIN = 1e-6
"""More than the rounding of single precision."""


def least_sequences(level: float) -> int:
    """How many sequences held out of a fit an interval of that level takes."""
    return math.ceil(level / (1 - level) - 1e-9)


def conformal_factor(outcomes: Outcomes, var: Tensor, level: float, batch: int) -> Tensor:
    """The factor on the variance with which central intervals of that level hold.

    Sequences are exchangeable, and the entries of one are not: they may all be wrong together. So
    the share of entries that an interval misses is taken in each sequence, and the intervals are as
    narrow as they can be with (sum of the shares + 1) / (n + 1) at most 1 - level. Then the share
    of a new sequence's entries that they hold is on average at least `level` (conformal risk
    control, Angelopoulos et al. 2022); with one entry in a sequence this is split conformal
    prediction (Lei et al. 2018), as libraries have it.

    Args:
        batch: dimension of the sequences; one in which nothing was observed does not count
    """
    z = ((outcomes.y - outcomes.mean).abs() / var.sqrt()).movedim(batch, 0)
    z = z.reshape(len(z), -1)
    seen = ~z.isnan()
    observed = seen.sum(1, keepdim=True)
    sequences = int((observed > 0).sum())
    if sequences < least_sequences(level):
        raise ValueError(
            f"a level of {level} takes at least {least_sequences(level)} sequences held out of the "
            f"fit, and there are {sequences}; pass more sequences or a lower level"
        )
    ordered, order = z[seen].sort()
    shares = (1 / observed).expand_as(z)[seen][order]
    # Of an interval that ends at the k-th, the shares of those after it; entries as far off as that
    # are within, and a rounding error must not count as one missed.
    missed = shares.sum() - shares.cumsum(0)
    allowed = (1 - level) * (sequences + 1) - 1
    widest = ordered[(missed > allowed + 1e-9 * sequences).sum()]
    if not bool(widest.isfinite()):
        raise ValueError(
            "some outputs have no variance and were wrong, so no factor makes intervals of them "
            f"hold at a level of {level}; leave out form='scale', or give the layers a variance"
        )
    if widest == 0:
        # Outcomes that are the mean itself: every interval holds, and a factor of 0 would leave no
        # variance to any input.
        return torch.ones_like(widest)
    # They end at an outcome, which rounding in single precision must not leave outside.
    return (1 + _MARGIN) * (widest / NormalDist().inv_cdf((1 + level) / 2)).square()


def find_scale(
    problem: Problem, y: Tensor, level: float | None, whole: bool = False
) -> tuple[Scale | None, OutcomeReport]:
    """The scale to put in place of the module's, None to leave it, and what it does.

    Args:
        whole: try factors on the whole variance alone
    """
    run, inputs, shape = problem.run, problem.inputs, problem.shape
    if problem.scale is None:
        raise ValueError(
            f"the output of {type(problem.module).__name__} has no place for a scale; calibrate a "
            "module that returns the layer's output, without call="
        )
    with torch.no_grad():
        output = first_moments(run(*inputs)).to(torch.float64)
    check_outcomes(y, output)
    own = own_variance(problem.module, run, inputs, shape)
    known = *output, own.found, y.detach().to(output.mean)
    fitted, held = (
        Outcomes(*(part.index_select(shape.batch, index.to(part.device)) for part in known))
        for index in problem.numbers
    )
    check_observed(fitted.y, held.y)
    found = {"plain": Scale(torch.ones(1, device=output.device)), **_fit(fitted, own, shape, whole)}
    variances = {name: scale.with_own(held.own)(held.var) for name, scale in found.items()}
    scores = {name: _nll(held, var).item() for name, var in variances.items()}
    # One that claims certainty and is wrong has no finite score.
    best = min(scores, key=lambda name: scores[name] if math.isfinite(scores[name]) else math.inf)
    if not math.isfinite(scores[best]):
        raise ValueError(
            "some outputs have no variance and were wrong, so no factor on their variance makes "
            "what happened possible; leave out form='scale', or give the layers a variance"
        )
    chosen, var = found[best], variances[best]
    if level is not None:
        factor = conformal_factor(held, var, level, shape.batch)
        chosen, var = _times(chosen, factor.float()), factor * var
    report = outcome_report(best, scores, held, var, shape, level, problem.outputs)
    return None if best == "plain" and level is None else chosen, report


def _times(scale: Scale, factor: Tensor) -> Scale:
    """The scale, and then this factor on everything."""
    return scale._replace(
        factor=scale.factor * factor,
        noise=None if scale.noise is None else scale.noise * factor,
        noise_factor=None if scale.noise_factor is None else scale.noise_factor * factor,
    )


def outcome_report(
    chosen: str,
    scores: dict[str, float],
    outcomes: Outcomes,
    var: Tensor,
    shape: Shape,
    level: float | None,
    outputs: int = 1,
) -> OutcomeReport:
    squared = (outcomes.y - outcomes.mean).square()
    shown = 0.9 if level is None else level
    width = NormalDist().inv_cdf((1 + shown) / 2) ** 2
    seen = ~outcomes.y.isnan()

    def coverage(v: Tensor) -> float:
        return ((squared <= width * v) & seen).sum().item() / seen.sum().item()

    return OutcomeReport(
        chosen=chosen,
        scores=scores,
        plain_squares=by_step(squared / outcomes.var, shape.time),
        squares=by_step(squared / var, shape.time),
        plain_coverage=coverage(outcomes.var),
        coverage=coverage(var),
        level=shown,
        missing=int((~seen).sum()),
        sequences=outcomes.y.shape[shape.batch],
        outputs=outputs,
    )
