"""What a family of distributions must offer to be used for weights and neurons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from spgru.checks import check_moments, values_are_checked
from spgru.functional import Rule
from spgru.moments import Moments, Value

Parameterization = Literal["moments", "natural"]


class Family(ABC):
    """An exponential family whose members are known by their mean and variance.

    A subclass states the maps between three descriptions of a member:

    - its *moments*, which is what layers compute with;
    - its *natural parameters*, each within the family's domain;
    - the *raw parameters* a layer stores and an optimiser may move freely over the reals.
    """

    name: str

    # -- neurons ------------------------------------------------------------------------------

    @abstractmethod
    def gate(self, x: Value, rule: Rule = "exact") -> Value:
        """The activation of gates, with values in [0, 1]."""

    @abstractmethod
    def candidate(self, x: Value, rule: Rule = "exact") -> Value:
        """The activation of candidates and states."""

    # -- parameters ---------------------------------------------------------------------------

    @abstractmethod
    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]:
        """Natural parameters of the member with these moments."""

    @abstractmethod
    def from_natural(self, *eta: Tensor) -> Moments:
        """Moments of the member with these natural parameters; inverse of `to_natural`."""

    @abstractmethod
    def to_raw(self, moments: Moments, parameterization: Parameterization) -> dict[str, Tensor]:
        """Unconstrained parameters, by name."""

    @abstractmethod
    def from_raw(self, raw: dict[str, Tensor], parameterization: Parameterization) -> Moments:
        """Inverse of `to_raw`."""

    @abstractmethod
    def check_support(self, name: str, value: Tensor | Moments) -> None:
        """Raise ValueError where a value, or a distribution, lies outside the family's support."""

    def check_domain(self, name: str, moments: Moments) -> None:
        """Raise ValueError unless every entry is the moments of a member or of a limit."""
        check_moments(name, moments)
        self.check_support(name, moments)

    # -- densities ----------------------------------------------------------------------------

    @abstractmethod
    def log_prob(self, value: Tensor, moments: Moments) -> Tensor:
        """Log density (or mass) at `value` of the member with these moments, elementwise."""

    @abstractmethod
    def kl(self, q: Moments, p: Moments) -> Tensor:
        """KL(q || p) between members of this family, elementwise."""

    @abstractmethod
    def sample(self, moments: Moments, generator: torch.Generator | None = None) -> Tensor:
        """One draw per entry. Not differentiable: it serves as brute-force truth only."""

    # -- scales -------------------------------------------------------------------------------

    @abstractmethod
    def initial_mean(self, shape: tuple[int, ...], bound: float, like: Tensor) -> Tensor:
        """Fresh weight means; `bound` is what `torch.nn` would draw its weights within."""

    @abstractmethod
    def moments_of(self, mean: Tensor, std: float | Tensor | None, bound: float) -> Moments:
        """Moments of weights with these means; `std=None` takes the family's default."""

    @abstractmethod
    def fan_in_scale(self, fan_in: int) -> float:
        """Factor on a weight that keeps a sum over `fan_in` inputs of order one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def with_std(mean: Tensor, std: float | Tensor) -> Moments:
    """These means with the same standard deviation for all, or with one that broadcasts."""
    if isinstance(std, Tensor):
        return Moments(mean, (std.to(mean) ** 2).expand_as(mean).clone())
    return Moments(mean, torch.full_like(mean, std**2))


class PositiveFamily(Family):
    """A family on the positive half line, with the activation c (1 - exp(-gamma x))."""

    def __init__(self, c: float = 1.0, gamma: float = 1.0) -> None:
        if not 0 < c <= 1:
            raise ValueError(f"c must lie in (0, 1], got {c}; gates must stay within [0, 1]")
        if gamma <= 0:
            raise ValueError(f"gamma must be positive, got {gamma}; 1.0 is a good start")
        self.c, self.gamma = c, gamma

    def gate(self, x: Value, rule: Rule = "exact") -> Value:
        return self.candidate(x, rule)

    def check_support(self, name: str, value: Tensor | Moments) -> None:
        mean, var = value if isinstance(value, Moments) else (value, None)
        if not values_are_checked(mean):
            return
        # A certain 0 is allowed: it is the limit that a zero initial state needs.
        outside = mean < 0 if var is None else (mean < 0) | ((mean == 0) & (var > 0))
        if bool(outside.any()):
            raise ValueError(
                f"{name} has entries outside the domain of the {self.name} family "
                f"(smallest mean {mean.min().item():.3g}, must be positive); "
                "shift or rescale the data, or use family='gaussian'"
            )

    def initial_mean(self, shape: tuple[int, ...], bound: float, like: Tensor) -> Tensor:
        # A sum of n positive terms grows with n, not with its root: the bound is squared.
        mean = torch.empty(shape, dtype=like.dtype, device=like.device).uniform_(0, 2 * bound**2)
        return mean.clamp(min=0.02 * bound**2)

    def fan_in_scale(self, fan_in: int) -> float:
        return 1 / fan_in

    def __repr__(self) -> str:
        return f"{type(self).__name__}(c={self.c}, gamma={self.gamma})"
