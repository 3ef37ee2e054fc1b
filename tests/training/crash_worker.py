"""Run by test_checkpoint_crash.py: writes checkpoints in children that die on the way.

Forking is cheap and the children die alone; the parent, which has loaded torch once, looks at what
they left behind. Prints the number of deaths it has seen.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spgru.runtime import storage
from spgru.training import checkpoint as checkpoints
from spgru.training.checkpoint import Checkpoint, CheckpointError

CALLS = ("open", "write", "fsync", "close", "replace")


def state(step: int, size: int) -> Checkpoint:
    weights, moment = (torch.full((size,), float(step)) for _ in range(2))
    return Checkpoint(step, {"step": step}, {"position": step}, {"w": weights}, {"w/m": moment})


def assert_whole(folder: Path, at_least: int) -> int:
    """The newest checkpoint is one that was saved, and not older than the last one finished."""
    loaded = checkpoints.load_newest(folder)
    assert loaded.step >= at_least, (loaded.step, at_least)
    assert loaded.config == {"step": loaded.step}
    for tensor in (loaded.model["w"], loaded.optimizer["w/m"]):
        assert bool((tensor == loaded.step).all())
    return loaded.step


def child(action: Any) -> int:
    """Exit status of a forked child that runs `action`, negative for the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def at_every_call(folder: Path) -> int:
    """Die at the first call to the operating system, at the second, and so on; before and after."""
    checkpoints.save(folder, state(1, 1000))
    deaths, step = 0, 1
    for after in (False, True):
        for point in range(1, 100):

            def die_there(point: int = point, after: bool = after, step: int = step) -> None:
                count = 0

                def deadly(real: Any) -> Any:
                    def call(*arguments: Any, **options: Any) -> Any:
                        nonlocal count
                        count += 1
                        if count == point and not after:
                            os.kill(os.getpid(), signal.SIGKILL)
                        result = real(*arguments, **options)
                        if count == point:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return result

                    return call

                for name in CALLS:
                    setattr(storage.os, name, deadly(getattr(os, name)))
                Path.unlink = deadly(Path.unlink)  # type: ignore[method-assign]
                checkpoints.save(folder, state(step + 1, 1000), keep=1)

            status = child(die_there)
            step = assert_whole(folder, step)
            if status == 0:
                break
            assert status == -signal.SIGKILL, status
            deaths += 1
        checkpoints.clean(folder)
        assert not list(folder.glob("*.partial"))
    return deaths


def at_random(folder: Path, deaths: int) -> int:
    """Die at any moment of saving one checkpoint after the other."""
    rng = random.Random(0)
    checkpoints.save(folder, state(1, 200_000))
    step = 1
    for _ in range(deaths):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for number in range(step + 1, step + 10_000):
                checkpoints.save(folder, state(number, 200_000))
                os.write(writer, number.to_bytes(4, "little"))
        time.sleep(rng.uniform(0.005, 0.15))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(writer)
        finished = os.read(reader, 1 << 20)
        os.close(reader)
        if finished:
            step = int.from_bytes(finished[-4:], "little")
        step = assert_whole(folder, step)
    return deaths


def beyond_the_limit(folder: Path) -> int:
    """The operating system itself refuses to write more than so many bytes to a file."""
    checkpoints.save(folder, state(1, 10_000))

    def refused() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(CheckpointError, match=r"File too large.*of step 1 is intact"):
            checkpoints.save(folder, state(2, 100_000))

    assert child(refused) == 0
    assert assert_whole(folder, 1) == 1
    assert len(list(folder.iterdir())) == 2
    return 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, where = sys.argv[1], Path(sys.argv[2])
    if kind == "every":
        print(at_every_call(where))
    elif kind == "random":
        print(at_random(where, int(sys.argv[3])))
    else:
        print(beyond_the_limit(where))
