"""Validation of what users pass in. Each error names the argument, what was found, the remedy."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spgru.moments import Moments

__all__ = ["set_value_checks"]

Mode = Literal["auto", "always", "never"]
_mode: Mode = "auto"


def set_value_checks(mode: Mode) -> None:
    """Choose when the values of inputs are checked (no NaN, no negative variance).

    `"auto"` (the default) checks on the CPU only: elsewhere reading a value makes the host wait for
    the device. `"always"` checks everywhere, `"never"` nowhere. Shapes, dtypes and devices cost
    nothing to check and always are.
    """
    global _mode
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}; got {mode!r}")
    _mode = mode


def is_readable(tensor: Tensor) -> bool:
    """Whether Python may branch on values: eagerly on the CPU, not while compiling or in vmap."""
    return tensor.device.type == "cpu" and not _is_recorded() and not _is_wrapped(tensor)


def _is_recorded() -> bool:
    """Whether operations are written down to be run again with other values."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    )


def _is_wrapped(tensor: Tensor) -> bool:
    """Inside vmap and the like, where a tensor stands for many."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def is_differentiated_forward() -> bool:
    """Whether `torch.func` transforms or forward-mode derivatives are active."""
    return (
        torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    )


def is_transformed(*values: Any) -> bool:
    """Whether something looks on that does not see through our kernels."""
    parts = [p for value in values for p in (value if isinstance(value, Moments) else (value,))]
    return (
        _is_recorded()
        or is_differentiated_forward()
        or any(part is not None and _is_no_plain_tensor(part) for part in parts)
    )


def _is_no_plain_tensor(x: Tensor) -> bool:
    # Those of is_grads_batched and vectorize are of an older make, with no mode that tells.
    return type(x) not in (Tensor, nn.Parameter) or torch._C._functorch.is_legacy_batchedtensor(x)


def values_are_checked(tensor: Tensor) -> bool:
    if _mode == "always":
        return not _is_recorded() and not _is_wrapped(tensor)
    return _mode == "auto" and is_readable(tensor)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {options}; got {value!r}")


def require(name: str, tensor: Tensor, condition: Tensor, must_be: str) -> None:
    """Raise ValueError unless the condition holds for every entry."""
    if values_are_checked(tensor) and not bool(condition.all()):
        found = tensor[~condition].flatten()[0].item()
        raise ValueError(f"{name} has the entry {found:.3g} but must be {must_be}")


def check_like(name: str, tensor: Tensor, like: Tensor) -> None:
    """Device of the parameters `like`, and their dtype unless autocast chooses dtypes."""
    if tensor.dtype != like.dtype and not torch.is_autocast_enabled(like.device.type):
        raise ValueError(
            f"{name} has dtype {tensor.dtype} but the layer's parameters have {like.dtype}; "
            f"convert one of them, for instance {name}.to({like.dtype})"
        )
    if tensor.device != like.device:
        raise ValueError(
            f"{name} is on {tensor.device} but the layer's parameters are on {like.device}; "
            f"move one of them, for instance {name}.to({str(like.device)!r})"
        )


def check_moments(name: str, moments: Moments) -> None:
    """Mean and variance fit together, and the variance is one."""
    mean, var = moments
    for field, tensor in (("mean", mean), ("var", var)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}.{field} must be a Tensor, got {type(tensor).__name__}; "
                "wrap numbers with torch.as_tensor"
            )
    if mean.shape != var.shape:
        raise ValueError(
            f"{name}.mean has shape {tuple(mean.shape)} but {name}.var {tuple(var.shape)}; "
            "expand one to the other's shape"
        )
    check_like(f"{name}.var", var, mean)
    if not values_are_checked(var):
        return
    # One reduction on the way of success: NaN fails the comparison as a negative value does.
    if bool((var >= 0).all()):
        return
    if bool(var.isnan().any()):
        raise ValueError(f"{name}.var has NaN entries; look upstream for 0/0 or inf - inf")
    raise ValueError(
        f"{name}.var has negative entries (smallest {var.min().item():.3g}); "
        "pass a variance, not a log-variance"
    )


def check_value(name: str, value: object, like: Tensor) -> None:
    """A Tensor or Moments that fits the parameters `like`."""
    if isinstance(value, Moments):
        check_moments(name, value)
        check_like(name, value.mean, like)
    elif isinstance(value, Tensor):
        check_like(name, value, like)
    else:
        raise TypeError(f"{name} must be a Tensor or Moments, got {type(value).__name__}")


def check_features(name: str, value: Tensor | Moments, size: int, argument: str) -> None:
    if value.shape[-1] != size:
        raise ValueError(
            f"{name} has {value.shape[-1]} features (last dimension) but {argument} is {size}; "
            f"pass (..., {size}) or build the layer with {argument}={value.shape[-1]}"
        )
