"""Who sees the `Moments` that are computed: for `spgru.response`, which follows every source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from spgru.moments.pair import Moments

__all__ = ["Watcher", "tell", "unwatched", "watched_as_one", "watching"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Watcher(Protocol):
    """Sees what is computed; see `spgru.response`."""

    def made(self, moments: Moments) -> None:
        """Called with all `Moments` that are made, which it may change."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        """What the function gives; of all `Moments` it makes a watcher sees those it returns."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
open_blocks = 0
"""Blocks of `watching` that are open in any thread: all that is read while there is none."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Block in which what this thread computes is seen by the watcher."""
    global open_blocks
    token = _watcher.set(watcher)
    open_blocks += 1
    try:
        yield
    finally:
        open_blocks -= 1
        _watcher.reset(token)


@contextmanager
def unwatched() -> Iterator[None]:
    """Block that no watcher sees."""
    token = _watcher.set(None)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(moments: Moments) -> None:
    """Show what was made to the watcher of this thread, if it has one."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.made(moments)


def watched_as_one(function: FunctionT) -> FunctionT:
    """Decorator: for a watcher the function is one operation."""

    @wraps(function)
    def one(*args: Any, **options: Any) -> Any:
        watcher = _watcher.get() if open_blocks else None
        if watcher is None:
            return function(*args, **options)
        return watcher.run(function, args, options)

    return one  # type: ignore[return-value]
