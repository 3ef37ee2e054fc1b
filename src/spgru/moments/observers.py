"""Who sees the `Moments` that are computed: for `spgru.response`, which follows every source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from spgru.moments.pair import Moments

__all__ = ["Observer", "observed_as_one", "observing", "tell", "unobserved"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Observer(Protocol):
    """Sees what is computed; see `spgru.response`."""

    def made(self, moments: Moments) -> None:
        """Called with all `Moments` that are made, which it may change."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        """What the function gives; of all `Moments` it makes an observer sees those it returns."""


_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_counting = threading.Lock()
open_blocks = 0
"""Blocks of `observing` that are open in any thread: all that is read while there is none."""


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Block in which what this thread computes is seen by the observer."""
    global open_blocks
    token = _observer.set(observer)
    with _counting:
        open_blocks += 1
    try:
        yield
    finally:
        with _counting:
            open_blocks -= 1
        _observer.reset(token)


@contextmanager
def unobserved() -> Iterator[None]:
    """Block that no observer sees."""
    token = _observer.set(None)
    try:
        yield
    finally:
        _observer.reset(token)


def tell(moments: Moments) -> None:
    """Show what was made to the observer of this thread, if it has one."""
    observer = _observer.get()
    if observer is not None:
        observer.made(moments)


def observed_as_one(function: FunctionT) -> FunctionT:
    """Decorator: for an observer the function is one operation."""

    @wraps(function)
    def one(*args: Any, **options: Any) -> Any:
        observer = _observer.get() if open_blocks else None
        if observer is None:
            return function(*args, **options)
        return observer.run(function, args, options)

    return one  # type: ignore[return-value]
