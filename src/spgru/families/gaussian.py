"""Gaussian weights and neurons."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spgru.checks import require
from spgru.families.base import Family, Parameterization, with_std
from spgru.functional.activation import Rule, sigmoid, tanh
from spgru.moments import Moments, Value


class Gaussian(Family):
    """N(mean, var).

    Natural parameters eta = (mean / var, -1 / var) with sufficient statistics (x, x^2 / 2).
    Stored raw: `mean` and `log_var`, or `eta1` and `log_neg_eta2` = log(-eta2).
    A variance of 0 has no natural parameters, but it does have moments (`log_var` = -inf).
    """

    name = "gaussian"

    def gate(self, x: Value, rule: Rule = "exact") -> Value:
        return sigmoid(x, rule)

    def candidate(self, x: Value, rule: Rule = "exact") -> Value:
        return tanh(x, rule)

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]:
        require(
            "moments.var",
            moments.var,
            moments.var > 0,
            "positive; a certain value has no natural parameters",
        )
        precision = 1 / moments.var
        return moments.mean * precision, -precision

    def from_natural(self, *eta: Tensor) -> Moments:
        eta1, eta2 = eta
        require("eta2", eta2, eta2 < 0, "negative (it is -1 / variance)")
        var = -1 / eta2
        return Moments(eta1 * var, var)

    def to_raw(self, moments: Moments, parameterization: Parameterization) -> dict[str, Tensor]:
        if parameterization == "moments":
            return {"mean": moments.mean, "log_var": moments.var.log()}
        return {"eta1": moments.mean / moments.var, "log_neg_eta2": -moments.var.log()}

    def from_raw(self, raw: dict[str, Tensor], parameterization: Parameterization) -> Moments:
        if parameterization == "moments":
            return Moments(raw["mean"], raw["log_var"].exp())
        var = (-raw["log_neg_eta2"]).exp()
        return Moments(raw["eta1"] * var, var)

    def check_support(self, name: str, value: Tensor | Moments) -> None:
        """Everything is allowed."""

    def log_prob(self, value: Tensor, moments: Moments) -> Tensor:
        squared = (value - moments.mean) ** 2 / moments.var
        return -0.5 * (squared + moments.var.log() + math.log(2 * math.pi))

    def kl(self, q: Moments, p: Moments) -> Tensor:
        ratio = q.var / p.var
        return 0.5 * (ratio - 1 - ratio.log() + (q.mean - p.mean) ** 2 / p.var)

    def sample(self, moments: Moments, generator: torch.Generator | None = None) -> Tensor:
        return moments.sample(generator=generator)

    def initial_mean(self, shape: tuple[int, ...], bound: float, like: Tensor) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device=like.device).uniform_(-bound, bound)

    def moments_of(self, mean: Tensor, std: float | Tensor | None, bound: float) -> Moments:
        return with_std(mean, 0.1 * bound if std is None else std)

    def fan_in_scale(self, fan_in: int) -> float:
        return 1 / math.sqrt(fan_in)
