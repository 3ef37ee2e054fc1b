"""Atomic writes: a file is there in full or not at all, even after a crash."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from spgru.runtime.errors import ConfigError

__all__ = ["remove_leftovers", "require_folder", "sha256", "sync_folder", "write_whole"]

_CHUNK = 1 << 22
"""Bytes of one write, 4 MiB; Linux takes at most 2 GiB at once."""
_SUFFIX = ".partial"


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a crash, a kill or a full disk leaves the old file or the new.

    The bytes go to a temporary file in the same folder, which is synced to the disk and renamed;
    the folder is synced too. After an error the temporary file is removed.
    """
    partial = path.with_name(path.name + _SUFFIX)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view[:_CHUNK]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def require_folder(folder: Path) -> None:
    """Make a folder and check that it can be written to, before the work that goes there.

    Raises:
        ConfigError: it cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); choose another") from None
    if not writable:
        raise ConfigError(f"{folder} cannot be written to; choose another")


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of a killed process."""
    for partial in folder.glob(f"*{_SUFFIX}"):
        partial.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
