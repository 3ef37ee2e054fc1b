"""Calls of a Triton kernel by the names of its arguments, with little work for the host."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from triton.compiler import CompiledKernel

__all__ = ["Launcher"]


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
        key: list[Any] = [*options.values()]
        first: Tensor | None = None
        # One pass over some 30 arguments at every launch: what Triton compiles each of them for is
        # dtype and alignment, or special whole numbers.
        for value, is_constant in zip(values, self._is_constant, strict=True):
            if is_constant or value is None:
                key.append(value)
            elif isinstance(value, Tensor):
                if not value.is_contiguous():
                    _refuse(arguments)
                first = value if first is None else first
                key.append(value.dtype)
                key.append(value.data_ptr() % 16 == 0)
            elif not isinstance(value, int):
                key.append(value)
            else:
                key.append((value == 1, value % 16 == 0, -(2**31) <= value < 2**31))
        if first is None:
            raise ValueError("a kernel needs a tensor to know its device")
        key.append(first.device)
        compiled = self._compiled.get(tuple(key))
        with torch.cuda.device_of(first):
            if compiled is not None:
                compiled[(programs, 1, 1)](*values)
                return
            compiled = self._kernel[(programs,)](*values, **options)
        if isinstance(compiled, CompiledKernel):  # not in the interpreter
            self._compiled[tuple(key)] = compiled


def _refuse(arguments: dict[str, Any]) -> NoReturn:
    names = [n for n, v in arguments.items() if isinstance(v, Tensor) and not v.is_contiguous()]
    raise ValueError(f"kernels read contiguous tensors only, not {', '.join(names)}")
