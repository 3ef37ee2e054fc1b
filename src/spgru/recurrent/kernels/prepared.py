"""Weights in the forms that kernels read, made once and kept with the map they belong to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.kernels.rows import as_rows
from spgru.recurrent.kernels.products import StepProduct

__all__ = ["Prepared", "prepare", "product_dtype", "result_dtype"]


class Prepared(NamedTuple):
    """What a kernel reads of H -> gates H."""

    weight: Tensor
    """(gates H, H): W.mean"""
    weight_moments: Tensor
    """(gates H, 2 H): [W.var, W.var + g W.mean^2], one product for both parts of the variance"""
    packed_weight: Tensor
    packed_moments: Tensor
    """both in the form that the product's `forward` takes"""
    bias: Tensor | None
    """(gates H,), float32"""
    bias_var: Tensor | None
    gain: Tensor | None
    """(gates H,), float32: g, for kernels that do not read the second moment but compute it"""
    coherence: Tensor | None
    """(H,), float32"""


class _Moments(torch.autograd.Function):
    """[W.var, W.var + W^2] of W (O, I), in one node: of a small layer each node costs more than
    what it computes."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, var: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        both = weight.new_empty(len(weight), 2, weight.shape[1])
        torch.addcmul(var, weight, weight, out=both[:, 1])
        both[:, 0] = var
        return both.flatten(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        by_var, by_second = grad.view(len(weight), 2, -1).unbind(1)
        return 2 * weight * by_second, by_var + by_second


def prepare(hidden: Affine, product: StepProduct, dtype: torch.dtype, rows: int) -> Prepared:
    """The map for products in this dtype of so many rows."""

    def make() -> Prepared:
        wide = hidden.to(torch.promote_types(hidden.weight.dtype, dtype))
        if wide.weight_var is None:
            raise ValueError("weights known exactly have no moments to prepare")
        # Filters of a convolution keep their memory format.
        weight = wide.weight.to(dtype)
        weight = as_rows(weight) if weight.ndim == 2 else weight
        is_plain = hidden.gain is None and weight.dtype == wide.weight_var.dtype
        if is_plain and weight.ndim == 2:
            weight_moments: Tensor = _Moments.apply(weight, wide.weight_var)
        else:
            second = wide.second_moment().to(dtype)
            weight_moments = torch.cat((wide.weight_var.to(dtype), second), 1)
        bias, bias_var = (
            None if part is None else as_rows(part.float())
            for part in (hidden.bias, hidden.bias_var)
        )
        packed_weight, packed_moments = (
            product.pack(part, rows) for part in (weight, weight_moments)
        )
        gain = None if hidden.gain is None else as_rows(hidden.gain.detach().float())
        coherence = None if hidden.coherence is None else as_rows(hidden.coherence.float())
        return Prepared(
            weight, weight_moments, packed_weight, packed_moments, bias, bias_var, gain, coherence
        )  # fmt: skip

    result: Prepared = hidden.keep((Prepared, type(product), dtype), make)
    return result


def product_dtype(weight: Tensor) -> torch.dtype:
    """What products are computed in: the weight's own dtype, or that of autocast."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def result_dtype(weight: Tensor) -> torch.dtype:
    """What states come back in: float32 under autocast, else the dtype of the layer."""
    return torch.float32 if torch.is_autocast_enabled(weight.device.type) else weight.dtype
