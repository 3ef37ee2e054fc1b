"""The product of an input with weights, W x, and its two adjoints: by matrix or by convolution.

An object says which product it is and how to compute it, so that the reference and the kernels of
`spgru.recurrent` cannot use different ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "ELEMENTWISE", "MATRIX", "SAME_CONVOLUTION", "Convolution", "DifferentiableProduct",
    "Elementwise", "Matrix", "Product", "SameConvolution", "add_bias", "sums_of_rows",
]  # fmt: skip


class Product(Protocol):
    """Anything linear in the input and in the weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b"""


class DifferentiableProduct(Product, Protocol):
    """A product with its adjoints, for kernels that do their own backward pass.

    Dimensions before the last of `x` are rows; the adjoint for the weight sums over all of them.
    """

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """(*rows, I) -> (*rows, O), contiguous"""

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        """(*rows, O), (*rows, I) -> (*rows, I), contiguous; into `out` where a library can"""

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """(*rows, O), (*rows, I) -> the shape of `weight`"""


class Matrix:
    """x -> W x, W (O, I)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        return torch.mm(grad, weight, out=out)

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad.flatten(0, -2).T @ x.flatten(0, -2)


class SameConvolution:
    """A convolution that keeps height and width, W (O, I, k, k) with odd k.

    Channels come last: x is (*batch, height, width, I).
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output = F.conv2d(_images(x), weight, padding=weight.shape[-1] // 2).movedim(1, -1)
        output = output.reshape(*x.shape[:-1], len(weight))
        return output if bias is None else add_bias(output, bias)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self(x, weight, None).contiguous()

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
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


class Elementwise:
    """x -> w x, every entry with a weight of its own, w (I,)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x * weight if bias is None else torch.addcmul(bias, x, weight)


MATRIX, SAME_CONVOLUTION, ELEMENTWISE = Matrix(), SameConvolution(), Elementwise()


@dataclass(frozen=True, slots=True)
class Convolution:
    """`torch.nn.functional.conv2d` with these options, channels first."""

    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] | str = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        options: Any = self.stride, self.padding, self.dilation, self.groups
        return F.conv2d(x, weight, bias, *options)


def sums_of_rows(*parts: Tensor) -> list[Tensor]:
    """(*rows, C) -> (C,) each, as products with ones: a GPU's own sum of columns is far slower.

    Args:
        parts: of one shape and dtype
    """
    flat = [part.flatten(0, -2) for part in parts]
    ones = flat[0].new_ones(len(flat[0]))
    return [torch.mv(part.T, ones) for part in flat]


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, sums_of_rows(grad)[0]


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """(*rows, C) + (C,), on a GPU with the faster gradient of the bias."""
    if not x.is_cuda or torch._C._are_functorch_transforms_active():
        return x + bias.to(x.dtype)
    result: Tensor = _AddBias.apply(x, bias.to(x.dtype))  # type: ignore[no-untyped-call]
    return result
