"""A map whose results are tapped, as one node of autograd that takes many gradients at once.

Torch's own operations give the same; but a loop over time has many of them, and each of their nodes
costs as much as its product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch

from spgru.functional.linear import Affine

__all__ = ["rows_of_batch", "tapped_product"]


def tapped_product(affine: Affine, x_mean: Tensor, x_var: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of W x + b for a matrix W, differentiable by x alone.

    Args:
        x_mean: (*batch, I)
        x_var: None for a certain x
    """
    if x_var is None:
        x_var = x_mean.new_zeros(()).expand(x_mean.shape)
    shape = x_mean.shape[:-1]
    rows = [part.reshape(-1, x_mean.shape[-1]) for part in (x_mean, x_var)]
    mean, var = _Product.apply(affine, *rows)  # type: ignore[no-untyped-call]
    return mean.view(*shape, -1), var.view(*shape, -1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, affine: Affine, x_mean: Tensor, x_var: Tensor) -> tuple[Tensor, Tensor]:
        assert affine.weight_var is not None
        ctx.affine, ctx.x_mean = affine, x_mean
        var = F.linear(x_mean**2, affine.weight_var, affine.bias_var)
        var += F.linear(x_var, affine.second_moment())
        return F.linear(x_mean, affine.weight, affine.bias), var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        affine = ctx.affine

        def adjoint(by_mean: Tensor, by_var: Tensor) -> list[Tensor]:
            by_square = by_var @ affine.weight_var
            by_x = torch.addcmul(
                by_mean @ affine.weight, ctx.x_mean.unsqueeze(1), by_square, value=2
            )
            return [by_x, by_var @ affine.second_moment()]

        return None, *rows_of_batch(adjoint, grads)


def rows_of_batch(function: Callable[..., list[Tensor]], grads: tuple[Tensor, ...]) -> list[Tensor]:
    """`function` of (rows, K, ...) gradients, K a batch of `torch.func.vmap` or, without one, 1.

    By hand, since the vmap rule of a `torch.autograd.Function` takes longer than a small product.
    """
    levels = [_functorch.maybe_get_level(grad) for grad in grads]
    level = max(levels)
    if level == -1:
        return [part.squeeze(1) for part in function(*(grad.unsqueeze(1) for grad in grads))]
    parts = []
    for grad, own in zip(grads, levels, strict=True):
        if own == -1:
            parts.append(grad.unsqueeze(1))
        else:
            parts.append(_functorch.get_unwrapped(grad).movedim(_functorch.maybe_get_bdim(grad), 1))
    batch = max(part.shape[1] for part in parts)
    with torch._C._DisableFuncTorch():
        found = function(*(part.expand(-1, batch, *part.shape[2:]) for part in parts))
    return [_functorch._add_batch_dim(part, 1, level) for part in found]
