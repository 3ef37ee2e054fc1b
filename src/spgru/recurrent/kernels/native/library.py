"""Compile `cells.c` for this machine, once, and call it."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.functional import activation
from spgru.functional.kernels.constants import COSH, COSH_SLOPE, SCALED_ERFC

__all__ = ["CompileError", "Function", "obstacle"]

_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp", "-fPIC", "-shared",
)  # fmt: skip
_SOURCE = Path(__file__).with_name("cells.c")


class CompileError(RuntimeError):
    """The machine's compiler refused."""


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


def _compiler() -> str | None:
    named = shlex.split(os.environ.get("CC", ""))
    return shutil.which(named[0]) if named else shutil.which("gcc") or shutil.which("cc")


@cache
def obstacle() -> str | None:
    """Why the functions cannot be had here, None once they are compiled and loaded."""
    if platform.system() != "Linux":
        return f"it is made for Linux, and this is {platform.system()}"
    if _compiler() is None:
        return "there is no C compiler, install gcc or name one in CC"
    try:
        _library()
    except (CompileError, OSError, RuntimeError) as error:  # the last: there is no home folder
        return str(error)
    return None


def _processor() -> str:
    """What -march=native depends on: a library compiled on one machine may not run on another."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@cache
def _library() -> ctypes.CDLL:
    text = _header() + _SOURCE.read_text()
    compiler = _compiler()
    assert compiler is not None
    key = hashlib.sha256("\n".join((text, compiler, *_FLAGS, _processor())).encode()).hexdigest()
    cache_root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(cache_root) / "spgru" / f"cells-{key[:16]}.so"
    if not path.exists():
        _compile(compiler, text, path)
    return ctypes.CDLL(str(path))


def _compile(compiler: str, text: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, built = Path(folder) / "cells.c", Path(folder) / "cells.so"
        source.write_text(text)
        command = [compiler, *_FLAGS, str(source), "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(
                f"{compiler} could not compile the kernels ({done.stderr.strip()[-500:]})"
            )
        # At once, so that another process never sees half of it.
        built.replace(path)


class _Process:
    is_forked = False

    @classmethod
    def fork(cls) -> None:
        cls.is_forked = True


os.register_at_fork(after_in_child=_Process.fork)


class Function:
    """A function of `cells.c`: tensors as pointers, None as a null pointer, then whole numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._call: Any = None

    def __call__(self, *tensors: Tensor | None, rows: int, size: int) -> None:
        assert all(
            tensor is None or (tensor.dtype is torch.float32 and tensor.is_contiguous())
            for tensor in tensors
        )
        if self._call is None:
            call = getattr(_library(), self.name)
            call.restype = None
            call.argtypes = [ctypes.c_void_p] * len(tensors) + [ctypes.c_long] * 3
            self._call = call
        # A thread costs more than a small step, and a forked process has none to wake.
        threads = 1 if rows * size <= 2048 or _Process.is_forked else torch.get_num_threads()
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._call(*pointers, rows, size, threads)
