"""Calls of a Triton kernel by the names of its arguments, with little work for the host."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime import driver

__all__ = ["Launcher"]

Tensors = dict[str, Tensor | None]


class Launcher:
    """A kernel that keeps what was compiled, since binding some 30 arguments takes Triton longer
    than a small step takes the GPU. Its arguments are tensors first, then numbers and constants."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._names = kernel, kernel.arg_names
        self._compiled: dict[Any, CompiledKernel] = {}

    def __call__(
        self, programs: int, tensors: Tensors, numbers: dict[str, Any], **options: Any
    ) -> None:
        """Launch on the device of the first tensor, which need not be the current one."""
        count = len(tensors)
        dtypes: list[Any] = []
        # Addresses, because of a tensor Triton asks the driver where it is, which takes longer.
        addresses: list[int | None] = []
        device = None
        for name in self._names[:count]:
            tensor = tensors[name]
            if tensor is None:
                dtypes.append(None)
                addresses.append(None)
                continue
            if not tensor.is_contiguous():
                _refuse(tensors)
            device = tensor.device if device is None else device
            address = tensor.data_ptr()
            # Triton compiles for dtype and alignment, and for some numbers.
            dtypes.append(tensor.dtype if address % 16 == 0 else (tensor.dtype, "unaligned"))
            addresses.append(address)
        if device is None:
            raise ValueError("a kernel needs a tensor to know its device")
        values = [numbers[name] for name in self._names[count:]]
        key = device, *dtypes, *values, *options.values()
        compiled = self._compiled.get(key)
        with _on(device):
            if compiled is not None:
                _launch(compiled, programs, device, (*addresses, *values))
                return
            in_order = [tensors[name] for name in self._names[:count]]
            compiled = self._kernel[(programs,)](*in_order, *values, **options)
        if isinstance(compiled, CompiledKernel):  # not in the interpreter
            self._compiled[key] = compiled


def _launch(
    compiled: CompiledKernel, programs: int, device: torch.device, values: tuple[Any, ...]
) -> None:
    """`compiled[(programs, 1, 1)](*values)` without gathering what hooks of a profiler would ask.

    In the order of `CompiledKernel.run`: grid, stream, the kernel, then metadata and two hooks.
    """
    stream = driver.active.get_current_stream(device.index)
    handle, metadata = compiled.function, compiled.packed_metadata
    compiled.run(programs, 1, 1, stream, handle, metadata, None, None, None, *values)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Where Triton launches on this device: it takes the current one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _refuse(tensors: Tensors) -> NoReturn:
    names = [n for n, v in tensors.items() if v is not None and not v.is_contiguous()]
    raise ValueError(f"kernels read contiguous tensors only, not {', '.join(names)}")
