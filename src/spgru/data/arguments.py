"""Validation of arguments. Each error names the argument, what was found, the remedy."""

from __future__ import annotations

import math
import numbers

import torch

__all__ = ["check_choice", "check_count", "check_dtype", "check_number"]


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        options = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} is {value!r}; pass {options}")


def check_count(name: str, value: object, minimum: int) -> int:
    """A whole number of at least `minimum`, as a Python int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}; pass a whole number of at least {minimum}")
    if value < minimum:
        raise ValueError(f"{name} is {value}; pass a whole number of at least {minimum}")
    return int(value)


def check_number(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, unit: str = ""
) -> float:
    """A finite number in [low, high], as a Python float; `unit` says what it measures."""
    if low == -math.inf:
        remedy = f"pass a finite number{unit}"
    elif high == math.inf:
        remedy = f"pass a number{unit} of at least {low:g}"
    else:
        remedy = f"pass a number{unit} from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; {remedy}")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{name} is {value}; {remedy}")
    return number


def check_dtype(name: str, value: object) -> torch.dtype:
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} is {value!r}; pass a torch dtype such as torch.float32")
    if not value.is_floating_point:
        raise ValueError(
            f"{name} is {value}, which cannot hold values between 0 and 1; "
            "pass a floating dtype such as torch.float32"
        )
    return value
