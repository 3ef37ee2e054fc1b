"""Sigmoid and tanh of moments in one pass: two tensors read, two written, nothing else kept."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.functional.kernels.logistic import logistic

__all__ = ["squash"]

_BLOCK = 256


@triton.jit
def _squash(mean, var, new_mean, new_var, count, is_tanh: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = at < count
    m, v = tl.load(mean + at, mask, 0.0), tl.load(var + at, mask, 0.0)
    if is_tanh:
        centred, w = logistic(2 * m, 4 * v)
        tl.store(new_mean + at, 2 * centred, mask)
        tl.store(new_var + at, 4 * w, mask)
    else:
        value, w = logistic(m, v, centred=False)
        tl.store(new_mean + at, value, mask)
        tl.store(new_var + at, w, mask)


def squash(mean: Tensor, var: Tensor, is_tanh: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of sigmoid(X) or tanh(X), float32, without gradients."""
    mean, var = mean.resolve_neg().contiguous(), var.resolve_neg().contiguous()
    results = torch.empty_like(mean), torch.empty_like(var)
    count = mean.numel()
    if count:
        with torch.cuda.device_of(mean):
            _squash[(triton.cdiv(count, _BLOCK),)](mean, var, *results, count, is_tanh, _BLOCK)
    return results
