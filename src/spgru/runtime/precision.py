"""How a GPU multiplies float32 matrices and convolves, set for a while and put back.

torch has two sets of switches for it: `set_float32_matmul_precision` and `cudnn.allow_tf32`, and
since 2.9 an attribute `fp32_precision` of each operation, which inherits from that of its backend
and of `torch.backends`. The setters of the first write the second as well, but its getters raise
where the two disagree, as they do once a user has set the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["float32_products"]


def _operations() -> tuple[tuple[Any, Any], ...]:
    """Every operation that the old switches reach, and the backend it inherits from."""
    backends: Any = torch.backends
    return (
        (backends.cuda.matmul, backends.cudnn),
        (backends.cudnn.conv, backends.cudnn),
        (backends.cudnn.rnn, backends.cudnn),
        (backends.mkldnn.matmul, backends.mkldnn),
    )


def _old_matmul() -> str:
    """The old switch, or where torch refuses to tell it, the one that agrees with the new."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _old_cudnn() -> bool:
    """As `_old_matmul`."""
    cudnn: Any = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:
        return bool(cudnn.conv.fp32_precision == "tf32")


@contextmanager
def float32_products(
    tf32: bool, cudnn_benchmark: bool = False, cudnn_deterministic: bool | None = None
) -> Iterator[None]:
    """Let float32 products on a GPU run in TF32, or in full float32, until the block ends.

    Inside, both sets of switches agree, so that reading either works. Afterwards they are as the
    user left them, whichever set was used.

    Args:
        cudnn_benchmark: let cuDNN time its convolutions and choose the fastest
        cudnn_deterministic: only those whose result is the same in every call; None leaves that
            switch as it is
    """
    cudnn: Any = torch.backends.cudnn
    matmul, allow_tf32, benchmark = _old_matmul(), _old_cudnn(), cudnn.benchmark
    deterministic = cudnn.deterministic
    operations = _operations()
    before = [_own_value(operation, backend) for operation, backend in operations]
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32, cudnn.benchmark = tf32, cudnn_benchmark
    if cudnn_deterministic is not None:
        cudnn.deterministic = cudnn_deterministic
    for operation in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
        # Explicit, since allow_tf32 = False means "inherit", which may well be TF32.
        operation.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32, cudnn.benchmark = allow_tf32, benchmark
        cudnn.deterministic = deterministic
        for (operation, _), value in zip(operations, before, strict=True):
            operation.fp32_precision = value


def _own_value(operation: Any, backend: Any) -> str:
    """What to assign to `operation.fp32_precision` to get back to what it is now.

    "none" means "as the backend has it". A value that equals the backend's is taken for inherited,
    so that it keeps following the backend.
    """
    value: str = operation.fp32_precision
    return "none" if value == backend.fp32_precision else value
