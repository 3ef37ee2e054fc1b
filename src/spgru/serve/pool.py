"""At most so many computations at once, each with a time limit.

Computations run in processes, since only a process can be ended in the middle of one. Those that
were ended, or died, are replaced.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spgru.serve.errors import BusyError, RefusedError, TooSlowError

__all__ = ["FailedError", "Pool"]

_LOOKED_AFTER = 0.25
"""Seconds between two looks whether the asker is still there."""


class FailedError(RuntimeError):
    """A computation ended in an error that is ours."""


class Pool:
    """Worker processes of one kind of computation.

    Args:
        workers: computations at once
        waiting: requests that may wait besides
        patience: seconds that they wait
        seconds: limit of one computation
        target: what a process does with its end of a pipe, see `worker.answer_requests`
    """

    def __init__(
        self,
        workers: int,
        waiting: int,
        patience: float,
        seconds: float,
        target: Callable[[Any], None],
    ) -> None:
        self._waiting, self._patience, self._seconds = waiting, patience, seconds
        self._target = target
        self._count = workers
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._all: set[_Worker] = set()
        self._in_line = 0
        self._executor = ThreadPoolExecutor(workers, "spgru-worker")

    async def start(self) -> None:
        for _ in range(self._count):
            self._add()

    def _add(self) -> None:
        worker = _Worker(self._target)
        self._all.add(worker)
        self._idle.put_nowait(worker)

    async def close(self) -> None:
        for worker in self._all:
            worker.end()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(
        self, task: str, *arguments: Any, gone: Callable[[], Awaitable[bool]] | None = None
    ) -> Any:
        """What a worker answers.

        Args:
            gone: tells whether nobody waits for the answer any more; then the worker is ended

        Raises:
            BusyError: no worker became free
            TooSlowError: its time was up
            RefusedError: the worker refused the request
            FailedError: it met an error of ours, or died
        """
        worker = await self._free_worker()
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(self._executor, worker.ask, (task, arguments), self._seconds)
        left = False
        try:
            if gone is not None:
                while not (await asyncio.wait({asking}, timeout=_LOOKED_AFTER))[0]:
                    if not left and (left := await gone()):
                        worker.end()  # its pipe closes, and `ask` returns
            kind, value = await asyncio.shield(asking)
        except asyncio.CancelledError:
            worker.end()
            raise
        finally:
            self._give_back(worker)
        if left:
            raise RefusedError("the request was given up", 408)
        if kind == "found":
            return value
        if kind == "refused":
            raise RefusedError(*value)
        if kind == "slow":
            raise TooSlowError(self._seconds)
        raise FailedError(value)

    async def _free_worker(self) -> _Worker:
        if not self._idle.empty():
            return self._idle.get_nowait()
        if self._in_line >= self._waiting:
            raise BusyError
        self._in_line += 1
        try:
            return await asyncio.wait_for(self._idle.get(), self._patience)
        except TimeoutError:
            raise BusyError from None
        finally:
            self._in_line -= 1

    def _give_back(self, worker: _Worker) -> None:
        if worker.alive:
            self._idle.put_nowait(worker)
            return
        self._all.discard(worker)
        self._add()


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, target: Callable[[Any], None]) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=target, args=(theirs,), daemon=True, name="spgru-serve"
        )
        self._process.start()
        theirs.close()
        self.alive = True

    def ask(self, request: Any, seconds: float) -> tuple[str, Any]:
        """Blocks until the answer is there, the time is up, or the process is gone."""
        try:
            self._connection.send(request)
            if not self._connection.poll(seconds):
                self.end()
                return "slow", None
            answer: tuple[str, Any] = self._connection.recv()
            return answer
        except (EOFError, OSError):
            self.end()
            return "failed", "the worker process ended unexpectedly"
        finally:
            if not self.alive:
                self._connection.close()

    def end(self) -> None:
        """Kill the process; its pipe tells whoever waits for it."""
        self.alive = False
        self._process.kill()
        self._process.join(1)


def _context() -> Any:
    """Processes that begin with everything imported, where the system can do that."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spgru.serve.preload"])
    return context
