"""Compile `cells.c` and `adjoint.c` for this machine, keep the result, and load it.

The compiled file is code that this process will run, so it is read only from a folder and a file
that belong to this user and that nobody else can write to, and only if its checksum is right.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

from spgru.functional import activation
from spgru.functional.activation_constants import COSH, COSH_SLOPE, SCALED_ERFC

__all__ = ["CompileError", "load", "obstacle", "platform_obstacle"]

_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip
_SOURCES = [Path(__file__).with_name(name) for name in ("cells.c", "adjoint.c")]
# A slow machine takes some seconds; a compiler that waits for something would wait forever.
_TIME_LIMIT = 120.0
_DIGEST_BYTES = hashlib.sha256().digest_size


class CompileError(RuntimeError):
    """There is no compiler, or it failed."""


def _header() -> str:
    """The constants of `spgru.functional.activation`, derived there, as C."""
    arrays = {
        "SQUARED_NODES": [node**2 for node in activation._NODES],
        "NODE_WEIGHTS": activation._NODE_WEIGHTS,
        "WIDTHS": activation._WIDTHS,
        "STEP_WEIGHTS": activation._STEP_WEIGHTS,
        "SLOPE_WEIGHTS": activation._SLOPE_WEIGHTS,
        "COSH": COSH,
        "COSH_SLOPE": COSH_SLOPE,
        "ERFC": SCALED_ERFC,
    }
    lines = [
        f"static const float {name}[] = {{{', '.join(f'{value!r}f' for value in values)}}};"
        for name, values in arrays.items()
    ]
    numbers = {
        "TERMS": len(COSH),
        "ERFC_DEGREE": len(SCALED_ERFC) - 1,
        "HANDOVER": f"{activation._HANDOVER!r}f",
        "FARTHEST": f"{activation._FARTHEST!r}f",
        "ROOT_PI": f"{1 / math.sqrt(math.pi)!r}f",
    }
    lines += [f"#define {name} {value}" for name, value in numbers.items()]
    return "\n".join(lines) + "\n"


def source() -> str:
    """The whole C text."""
    return _header() + "".join(path.read_text() for path in _SOURCES)


def _compiler() -> list[str]:
    """The command of the C compiler: all words of CC, else gcc or cc."""
    words = shlex.split(os.environ.get("CC", ""))
    for command in [words] if words else [["gcc"], ["cc"]]:
        found = shutil.which(command[0])
        if found is not None:
            return [found, *command[1:]]
    if words:
        raise CompileError(f"CC names {words[0]!r}, which is no program here; install or unset it")
    raise CompileError("there is no C compiler, install gcc or name one in CC")


def platform_obstacle() -> str | None:
    """Why this kind of machine has no compiled kernels."""
    system = platform.system()
    return None if system == "Linux" else f"it is made for Linux, and this is {system}"


@cache
def obstacle() -> str | None:
    """Why the functions cannot be had here, None once they are compiled and loaded."""
    found = platform_obstacle()
    if found is not None:
        return found
    try:
        load()
    except (CompileError, OSError, RuntimeError) as error:  # the last: there is no home folder
        return str(error)
    return None


def _processor() -> str:
    """What -march=native depends on: a library compiled on one machine may not run on another."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@cache
def load() -> ctypes.CDLL:
    """The compiled functions."""
    text, compiler = source(), _compiler()
    key = hashlib.sha256("\n".join((text, *compiler, *_FLAGS, _processor())).encode()).hexdigest()
    name = f"cells-{key[:16]}.so"
    try:
        folder = _cache_folder()
    except OSError as error:
        warnings.warn(
            f"spgru compiles its kernels anew in every process: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        with tempfile.TemporaryDirectory(prefix="spgru-") as private:  # mode 0700
            return _load_from(Path(private), name, compiler, text)
    return _load_from(folder, name, compiler, text)


def _load_from(folder: Path, name: str, compiler: list[str], text: str) -> ctypes.CDLL:
    path = folder / name
    library = _open(path)
    if library is None:
        compile_into(path, compiler, text)
        library = _open(path)
    if library is None:
        raise CompileError(f"{path} was damaged while it was compiled")
    return library


def _cache_folder() -> Path:
    """The folder of compiled files; OSError if others could put something into it."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "spgru"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_symlink():
        folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder, os.lstat(folder), stat.S_ISDIR, "folder")
    return folder


def _check_private(path: Path, found: os.stat_result, is_kind: object, kind: str) -> None:
    """OSError unless this user alone can have written what lies there."""
    if not is_kind(found.st_mode):  # type: ignore[operator]
        raise OSError(f"{path} is no {kind} of its own (a link?); remove it")
    if found.st_uid != os.getuid():
        raise OSError(f"{path} belongs to user {found.st_uid}, not to you; remove it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{path} can be written to by others; run chmod go-w on it")


def _open(path: Path) -> ctypes.CDLL | None:
    """The library at this path, None if it is not there, not ours alone, or damaged."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        try:
            _check_private(path, os.fstat(file), stat.S_ISREG, "file")
        except OSError:
            return None
        content, digest = _parted(opened.read())
        if hashlib.sha256(content).digest() != digest:
            return None
        # The very file that was checked, whatever lies at the path by now. By the number of the
        # process: a library that was loaded before by the same name would be taken instead.
        return ctypes.CDLL(f"/proc/{os.getpid()}/fd/{file}")


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """A compiled file, and the checksum that `compile_into` puts at its end."""
    return data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]


def compile_into(path: Path, compiler: list[str], text: str) -> None:
    """Compile the C text; the file appears at once and whole, replacing what was there."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        written, built = Path(folder) / "cells.c", Path(folder) / "cells.so"
        written.write_text(text)
        command = [*compiler, *_FLAGS, str(written), "-o", str(built), "-lm"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT
            )
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{shlex.join(compiler)} took longer than {_TIME_LIMIT:.0f} seconds"
            ) from None
        if done.returncode:
            raise CompileError(
                f"{shlex.join(compiler)} could not compile the kernels "
                f"({done.stderr.strip()[-500:]})"
            )
        content = built.read_bytes()
        built.write_bytes(content + hashlib.sha256(content).digest())
        built.chmod(0o700)
        built.replace(path)
