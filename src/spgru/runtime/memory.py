"""The most memory a computation holds at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["peak_bytes"]


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors alive at once that `work` itself made.

    On a GPU by the allocator's own count. On a CPU, whose allocator keeps none, by adding up the
    results of all operations; temporary memory inside an operation is not counted.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before: int = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    watch = _Watch()
    with watch:
        work()
    return watch.peak


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up storages when they first appear and takes them off when they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Views and results in place share the storage of an argument and are not new.
        old = {_address(x) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in old:
                self._add(tensor)
        return result

    def _add(self, tensor: Tensor) -> None:
        address = _address(tensor)
        if address in self._known:
            return
        # oneDNN's packed weights do not expose their storage; their size is that of their values.
        owner: Any = tensor if tensor.is_mkldnn else tensor.untyped_storage()
        size = tensor.numel() * tensor.element_size() if tensor.is_mkldnn else owner.nbytes()
        self._known[address] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(owner, self._remove, address)

    def _remove(self, address: int) -> None:
        self.now -= self._known.pop(address)


def _address(tensor: Tensor) -> int:
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage()._cdata
