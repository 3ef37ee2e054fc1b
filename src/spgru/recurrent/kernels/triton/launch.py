"""Calls of a Triton kernel by the names of its arguments, with little work for the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

__all__ = ["Launcher"]


def _kind(value: Any) -> Any:
    """What Triton compiles an argument for: dtype and alignment, or special whole numbers."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, -(2**31) <= value < 2**31
    return value


class Launcher:
    """A kernel that keeps what was compiled, since binding some 30 arguments takes Triton longer
    than a small step takes the GPU."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._names = kernel, kernel.arg_names
        parameters = getattr(kernel, "params", None)  # None in Triton's interpreter
        self._is_constant = [False] * len(self._names)
        if parameters is not None:
            self._is_constant = [parameter.is_constexpr for parameter in parameters]
        self._compiled: dict[Any, CompiledKernel] = {}

    def __call__(self, programs: int, arguments: dict[str, Any], **options: Any) -> None:
        """Launch on the device of the first tensor, which need not be the current one."""
        values = [arguments[name] for name in self._names]
        if any(isinstance(value, Tensor) and not value.is_contiguous() for value in values):
            names = [
                n for n, v in arguments.items() if isinstance(v, Tensor) and not v.is_contiguous()
            ]
            raise ValueError(f"kernels read contiguous tensors only, not {', '.join(names)}")
        first = next(value for value in values if isinstance(value, Tensor))
        key = (
            first.device,
            *(
                value if is_constant else _kind(value)
                for value, is_constant in zip(values, self._is_constant, strict=True)
            ),
            *options.values(),
        )
        compiled = self._compiled.get(key)
        with torch.cuda.device_of(first):
            if compiled is not None:
                compiled[(programs, 1, 1)](*values)
                return
            compiled = self._kernel[(programs,)](*values, **options)
        if isinstance(compiled, CompiledKernel):  # not in the interpreter
            self._compiled[key] = compiled
