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

from spgru.calibration.truth import Own, Shape
from spgru.nn.output_scale import Scale

__all__ = ["Outcomes", "conformal_factor", "fit_outcomes", "likelihood"]


class Outcomes(NamedTuple):
    """A prediction and what happened, on some sequences. NaN in `y` is left out."""

    mean: Tensor
    var: Tensor
    own: Tensor
    """of `var`, what the module adds itself"""
    y: Tensor


def likelihood(outcomes: Outcomes, var: Tensor) -> Tensor:
    """Mean of -log N(y; mean, var) over what was observed."""
    seen = ~outcomes.y.isnan()
    error = torch.where(seen, outcomes.y - outcomes.mean, 0.0)
    nll = 0.5 * (error.square() / var + var.log() + math.log(2 * math.pi))
    # Where var is 0 the prediction claims to be certain: infinitely bad, unless it is right.
    return torch.where(seen, nll, 0.0).sum() / seen.sum()


def fit_outcomes(outcomes: Outcomes, own: Own, shape: Shape, steps: int = 300) -> dict[str, Scale]:
    """Scales by name, from simple to complex."""
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
    found["weights and noise"] = _two_factors(outcomes, own, shape, steps)
    return found


def _two_factors(outcomes: Outcomes, own: Own, shape: Shape, steps: int) -> Scale:
    """v = a (var - own) + b own, or a var + b for every feature where there is no own."""
    before = 1 if shape.time is None else 2
    squares = (outcomes.y - outcomes.mean).square()
    start = squares.flatten(0, before - 1).nanmean(0)
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
        value = likelihood(outcomes, log_a.exp() * rest + noise + floor)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    factor, noise = log_a.detach().exp().float().reshape(1), log_b.detach().exp().float()
    if own.varies:
        return Scale(factor, noise_factor=noise)
    if own.constant is not None:
        return Scale(factor, own=own.constant, noise=noise * own.constant)
    return Scale(factor, noise=noise)


def conformal_factor(outcomes: Outcomes, var: Tensor, level: float) -> Tensor:
    """The factor on the variance with which central intervals of that level hold, split conformal.

    Of n outcomes that no fit has seen, the ceil((n + 1) level)-th smallest |z| takes the place of
    the Gaussian's quantile; then the interval of an exchangeable outcome holds with at least that
    probability (Lei et al. 2018). One line of sorting: libraries that do it (torchcp) bring
    classifiers and graphs with them.
    """
    z = ((outcomes.y - outcomes.mean).abs() / var.sqrt()).flatten()
    z = z[~z.isnan()].sort().values
    rank = math.ceil((len(z) + 1) * level)
    if rank > len(z):
        raise ValueError(
            f"a level of {level} takes more than {level / (1 - level) - 1:.4g} outcomes held out "
            f"of the fit, and there are {len(z)}; pass more sequences or a lower level"
        )
    return (z[rank - 1] / NormalDist().inv_cdf((1 + level) / 2)).square()
