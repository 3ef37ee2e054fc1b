"""Training objectives of a model of pixels: `"elbo"`, `"paper"` or `"cross_entropy"`.

The network's output are moments of the *logit* of every pixel; targets are pixels in [0, 1].
Everything is in nats per frame: summed over the pixels, averaged over batch and frames.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spgru.checks import check_choice, values_are_checked
from spgru.divergence import kl_divergence
from spgru.families import Prior
from spgru.functional import Rule, sigmoid
from spgru.moments import Moments
from spgru.nn.weight import named_weights
from spgru.runtime.errors import refuse

__all__ = [
    "Loss",
    "Objective",
    "bernoulli_nll",
    "expected_bernoulli_nll",
    "expected_softplus",
    "target_divergence",
]

Name = Literal["elbo", "paper", "cross_entropy"]

# -- E softplus -------------------------------------------------------------------------------
#
# softplus(x) = max(x, 0) + log(1 + exp(-|x|)). With Z normal of variance c around 0,
# E max(x + Z, 0) = max(x, 0) + tail(x, c), so a mixture of such Z with weights w_k stands for
# softplus itself where sum_k w_k tail(x, c_k) = log(1 + exp(-|x|)), and adding a variance of x to
# every c_k is then exact. Variances in geometric progression and least squares for the weights
# leave 8e-7 with five terms; tools/fit_softplus_mixture.py finds the ends of the progression.
_VARIANCES = np.geomspace(0.82369, 12.5236, 5)


def _fit_weights() -> tuple[float, ...]:
    x = np.linspace(0, 40, 801)[:, None]
    upper_tails = torch.special.ndtr(torch.from_numpy(-x / np.sqrt(_VARIANCES))).numpy()
    densities = np.exp(-(x**2) / (2 * _VARIANCES)) / np.sqrt(2 * np.pi * _VARIANCES)
    tails = _VARIANCES * densities - x * upper_tails
    # The weights sum to one: the last is what the others leave.
    last = tails[:, -1]
    rest = np.log1p(np.exp(-x[:, 0])) - last
    weights, *_ = np.linalg.lstsq(tails[:, :-1] - last[:, None], rest, rcond=None)
    return (*weights.tolist(), 1 - float(weights.sum()))


_MIXTURE = tuple(zip(_VARIANCES.tolist(), _fit_weights(), strict=True))


class _ExpectedSoftplus(torch.autograd.Function):
    """Value and both derivatives in one pass, so that two tensors are kept instead of sixty."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        distance, twice_var = mean.abs(), 2 * var
        density = first = upper_tail = torch.zeros_like(mean)
        for c, weight in _MIXTURE:
            scale = torch.rsqrt(twice_var + 2 * c)
            scaled = distance * scale
            bell = torch.exp(-torch.square(scaled)) * scale
            density = torch.add(density, bell, alpha=weight / math.sqrt(math.pi))
            first = torch.add(first, bell, alpha=weight * c / math.sqrt(math.pi))
            upper_tail = torch.add(upper_tail, torch.erfc(scaled), alpha=0.5 * weight)
        tail = var * density + first - distance * upper_tail
        certain = var == 0  # where the mixture would be off by its 8e-7
        value = torch.where(certain, F.softplus(mean, threshold=40), torch.relu(mean) + tail)
        smoothed = torch.where(mean > 0, 1 - upper_tail, upper_tail)
        return value, torch.where(certain, torch.sigmoid(mean), smoothed), 0.5 * density

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, by_mean, by_var = output
        ctx.mark_non_differentiable(by_mean, by_var)
        ctx.save_for_backward(by_mean, by_var)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        by_mean, by_var = ctx.saved_tensors
        return grad * by_mean, grad * by_var


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def expected_softplus(x: Moments) -> Tensor:
    """E log(1 + exp(X)) for Gaussian X, within 1e-6 of the truth (and rounding). (*shape)

    With a mixture of normal distributions N(0, c_k) of weights w_k that is close to the logistic,

        max(m, 0) + sum_k w_k tail(m, c_k + v),    tail(m, c) = c N(m; 0, c) - |m| Q(|m| / sqrt(c))

    N being the normal density and Q the upper tail. Exact at v = 0, smooth in m and v, once
    differentiable, with the derivatives E sigmoid(X) and E sigmoid'(X) / 2 to 5e-6. 16-bit inputs
    are computed in float32.
    """
    x = x.to(_at_least_float32(x.dtype))
    return _ExpectedSoftplus.apply(x.mean, x.var)[0]  # type: ignore[no-any-return, no-untyped-call]


# -- the three objectives ---------------------------------------------------------------------


def _per_frame(pixels: Tensor) -> Tensor:
    """(*batch, height, width) -> scalar"""
    return pixels.sum((-2, -1)).mean()


def expected_bernoulli_nll(logits: Moments, target: Tensor) -> Tensor:
    """E[softplus(L) - y L] under L ~ N(logits), in nats per frame. (T, B, height, width) each."""
    mean = logits.mean.to(_at_least_float32(logits.dtype))
    return _per_frame(expected_softplus(logits) - target * mean)


