"""Where 16 bits are not enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from spgru.moments import Moments

Function = TypeVar("Function", bound=Callable[..., Any])


def at_least_float32(function: Function) -> Function:
    """Compute 16-bit moments in float32 and round the result: 8 bits cannot hold differences."""

    @wraps(function)
    def wrapped(x: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(x, Moments) and x.dtype in (torch.bfloat16, torch.float16):
            return function(x.to(torch.float32), *arguments, **options).to(x.dtype)
        return function(x, *arguments, **options)

    return cast(Function, wrapped)
