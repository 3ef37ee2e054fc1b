"""A head that predicts a value and how noisy it is."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from spgru.functional.smooth import exp
from spgru.moments import Moments
from spgru.nn.layer import Options
from spgru.nn.linear import Linear

__all__ = ["GaussianHead", "with_noise"]


def with_noise(value: Moments, log_var: Moments | Tensor) -> Moments:
    """Moments of Y ~ N(value, exp(log_var)) where both are random. Exact for a Gaussian log_var.

    var = value.var + E exp(log_var), and E exp(log_var) = exp(log_var.mean + log_var.var / 2).
    """
    # By the moments of exp, so that `spgru.respond` finds the whole of the noise: it takes means
    # as they are, and looks for variance that appears here.
    noise = exp(log_var) if isinstance(log_var, Tensor) else exp(log_var).mean
    return Moments(value.mean, value.var + noise)


class GaussianHead(nn.Module):
    """Features to a value and its noise: Tensor or Moments in, Moments out.

    Two linear maps with random weights give a value and the logarithm of the variance of its noise.
    The output's variance is that of the value plus the expected noise:

        head = spgru.nn.GaussianHead(32, 1)
        y = head(features)                         # y.var: what is not known, and noise
        value, log_var = head.parts(features)      # Moments each; value.var: what is not known
        loss = -y.log_prob(target).mean()

    Args:
        in_features: as of `Linear`
        out_features: as of `Linear`
        bias: as of `Linear`
        options: as of `Linear`
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        self.value = Linear(in_features, out_features, bias, device, dtype, **options)
        self.log_var = Linear(in_features, out_features, bias, device, dtype, **options)
        if self.value.family.name != "gaussian":
            raise ValueError(
                f"family={self.value.family.name!r} has no log-variance, which may be negative; "
                "use family='gaussian'"
            )

    def pretrained_config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values, for `spgru.save_pretrained`."""
        return {k: v for k, v in self.value.pretrained_config().items() if k != "family"}

    def forward(self, input: Tensor | Moments) -> Moments:
        """(*batch, in_features) -> (*batch, out_features)"""
        return with_noise(*self.parts(input))

    def parts(self, input: Tensor | Moments) -> tuple[Moments, Moments]:
        """The value without noise, and the logarithm of the noise's variance."""
        return self.value(input), self.log_var(input)
