"""Checks of the two fields of `Moments`, and their text."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

__all__ = ["check_fields", "describe", "is_autocast", "refuse_packed"]


def check_fields(mean: Any, var: Any) -> None:
    """Raise unless the fields fit together; see `Moments`."""
    if isinstance(mean, PackedSequence) or isinstance(var, PackedSequence):
        if type(mean) is type(var):
            return
        raise ValueError(
            f"mean is a {type(mean).__name__} and var a {type(var).__name__}; pack both, "
            "use spgru.pack_padded_moments"
        )
    for name, value in (("mean", mean), ("var", var)):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a Tensor, got {type(value).__name__}; convert it, for instance "
                f"with torch.as_tensor or torch.full_like"
            )
        if not value.dtype.is_floating_point:
            raise TypeError(
                f"{name} has dtype {value.dtype} but must have a floating dtype; "
                f"convert it, for instance {name}.float()"
            )
    if mean.shape != var.shape:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)} but var {tuple(var.shape)}; "
            "expand one to the other's shape"
        )
    if mean.dtype != var.dtype and not is_autocast(mean):
        raise ValueError(
            f"mean has dtype {mean.dtype} but var has dtype {var.dtype}; "
            f"convert one of them, for instance var.to({mean.dtype})"
        )
    if mean.device != var.device:
        raise ValueError(
            f"mean is on {mean.device} but var is on {var.device}; "
            f"move one of them, for instance var.to({str(mean.device)!r})"
        )


def is_autocast(like: Tensor) -> bool:
    """Whether autocast chooses dtypes, operation by operation, on the device of `like`."""
    device = like.device.type
    # Asked first, since torch.compile of torch 2.11 cannot trace the other question.
    is_known = device in ("cpu", "cuda") or torch.amp.is_autocast_available(device)
    return is_known and torch.is_autocast_enabled(device)


def refuse_packed(name: str) -> NoReturn:
    raise TypeError(
        f"{name} is not defined for packed Moments; "
        "call spgru.pad_packed_moments first, which gives padded Moments and lengths"
    )


_FEW = 8
"""Up to so many entries are shown by `repr`."""


def describe(mean: Any, var: Any) -> str:
    if isinstance(mean, PackedSequence):
        return f"Moments(packed, {_layout(mean.data)})"
    if not isinstance(mean, Tensor):  # a pytree whose leaves were replaced
        return f"Moments(mean={mean!r}, var={var!r})"
    has_values = (
        type(mean) is type(var) is Tensor
        and mean.shape == var.shape
        and mean.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(mean)
    )
    if not has_values or mean.numel() > _FEW:
        return f"Moments({_layout(mean)})"
    return f"Moments({_values(mean.tolist(), var.tolist())}, {_layout(mean)})"


def _layout(tensor: Tensor) -> str:
    return f"shape={tuple(tensor.shape)}, dtype={tensor.dtype}, device={str(tensor.device)!r}"


def _values(mean: Any, var: Any) -> str:
    """Each entry as mean ± std, nested as the dimensions are."""
    if isinstance(mean, list):
        return f"[{', '.join(_values(m, v) for m, v in zip(mean, var, strict=True))}]"
    std = f"{math.sqrt(var):.2g}" if var >= 0 else f"sqrt({var:.2g})"
    return f"{mean:.4g} ± {std}"
