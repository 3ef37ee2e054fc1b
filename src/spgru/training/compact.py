"""Spreads of matrices in 8 bits, for exported files.

A spread is the log of a ratio of variances, and a variance need not have many digits: over a range
of 11 the largest error is 2 % of the variance of a weight, and what is summed over many weights
comes out far closer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["compact", "is_spread_of_matrix", "restored"]

_CODES = 255


def is_spread_of_matrix(name: str, tensor: Tensor) -> bool:
    """Whether it is stored in 8 bits; spreads of certain weights, minus infinity, cannot be."""
    is_spread = name.rpartition(".")[2].startswith("spread_")
    return is_spread and tensor.ndim > 1 and bool(tensor.isfinite().all())


def compact(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Codes from 0 to 255 of these tensors, and as JSON what `restored` needs to know of them."""
    codes, ranges = {}, {}
    for name, tensor in tensors.items():
        low, high = tensor.min().item(), tensor.max().item()
        step = (high - low) / _CODES or 1.0
        codes[name] = ((tensor - low) / step).round().to(torch.uint8)
        ranges[name] = low, step
    return codes, json.dumps(ranges)


def restored(codes: Mapping[str, Tensor], ranges: str) -> dict[str, Tensor]:
    """The tensors of `compact`, in float32."""
    known = json.loads(ranges)
    return {name: known[name][0] + known[name][1] * codes[name].float() for name in known}
