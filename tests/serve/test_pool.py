"""So many computations at once, each with a time limit; what dies is replaced."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from serve.sleepy import answer
from spgru.serve.errors import BusyError, RefusedError, TooSlowError
from spgru.serve.pool import FailedError, Pool


def run(
    scenario: Callable[[Pool], Awaitable[Any]],
    workers: int = 1,
    waiting: int = 0,
    patience: float = 0.2,
    seconds: float = 20.0,
) -> Any:
    async def main() -> Any:
        pool = Pool(workers, waiting, patience, seconds, answer)
        await pool.start()
        try:
            return await scenario(pool)
        finally:
            await pool.close()

    return asyncio.run(main())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_more_than_the_limit_is_refused_at_once_and_less_is_not() -> None:
    async def scenario(pool: Pool) -> list[Any]:
        await asyncio.gather(pool.run("pid"), pool.run("pid"))  # both have started
        calls = [pool.run("sleep", 0.5) for _ in range(20)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = run(scenario, workers=2)
    assert sum(isinstance(one, int) for one in found) == 2
    assert sum(isinstance(one, BusyError) for one in found) == 18


def test_a_place_in_the_line_is_kept_for_a_while() -> None:
    async def scenario(pool: Pool) -> list[Any]:
        await pool.run("pid")
        calls = [pool.run("sleep", 0.3) for _ in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = run(scenario, waiting=1, patience=5.0)
    assert [type(one) for one in found] == [int, int, BusyError]
    found = run(scenario, waiting=1, patience=0.05)
    assert [type(one) for one in found] == [int, BusyError, BusyError]


def test_a_computation_is_ended_when_its_time_is_up() -> None:
    async def scenario(pool: Pool) -> tuple[int, int]:
        before = await pool.run("pid")
        with pytest.raises(TooSlowError, match=r"after 1\.5 seconds"):
            await pool.run("sleep", 600)
        return before, await pool.run("pid")

    start = time.monotonic()
    before, after = run(scenario, seconds=1.5)
    assert time.monotonic() - start < 30
    assert before != after
    assert not is_alive(before)


def test_a_worker_that_dies_is_replaced() -> None:
    async def scenario(pool: Pool) -> int:
        with pytest.raises(FailedError, match="ended unexpectedly"):
            await pool.run("die")
        with pytest.raises(FailedError, match="text"):
            await pool.run("fail")
        return await pool.run("pid")  # type: ignore[no-any-return]

    assert run(scenario) > 0


def test_a_computation_ends_when_nobody_waits_for_it() -> None:
    async def scenario(pool: Pool) -> tuple[int, int]:
        async def gone() -> bool:
            return True

        before = await pool.run("pid")
        with pytest.raises(RefusedError, match="given up"):
            await pool.run("sleep", 600, gone=gone)
        return before, await pool.run("pid")

    before, after = run(scenario)
    assert before != after
    assert not is_alive(before)
