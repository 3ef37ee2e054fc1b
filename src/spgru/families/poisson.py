"""Poisson weights and neurons: positive networks with one parameter each."""

from __future__ import annotations

import torch
from torch import Tensor

from spgru.checks import check_moments, values_are_checked
from spgru.families.base import Family, Parameterization, positive_only
from spgru.families.gamma import check_activation
from spgru.functional import Rule, poisson_activation
from spgru.moments import Moments, Value


class Poisson(Family):
    """Poisson with rate = mean = variance.

    Natural parameter eta = log(rate), which is unconstrained, so it is stored as it is; the
    moments are stored as `log_mean`, the same number. Taking moments to a Poisson keeps the mean
    and lets the family imply the variance.
    """

    name = "poisson"

    def __init__(self, c: float = 1.0, gamma: float = 1.0) -> None:
        self.c, self.gamma = check_activation(c, gamma)

    def gate(self, x: Value, rule: Rule) -> Value:
        return poisson_activation(x, self.c, self.gamma)

    def candidate(self, x: Value, rule: Rule) -> Value:
        return poisson_activation(x, self.c, self.gamma)

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]:
        return (moments.mean.log(),)

    def from_natural(self, *eta: Tensor) -> Moments:
        rate = eta[0].exp()
        return Moments(rate, rate)

    def to_raw(self, moments: Moments, parameterization: Parameterization) -> dict[str, Tensor]:
        return {self._raw_name(parameterization): moments.mean.log()}

    def from_raw(self, raw: dict[str, Tensor], parameterization: Parameterization) -> Moments:
        return self.from_natural(raw[self._raw_name(parameterization)])

    @staticmethod
    def _raw_name(parameterization: Parameterization) -> str:
        return "log_mean" if parameterization == "moments" else "eta"

    def check_domain(self, name: str, moments: Moments) -> None:
        check_moments(name, moments)
        if values_are_checked(moments.mean):
            positive_only(self.name, name, moments.mean, allow_zero=True)

    def log_prob(self, value: Tensor, moments: Moments) -> Tensor:
        return torch.xlogy(value, moments.mean) - moments.mean - torch.lgamma(value + 1)

    def kl(self, q: Moments, p: Moments) -> Tensor:
        return q.mean * (q.mean.log() - p.mean.log()) - q.mean + p.mean

    def sample(self, moments: Moments, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(moments.mean, generator=generator)

    def initial_mean(self, shape: tuple[int, ...], bound: float, like: Tensor) -> Tensor:
        # A sum of n positive terms grows with n, not with its root: the bound is squared.
        mean = torch.empty(shape, dtype=like.dtype, device=like.device).uniform_(0, 2 * bound**2)
        return mean.clamp(min=0.02 * bound**2)

    def moments_of(self, mean: Tensor, std: float | None, bound: float) -> Moments:
        if std is not None:
            raise ValueError(
                f"weight_std={std} cannot be obeyed by the poisson family, whose variance equals "
                "its mean; leave weight_std out or use family='gamma'"
            )
        return Moments(mean, mean)

    def fan_in_scale(self, fan_in: int) -> float:
        return 1 / fan_in

    def __repr__(self) -> str:
        return f"Poisson(c={self.c}, gamma={self.gamma})"
