"""Rules that treat mean and variance alike: reshaping, joining, selecting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.moments.pair import Moments, Value, promote
from spgru.moments.table import functions_named, rule_for

__all__ = ["cat", "stack"]

_RESHAPING = (
    "atleast_1d atleast_2d atleast_3d broadcast_to clone contiguous detach diagonal expand flatten "
    "flip fliplr flipud gather index_select masked_select moveaxis movedim narrow permute "
    "pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape roll rot90 select "
    "squeeze swapaxes swapdims t take_along_dim tile transpose tril triu unflatten unfold "
    "unsqueeze view"
)
_DIVIDING = "chunk dsplit hsplit split tensor_split unbind vsplit"


def _alike(function: Any, x: Moments, *args: Any, **kwargs: Any) -> Moments:
    return x._each(function, *args, **kwargs)


def _alike_parts(function: Any, x: Moments, *args: Any, **kwargs: Any) -> tuple[Moments, ...]:
    return x._each_parts(function, *args, **kwargs)


for _function in functions_named(*_RESHAPING.split()):
    rule_for(_function)(partial(_alike, _function))
for _function in functions_named(*_DIVIDING.split()):
    rule_for(_function)(partial(_alike_parts, _function))


@rule_for(torch.numel)
def _numel(x: Moments) -> int:
    return x.numel()


@rule_for(torch.is_floating_point)
def _is_floating_point(x: Moments) -> bool:
    return x.dtype.is_floating_point


@rule_for(torch.stack)
def stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    """`torch.stack` for tensors or moments."""
    return _join(torch.stack, tensors, dim)


@rule_for(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    """`torch.cat` for tensors or moments."""
    return _join(torch.cat, tensors, dim)


def _join(function: Any, values: Sequence[Value], dim: int) -> Value:
    alike: tuple[Value, ...] = promote(*values)
    if isinstance(alike[0], Tensor):
        joined: Value = function(alike, dim)
        return joined
    return Moments(
        function([value.mean for value in alike], dim),
        function([value.var for value in alike], dim),
    )


@rule_for(torch.where)
def _where(condition: Tensor, input: Any, other: Any) -> Moments:
    """Numbers and tensors beside moments are certain."""
    if isinstance(condition, Moments):
        raise TypeError("condition must be a Tensor, got Moments; compare x.mean")
    values = (input, other)
    mean: Any = torch.where(condition, *(v.mean if isinstance(v, Moments) else v for v in values))
    var: Any = torch.where(condition, *(v.var if isinstance(v, Moments) else 0.0 for v in values))
    return Moments(mean, var.to(mean.dtype).expand_as(mean))


@rule_for(Tensor.where)
def _where_method(x: Any, condition: Tensor, other: Any) -> Moments:
    return _where(condition, x, other)


@rule_for(F.pad)
def _pad(
    x: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Moments:
    """What is added is certain, or a copy of an entry where `mode` says so."""
    var = F.pad(x.var, pad, mode, 0.0 if mode == "constant" else None)
    return Moments(F.pad(x.mean, pad, mode, value), var)
