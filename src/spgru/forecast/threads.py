"""Threads for small networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["few_threads"]

_LARGE = 128
"""Hidden units from which several threads help: below, they wait for one another more than they
work, and on a machine that does other work, too, a training takes ten times as long."""


@contextmanager
def few_threads(hidden_size: int) -> Iterator[None]:
    """Within this block torch uses one thread on the CPU, unless the network is large."""
    before = torch.get_num_threads()
    if hidden_size < _LARGE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
