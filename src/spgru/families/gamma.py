"""Gamma weights and neurons: positive networks."""

from __future__ import annotations

import torch
from torch import Tensor

from spgru.checks import require
from spgru.families.base import Parameterization, PositiveFamily, with_std
from spgru.functional import Rule
from spgru.functional.saturating import gamma_activation
from spgru.moments import Moments, Value


class Gamma(PositiveFamily):
    """Gamma with shape a = mean^2 / var and rate b = mean / var.

    Natural parameters eta = (a - 1, -b) with sufficient statistics (log x, x).
    Stored raw: `log_mean` and `log_var`, or `log_shape` = log(eta1 + 1) and `log_rate` =
    log(-eta2).
    Gates and candidates alike pass through c (1 - exp(-gamma x)).
    """

    name = "gamma"

    def candidate(self, x: Value, rule: Rule = "exact") -> Value:
        return gamma_activation(x, self.c, self.gamma)

    def shape_rate(self, moments: Moments) -> tuple[Tensor, Tensor]:
        """alpha = mean^2/var and beta = mean/var."""
        rate = moments.mean / moments.var
        return moments.mean * rate, rate

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]:
        require(
            "moments.var",
            moments.var,
            moments.var > 0,
            "positive; a certain value has no natural parameters",
        )
        shape, rate = self.shape_rate(moments)
        return shape - 1, -rate

    def from_natural(self, *eta: Tensor) -> Moments:
        eta1, eta2 = eta
        require("eta1", eta1, eta1 > -1, "above -1 (it is shape - 1)")
        require("eta2", eta2, eta2 < 0, "negative (it is -rate)")
        return Moments(-(eta1 + 1) / eta2, (eta1 + 1) / eta2**2)

    def to_raw(self, moments: Moments, parameterization: Parameterization) -> dict[str, Tensor]:
        if parameterization == "moments":
            return {"log_mean": moments.mean.log(), "log_var": moments.var.log()}
        shape, rate = self.shape_rate(moments)
        return {"log_shape": shape.log(), "log_rate": rate.log()}

    def from_raw(self, raw: dict[str, Tensor], parameterization: Parameterization) -> Moments:
        if parameterization == "moments":
            return Moments(raw["log_mean"].exp(), raw["log_var"].exp())
        log_shape, log_rate = raw["log_shape"], raw["log_rate"]
        return Moments((log_shape - log_rate).exp(), (log_shape - 2 * log_rate).exp())

    def log_prob(self, value: Tensor, moments: Moments) -> Tensor:
        shape, rate = self.shape_rate(moments.to(torch.float64))
        inside = value > 0
        x = torch.where(inside, value, 1.0).to(torch.float64)
        log = torch.xlogy(shape, rate) + torch.xlogy(shape - 1, x) - rate * x - torch.lgamma(shape)
        return torch.where(inside, log, -torch.inf).to(value.dtype)

    def kl(self, q: Moments, p: Moments) -> Tensor:
        # Nearly certain weights have a large shape, and these terms then cancel: float64 holds.
        q_shape, q_rate = self.shape_rate(q.to(torch.float64))
        p_shape, p_rate = self.shape_rate(p.to(torch.float64))
        return (
            (q_shape - p_shape) * torch.digamma(q_shape)
            - torch.lgamma(q_shape)
            + torch.lgamma(p_shape)
            + p_shape * (q_rate.log() - p_rate.log())
            + q_shape * (p_rate - q_rate) / q_rate
        ).to(q.dtype)

    def sample(self, moments: Moments, generator: torch.Generator | None = None) -> Tensor:
        random = moments.var > 0
        safe = Moments(moments.mean, torch.where(random, moments.var, 1.0))
        safe = safe.to(torch.promote_types(moments.dtype, torch.float32))
        shape, rate = self.shape_rate(safe)
        draw = torch._standard_gamma(shape, generator=generator) / rate
        return torch.where(random, draw.to(moments.dtype), moments.mean)

    def moments_of(self, mean: Tensor, std: float | Tensor | None, bound: float) -> Moments:
        return with_std(mean, 0.1 * bound**2 if std is None else std)
