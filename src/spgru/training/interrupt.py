"""Stopping between two steps: on a signal, or when the time is up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["OUT_OF_TIME", "Stop", "watching"]

OUT_OF_TIME = 1
"""Less than the number of SIGINT and SIGTERM: processes that disagree take the largest reason."""


class Stop:
    """Whether to stop, and why: `reason` is 0, a signal's number, or `OUT_OF_TIME`."""

    def __init__(self, max_seconds: float | None) -> None:
        self._deadline = None if max_seconds is None else time.monotonic() + max_seconds
        self._signal = 0

    @property
    def reason(self) -> int:
        if self._signal:
            return self._signal
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return OUT_OF_TIME if late else 0

    def request(self, number: int) -> None:
        self._signal = number


@contextmanager
def watching(max_seconds: float | None, patient: bool) -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into a request to stop after the step in progress.

    Args:
        patient: ignore further signals; otherwise a second one acts as usual. torchrun repeats
            the signal that its processes have already had from the terminal.
    """
    stop = Stop(max_seconds)
    before: dict[int, Any] = {}

    def on_signal(number: int, _: FrameType | None) -> None:
        stop.request(number)
        if not patient:
            signal.signal(number, before[number])

    # Python allows signal handlers in the main thread only; in another the old ones stay.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)
