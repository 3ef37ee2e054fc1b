"""The product with W at every step of a kernel, with weights in the form a library likes best."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from spgru.functional.products import DifferentiableProduct, Matrix, SameConvolution

__all__ = ["MatrixStep", "PackedMatrixStep", "SameConvolutionStep", "StepProduct", "step_product"]

# Numbers of a weight from which packing it once for all steps is worth it: 3 H^2 at H = 418. Packed
# by hand a small weight loses, since oneDNN's call costs more than that of a plain product.
_LEAST_PACKED = 2**19


class StepProduct(DifferentiableProduct, Protocol):
    def pack(self, weight: Tensor, rows: int) -> Tensor:
        """The weight as `forward` takes it, for so many rows."""


class MatrixStep(Matrix):
    """`Matrix`, whose weights are turned once for all steps."""

    def pack(self, weight: Tensor, rows: int) -> Tensor:
        return weight.T

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        # What F.linear does in the end, a few microseconds sooner.
        return torch.mm(x, weight) if x.ndim == 2 else torch.matmul(x, weight)


class SameConvolutionStep(SameConvolution):
    """`SameConvolution`, whose weights need no packing."""

    def pack(self, weight: Tensor, rows: int) -> Tensor:
        return weight


class PackedMatrixStep(Matrix):
    """`Matrix` by oneDNN, whose weights are packed once for all steps instead of at each of them.

    For few rows packing is much of the work.
    """

    @staticmethod
    def is_possible(weight: Tensor) -> bool:
        """Small weights are not worth it; the operations are those torch's own compiler uses."""
        return (
            weight.numel() >= _LEAST_PACKED
            and not weight.is_cuda
            and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        )

    def pack(self, weight: Tensor, rows: int) -> Tensor:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)
        return packed

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return output


def step_product(product: Any, weight: Tensor, pack: bool) -> StepProduct | None:
    """The product of an `Affine` for the steps of a kernel, None where kernels cannot do it.

    Args:
        pack: whether weights may be packed for oneDNN
    """
    if type(product) is SameConvolution:
        return SameConvolutionStep()
    if type(product) is not Matrix:
        return None
    return PackedMatrixStep() if pack and PackedMatrixStep.is_possible(weight) else MatrixStep()
