"""A prior over weights, for `spgru.kl_divergence`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spgru.checks import check_choice
from spgru.families.base import Family
from spgru.families.lookup import get
from spgru.moments import Moments


@dataclass(frozen=True)
class Prior:
    """The distribution that weights are pulled towards.

    Args:
        family: the weights' own family or its name (the divergence is closed form within one)
        mean: mean of the prior
        std: standard deviation of the prior; a Poisson has none to choose, so leave it None
        scale: `"fan_in"` multiplies mean and std by the family's scale for the number of inputs
            (1 / sqrt(fan_in) for the Gaussian, 1 / fan_in for the positive families), so that one
            prior suits layers of any width; `"fixed"` uses them as given.
    """

    family: Family | str
    mean: float = 0.0
    std: float | None = None
    scale: Literal["fan_in", "fixed"] = "fan_in"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, ("fan_in", "fixed"))
        name = get(self.family).name
        if name == "poisson":
            if self.std is not None:
                raise ValueError("std of a poisson prior follows from its mean; leave it out")
        elif self.std is None or self.std <= 0:
            raise ValueError(f"std must be positive, got {self.std}; 1.0 is a usual choice")
        if name != "gaussian" and self.mean <= 0:
            raise ValueError(f"mean of a {name} prior must be positive, got {self.mean}")

    def moments(self, fan_in: int, like: Moments) -> Moments:
        """The prior of a weight with `fan_in` inputs, shaped like `like`."""
        factor = get(self.family).fan_in_scale(fan_in) if self.scale == "fan_in" else 1.0

        def everywhere(value: float) -> Tensor:
            # One number in memory, not one for every weight.
            one = torch.full((), value, dtype=like.dtype, device=like.device)
            return one.expand(like.shape)

        mean = everywhere(self.mean * factor)
        if self.std is None:
            return Moments(mean, mean)
        return Moments(mean, everywhere((self.std * factor) ** 2))
