"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spgru.runtime.storage import require_folder

__all__ = ["FolderInUseError", "locked"]

_NAME = ".lock"


class FolderInUseError(RuntimeError):
    """Another process writes to the folder; the message names both."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that lock the folder out of it, and make it if it is not there.

    The operating system holds the lock (`flock`) and releases it when the process ends, however it
    ends. The file stays behind: removing it would let two processes lock two files of one name.

    Raises:
        FolderInUseError: another process, or another thread of this one, has locked it.
        ConfigError: the folder cannot be made, or not be written to.
    """
    require_folder(folder)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Empty for the moment between locking and writing.
            owner = os.read(descriptor, 1024).decode(errors="replace").strip()
            raise FolderInUseError(
                f"{folder} is in use by {owner or 'another process'}; wait until it has finished, "
                "or choose another output"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(descriptor)
