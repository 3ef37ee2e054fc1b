"""Muon: matrices move along orthogonal directions.

`torch.optim.Muon` takes whole matrices and reads the rate on the host, which a CUDA graph forbids.
Here a weight of several gates is as many matrices as it has gates, a filter is the matrix of its
products, and the rate may be a tensor on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "orthogonal"]

_MOMENTUM = 0.95  # the default of torch.optim.Muon
# x -> a x + b x^3 + c x^5, repeated, takes every singular value in (0, 1] near 1: the coefficients
# and the number of times are Jordan's, as in torch.optim.Muon.
_COEFFICIENTS, _TIMES = (3.4445, -4.7750, 2.0315), 5


def orthogonal(matrices: Tensor) -> Tensor:
    """(count, m, n) in bfloat16, singular values brought near 1 (0.7 to 1.2).

    Those below a hundredth of the norm of the matrix stay smaller.
    """
    a, b, c = _COEFFICIENTS
    x: Tensor = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    # 1e-7 for a matrix of zeros, which stays one.
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(_TIMES):
        gram = x @ x.mT
        change = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, change, x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Steps of the size that Adam's have (0.2 of the rate, root mean square), all directions alike.

    Args:
        groups: parameter groups, each with `lr`, a number or a tensor, `weight_decay` and
            `matrices`: how many are stacked along the first dimension of each parameter
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(list(groups), {"lr": 1e-3, "weight_decay": 0.0, "matrices": 1})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"momentum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: nn.Parameter, grad: Tensor, group: dict[str, Any]) -> None:
        momentum = self.state[parameter]["momentum"]
        momentum.mul_(_MOMENTUM).add_(grad)
        ahead = torch.add(grad, momentum, alpha=_MOMENTUM)
        count = group["matrices"]
        direction = orthogonal(ahead.reshape(count, len(parameter) // count, -1))
        # An orthogonal m x n matrix has root mean square 1 / sqrt(max(m, n)); Adam's steps have
        # about 0.2 (Liu et al., 2025, "Muon is scalable for LLM training").
        size = 0.2 * math.sqrt(max(direction.shape[-2:]))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(group["lr"] * size * direction.reshape(parameter.shape))
