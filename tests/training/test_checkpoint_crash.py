"""Processes that are killed while they write a checkpoint; see crash_worker.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("crash_worker.py")


def deaths(*arguments: object) -> int:
    command = [sys.executable, "-W", "error", str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_killed_before_and_after_every_system_call(tmp_path: Path) -> None:
    # Two files, each opened, written, synced, closed, renamed, and its folder opened, synced,
    # closed; then two removed and the folder synced: 21 calls at the least.
    assert deaths("every", tmp_path) > 40


@pytest.mark.brute
def test_killed_at_random_moments(tmp_path: Path, full: bool) -> None:
    count = 1000 if full else 40
    assert deaths("random", tmp_path, count) == count


def test_a_limit_of_the_system_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    assert deaths("limit", tmp_path) == 1