def bernoulli_nll(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of certain logits, in nats per frame. (T, B, height, width) each."""
    logits = logits.to(_at_least_float32(logits.dtype))
    return _per_frame(F.softplus(logits, threshold=40) - target * logits)


def target_divergence(pixels: Moments, target: Tensor, var_floor: float = 1e-3) -> Tensor:
    """KL(N(o.mean, o.var) || N(y, y.var)) of pixel values o, in nats per frame: the paper's loss.

    y.var is the variance of the target over the mini-batch, for every pixel of every frame alone.
    Pixels that are equal in all sequences have none, and it would make the divergence infinite:
    `var_floor` is the least it may be.

    Args:
        pixels: (T, B, height, width), after the output sigmoid, where targets live
        target: (T, B, height, width)
    """
    target_var = target.var(1, correction=0, keepdim=True).clamp(min=var_floor)
    # Saturated pixels round to variance 0, whose logarithm would end training.
    ratio = pixels.var.clamp(min=1e-12) / target_var
    return _per_frame(0.5 * (ratio - 1 - ratio.log() + (pixels.mean - target) ** 2 / target_var))


class Loss(NamedTuple):
    """A loss and its parts, each a scalar. Minimise `total`, log the others."""

    total: Tensor
    nll: Tensor
    """the data term in nats per frame; of a composite the sum of its two"""
    kl: Tensor
    """the divergence before it is weighted: of the weights from their prior, in nats; of a deep
    Markov model of its states from their transition, in nats per frame; 0 without either"""
    future: Tensor | None = None
    """the data term of the predicted frames"""
    reconstruction: Tensor | None = None
    """the data term of the reconstructed frames"""


@dataclass(frozen=True)
class Objective:
    """A training objective and its constants.

    - `"elbo"`: expected log likelihood under the propagated distribution of the logits, plus
      beta / N times the divergence of the weights from a Gaussian prior around 0.
    - `"paper"`: KL(N(o) || N(y)) of the pixel values, see `target_divergence`; no prior.
    - `"cross_entropy"`: of the mean logit alone. Nothing holds variance up; a control.

    Args:
        name: which
        beta: weight of the divergence; 1 is the evidence lower bound
        data_size: N, the number of target frames the divergence is shared among. An endless
            stream has none: then only beta / N matters, and the default gives 1e-5.
        prior_std: standard deviation of the prior
        prior_scale: `"fixed"`, or `"fan_in"` to divide it by sqrt(inputs), see `spgru.Prior`
        var_floor: see `target_divergence`
    """

    name: Name = "elbo"
    beta: float = 1.0
    data_size: float = 1e5
    prior_std: float = 0.1
    prior_scale: Literal["fixed", "fan_in"] = "fixed"
    var_floor: float = 1e-3

    def __post_init__(self) -> None:
        check_choice("name", self.name, get_args(Name))
        check_choice("prior_scale", self.prior_scale, ("fixed", "fan_in"))
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        if not self.beta >= 0:
            yield f"beta must not be negative, got {self.beta}"
        for field in ("data_size", "prior_std", "var_floor"):
            if not getattr(self, field) > 0:
                yield f"{field} must be positive, got {getattr(self, field)}"

    def fit(self, logits: Moments, target: Tensor, rule: Rule = "exact") -> Tensor:
        """The data term, in nats per frame. (T, B, height, width) each."""
        check_target(logits, target)
        if self.name == "elbo":
            return expected_bernoulli_nll(logits, target)
        if self.name == "cross_entropy":
            return bernoulli_nll(logits.mean, target)
        pixels = sigmoid(logits.to(_at_least_float32(logits.dtype)), rule)
        return target_divergence(pixels, target, self.var_floor)

    def divergence(self, module: nn.Module) -> Tensor | None:
        """KL of the random weights of `module` from the prior; None where the objective has none.

        Beta 0 leaves it out rather than multiply it by 0: certain weights have an infinite one.
        """
        if self.name != "elbo" or self.beta == 0 or next(named_weights(module), None) is None:
            return None
        return kl_divergence(module, Prior("gaussian", std=self.prior_std, scale=self.prior_scale))

    def loss(
        self,
        module: nn.Module,
        future: tuple[Moments, Tensor] | None = None,
        reconstruction: tuple[Moments, Tensor] | None = None,
        rule: Rule = "exact",
    ) -> Loss:
        """The loss of a model that predicted, reconstructed, or did both.

        Args:
            module: whose weights the divergence is of
            future: logits and target, (T, B, height, width) each
            reconstruction: likewise
            rule: the sigmoid of the paper's objective
        """
        fits = [
            None if pair is None else self.fit(*pair, rule=rule)
            for pair in (future, reconstruction)
        ]
        terms = [fit for fit in fits if fit is not None]
        if not terms:
            raise ValueError("pass future, reconstruction or both; there is nothing to fit")
        nll = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        kl = self.divergence(module)
        if kl is None:
            return Loss(nll, nll, torch.zeros_like(nll), *fits)
        return Loss(nll + self.beta / self.data_size * kl, nll, kl, *fits)


def check_target(prediction: Moments | Tensor, target: Tensor) -> None:
    if prediction.shape != target.shape:
        raise ValueError(
            f"target has shape {tuple(target.shape)} but the prediction {tuple(prediction.shape)}; "
            "pass (T, B, height, width) with as many frames as the model predicts"
        )
    if values_are_checked(target) and not bool(((target >= 0) & (target <= 1)).all()):
        raise ValueError(
            f"target reaches from {target.min().item():.3g} to {target.max().item():.3g}, must lie "
            "in [0, 1]; divide uint8 frames by 255"
        )
