"""Averages over windows: `avg_pool1d`, `avg_pool2d` and adaptive ones. Exact under independence."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.moments import Moments

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d"]

Size = int | tuple[int, ...]


def _average(
    function: Any, dims: int, x: Any, kernel_size: Size, stride: Size | None, padding: Size,
    ceil_mode: bool, count_include_pad: bool,
) -> Any:  # fmt: skip
    options = kernel_size, stride, padding, ceil_mode, count_include_pad
    if isinstance(x, Tensor):
        return function(x, *options)
    if ceil_mode or (not count_include_pad and _sizes(padding, dims) != (0,) * dims):
        raise TypeError(
            "average pooling of Moments over windows of different sizes has no rule; leave out "
            "ceil_mode and count_include_pad=False"
        )
    count = math.prod(_sizes(kernel_size, dims))
    return Moments(function(x.mean, *options), function(x.var, *options) / count)


def _sizes(size: Size, dims: int) -> tuple[int, ...]:
    return (size,) * dims if isinstance(size, int) else tuple(size) * (dims // len(size))


def avg_pool1d(
    x: Any, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """Moments of the mean of every window of independent entries. (B, C, length)"""
    stride = kernel_size if stride is None or stride == () else stride
    options = kernel_size, stride, padding, ceil_mode, count_include_pad
    return _average(torch.avg_pool1d, 1, x, *options)


def avg_pool2d(
    x: Any, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    """Moments of the mean of every window of independent entries. (B, C, height, width)"""
    if divisor_override is not None:
        raise TypeError("divisor_override has no rule for Moments; multiply the result instead")
    options = kernel_size, stride, padding, ceil_mode, count_include_pad
    return _average(F.avg_pool2d, 2, x, *options)


def _adaptive(dims: int, x: Any, output_size: Any) -> Any:
    have = tuple(x.shape[-dims:])
    pairs = zip(have, _sizes(output_size, dims), strict=True)
    wanted = tuple(size if chosen is None else chosen for size, chosen in pairs)
    if any(h % w for h, w in zip(have, wanted, strict=True)):
        raise TypeError(
            f"adaptive pooling of Moments from {have} to {wanted} has windows of different sizes "
            "and no rule; choose a size that divides"
        )
    kernel = tuple(h // w for h, w in zip(have, wanted, strict=True))
    return avg_pool1d(x, kernel) if dims == 1 else avg_pool2d(x, kernel)


def adaptive_avg_pool1d(x: Any, output_size: Any) -> Any:
    """Moments of means over windows, of which there are so many. (B, C, length)"""
    if isinstance(x, Tensor):
        return F.adaptive_avg_pool1d(x, output_size)
    return _adaptive(1, x, output_size)


def adaptive_avg_pool2d(x: Any, output_size: Any) -> Any:
    """Moments of means over windows, of which there are so many. (B, C, height, width)"""
    if isinstance(x, Tensor):
        return F.adaptive_avg_pool2d(x, output_size)
    return _adaptive(2, x, output_size)
