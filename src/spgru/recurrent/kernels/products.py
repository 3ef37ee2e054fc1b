"""The product with W in a recurrent step, and its two adjoints: matrices or convolutions.

Time and batch are rows, units the last dimension. The adjoint for the weights takes all steps at
once: one large product instead of one for every step.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.checks import is_transformed

__all__ = [
    "Convolution", "Matrix", "PackedMatrix", "Product", "add_bias", "product_dtype",
    "refuse_what_kernels_cannot", "result_dtype", "sum_of_rows",
]  # fmt: skip


_LEAST_PACKED = 2**19


class Product(Protocol):
    def prepare(self, weight: Tensor, rows: int) -> Tensor:
        """The weight in the form that `forward` likes best."""

    def forward(self, x: Tensor, prepared: Tensor) -> Tensor:
        """(*rows, I) -> (*rows, O), contiguous"""

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """(*rows, O), (*rows, I) -> (*rows, I)"""

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """(T, *rows, O), (T, *rows, I) -> like `weight`, summed over everything"""


class Matrix:
    """x -> W x, W (O, I)."""

    def prepare(self, weight: Tensor, rows: int) -> Tensor:
        return weight

    def forward(self, x: Tensor, prepared: Tensor) -> Tensor:
        return F.linear(x, prepared)

    def by_input(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad @ weight

    def by_weight(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad.flatten(0, -2).T @ x.flatten(0, -2)


class PackedMatrix(Matrix):
    """`Matrix` by oneDNN, whose weights are packed once for all steps instead of at each of them.

    For few rows packing is much of the work.
    """

    @staticmethod
    def is_possible(weight: Tensor) -> bool:
        """Small weights are not worth it; the operations are those torch's own compiler uses."""
        return (
            weight.numel() >= _LEAST_PACKED
            and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        )

    def prepare(self, weight: Tensor, rows: int) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        return packed

    def forward(self, x: Tensor, prepared: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, prepared, None, "none", [], "")
        return output


class Convolution:
    """A convolution that keeps height and width, W (O, I, k, k); x (*batch, height, width, I)."""

    def prepare(self, weight: Tensor, rows: int) -> Tensor:
        return weight

    def forward(self, x: Tensor, prepared: Tensor) -> Tensor:
        output = F.conv2d(_images(x), prepared, padding=prepared.shape[-1] // 2)
        return output.movedim(1, -1).contiguous().view(*x.shape[:-1], len(prepared))

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


def result_dtype(weight: Tensor) -> torch.dtype:
    """What states come back in: float32 under autocast, else that of the layer."""
    return torch.float32 if torch.is_autocast_enabled(weight.device.type) else weight.dtype


def refuse_what_kernels_cannot(*gradients: Tensor) -> None:
    """To be called by a backward pass: no second one to come, and one gradient at a time."""
    if is_transformed(*gradients):
        raise RuntimeError(
            "kernels take one gradient at a time; build the layer with backend='reference' for "
            "batched ones (is_grads_batched=True, vectorize=True, vmap) and those with tangents"
        )
    if torch.is_grad_enabled():
        raise RuntimeError(
            "kernels give first derivatives only; build the layer with backend='reference' to "
            "differentiate twice (create_graph=True)"
        )


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
    """(*rows, C) + (C,), on a GPU with the faster gradient of the bias."""
    if not x.is_cuda or torch._C._are_functorch_transforms_active():
        return x + bias.to(x.dtype)
    result: Tensor = _AddBias.apply(x, bias.to(x.dtype))
    return result
