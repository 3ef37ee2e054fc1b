"""Poisson weights and neurons: positive networks with one parameter each."""

from __future__ import annotations

import torch
from torch import Tensor

from spgru.families.base import Parameterization, PositiveFamily
from spgru.functional import Rule
from spgru.functional.saturating import poisson_activation
from spgru.moments import Moments, Value


class Poisson(PositiveFamily):
    """Poisson with rate = mean = variance.

    Natural parameter eta = log(rate), which is unconstrained, so it is stored as it is; the
    moments are stored as `log_mean`, the same number. Taking moments to a Poisson keeps the mean
    and lets the family imply the variance.
    """

    name = "poisson"

    def candidate(self, x: Value, rule: Rule = "exact") -> Value:
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

    def log_prob(self, value: Tensor, moments: Moments) -> Tensor:
        inside = (value >= 0) & (value == value.floor())
        x = torch.where(inside, value, 0.0)
        log = torch.xlogy(x, moments.mean) - moments.mean - torch.lgamma(x + 1)
        return torch.where(inside, log, -torch.inf)

    def kl(self, q: Moments, p: Moments) -> Tensor:
        return q.mean * (q.mean.log() - p.mean.log()) - q.mean + p.mean

    def sample(self, moments: Moments, generator: torch.Generator | None = None) -> Tensor:
        """The mean where the variance is 0, as for an input known exactly."""
        draw = torch.poisson(
            moments.mean.to(torch.promote_types(moments.dtype, torch.float32)), generator=generator
        )
        return torch.where(moments.var > 0, draw.to(moments.dtype), moments.mean)

    def moments_of(self, mean: Tensor, std: float | Tensor | None, bound: float) -> Moments:
        if std is not None:
            raise ValueError(
                f"weight_std={std} cannot be obeyed by the poisson family, whose variance equals "
                "its mean; leave weight_std out or use family='gamma'"
            )
        return Moments(mean, mean)
