"""The product with W in a recurrent step, and its two adjoints: matrices or convolutions.

Time and batch are rows, units the last dimension. The adjoint for the weights takes all steps at
once: one large product instead of one for every step.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Convolution", "Matrix", "Product", "add_bias", "product_dtype", "sum_of_rows"]


class Product(Protocol):
    def forward(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """(*rows, I) -> `out` (*rows, O)"""

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """(*rows, O), (*rows, I) -> (*rows, I)"""

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """(T, *rows, O), (T, *rows, I) -> like `weight`, summed over everything"""


class Matrix:
    """x -> W x, W (O, I)."""

    def forward(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        torch.mm(x, weight.T, out=out) if x.ndim == 2 else torch.matmul(x, weight.T, out=out)

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad @ weight

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad.flatten(0, -2).T @ x.flatten(0, -2)


class Convolution:
    """A convolution that keeps height and width, W (O, I, k, k); x (*batch, height, width, I)."""

    def forward(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        output = F.conv2d(_images(x), weight, padding=weight.shape[-1] // 2)
        _images(out).copy_(output)

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        images = self._adjoint(_images(grad), _images(x), weight, 0)
        return images.movedim(1, -1).reshape(x.shape).contiguous()

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return self._adjoint(_images(grad), _images(x), weight, 1)

    @staticmethod
    def _adjoint(grad: Tensor, x: Tensor, weight: Tensor, which: int) -> Tensor:
        padding = [weight.shape[-1] // 2] * 2
        wanted = [which == 0, which == 1, False]
        adjoints = torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, wanted
        )
        adjoint: Tensor = adjoints[which]
        return adjoint


def _images(x: Tensor) -> Tensor:
    """(*batch, height, width, C) -> (batch, C, height, width), channels last in memory"""
    return x.reshape(-1, *x.shape[-3:]).movedim(-1, 1)


def product_dtype(weight: Tensor) -> torch.dtype:
    """What products are computed in: the weight's own, or that of autocast."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def sum_of_rows(x: Tensor) -> Tensor:
    """(*rows, C) -> (C,), as a product with ones: a GPU's own sum of columns is far slower."""
    flat = x.flatten(0, -2)
    return torch.mv(flat.T, flat.new_ones(len(flat)))


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, sum_of_rows(grad)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """(*rows, C) + (C,), with the faster gradient of the bias."""
    result: Tensor = _AddBias.apply(x, bias.to(x.dtype))
    return result
