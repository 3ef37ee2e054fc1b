"""Validation of what users pass in. Each error names the argument, what was found, the remedy."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from spgru.moments import Moments, is_autocast

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
    return tensor.device.type == "cpu" and _has_values(tensor)


def _has_values(tensor: Tensor) -> bool:
    return not _is_recorded() and _is_plain_tensor(tensor) and not _is_wrapped(tensor)


def _is_recorded() -> bool:
    """Whether operations are compiled or traced, to be run with other values, or run on no values.

    The last are those of torch's fake tensors, which have a shape but no values.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def _is_wrapped(tensor: Tensor) -> bool:
    """Whether a transform of `torch.func` (vmap, grad, ...) has wrapped this tensor."""
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
    """Whether the operations are observed by something that cannot look into our own kernels.

    That is a compiler or tracer, a transform of `torch.func`, forward-mode differentiation, or a
    subclass of Tensor (a fake tensor, for instance). They need torch's own operations.
    """
    parts = [p for value in values for p in (value if isinstance(value, Moments) else (value,))]
    return (
        _is_recorded()
        or is_differentiated_forward()
        or any(part is not None and not _is_plain_tensor(part) for part in parts)
    )


def is_compiled(module: nn.Module) -> bool:
    """Whether it is what `torch.compile` makes of a module, which is its `_orig_mod`."""
    return type(module).__name__ == "OptimizedModule"  # known without importing the compiler


def _is_plain_tensor(x: Tensor) -> bool:
    # `is_grads_batched` and `vectorize` of torch.autograd wrap tensors in an older way, which none
    # of the conditions above sees.
    is_batched = torch._C._functorch.is_legacy_batchedtensor(x)
    return type(x) in (Tensor, nn.Parameter) and not is_batched


def values_are_checked(tensor: Tensor) -> bool:
    """Whether the values of this tensor are to be checked; see `set_value_checks`."""
    if _mode == "always":
        return _has_values(tensor)
    return _mode == "auto" and is_readable(tensor)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {options}; got {value!r}")


def require(name: str, tensor: Tensor, condition: Tensor, must_be: str) -> None:
    """Raise ValueError unless the condition holds for every entry."""
    if values_are_checked(tensor) and not bool(condition.all()):
        found = tensor[~condition].flatten()[0].item()
        # With the digits of float32: 1.0001 is not "1".
        raise ValueError(f"{name} has the entry {found:.7g} but must be {must_be}")


def check_probabilities(name: str, tensor: Tensor) -> None:
    """Numbers from 0 to 1, or beyond by no more than rounding: resized frames overshoot by 1e-6."""
    if values_are_checked(tensor):
        inside = (tensor >= -1e-5) & (tensor <= 1 + 1e-5)
        require(name, tensor, inside, "between 0 and 1; divide uint8 frames by 255")


def check_like(name: str, tensor: Tensor, like: Tensor) -> None:
    """Device of the parameters `like`, and their dtype unless autocast chooses dtypes."""
    if tensor.dtype != like.dtype and not is_autocast(like):
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
    """No variance is negative and nothing is NaN; the rest was checked at construction."""
    if not isinstance(moments.mean, Tensor):
        raise TypeError(
            f"{name}.mean must be a Tensor, got {type(moments.mean).__name__}; "
            "call spgru.pad_packed_moments first if it is packed"
        )
    var = moments.var
    if not values_are_checked(var):
        return
    # One reduction each where all is well: a sum is NaN if an entry is (or where infinities meet),
    # and so is a minimum, for which the comparison is false.
    if math.isnan(moments.mean.sum().item()):
        check_no_nan(f"{name}.mean", moments.mean)
    if var.numel() == 0 or var.min().item() >= 0:
        return
    if bool(var.isnan().any()):
        raise ValueError(f"{name}.var has NaN entries; look upstream for 0/0 or inf - inf")
    raise ValueError(
        f"{name}.var has negative entries (smallest {var.min().item():.3g}); "
        "pass a variance, not a log-variance"
    )


def check_no_nan(name: str, tensor: Tensor) -> None:
    if values_are_checked(tensor) and bool(tensor.isnan().any()):
        raise ValueError(f"{name} has NaN entries; look upstream for 0/0 or inf - inf")


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


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function, check_shapes: Callable[..., None] | None = None) -> Function:
    """The public form of a function of `spgru.functional`: it checks its arguments first.

    Layers check what enters them once, and call the functions inside without checks.

    Args:
        function: its first parameter is a Tensor or Moments
        check_shapes: called with the same arguments
    """
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, args, strict=False)) | kwargs
        first = named.get(names[0])
        if not isinstance(first, (Tensor, Moments)):
            raise TypeError(
                f"{names[0]} must be a Tensor or Moments, got {type(first).__name__}; "
                "convert numbers and arrays with torch.as_tensor"
            )
        for name, value in named.items():
            if isinstance(value, Moments):
                check_moments(name, value)
                check_no_nan(f"{name}.mean", value.mean)
        if check_shapes is not None:
            check_shapes(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(Function, public)


def check_broadcast(*values: Any, **named: Any) -> None:
    """The shapes of all tensors and moments broadcast to one another."""
    shapes = [
        tuple(value.shape)
        for value in (*values, *named.values())
        if isinstance(value, (Tensor, Moments))
    ]
    if len(set(shapes)) == 1:
        return
    try:
        torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        listed = ", ".join(map(str, shapes))
        raise ValueError(f"the shapes {listed} do not broadcast; make them alike") from None
