"""What a NumPy file announces, checked before memory is asked for."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

__all__ = ["check_archive", "check_array_file"]


def check_array_file(path: str | Path) -> None:
    """Refuse a .npy file that is shorter than its header announces.

    `numpy.load` allocates what the header announces before it reads the first number. A file of
    another kind, or of pickled objects, is left for `numpy.load` to refuse.

    Raises:
        ValueError: it is shorter.
    """
    with Path(path).open("rb") as file:
        _check_header(file, Path(path).stat().st_size)


def check_archive(file: IO[bytes]) -> None:
    """`check_array_file` for every member of a .npz archive; leaves the file at its start.

    Raises:
        ValueError: a member is shorter than its header announces.
        zipfile.BadZipFile: it is not an archive.
    """
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            with archive.open(member) as content:
                _check_header(content, member.file_size)
    file.seek(0)


def _check_header(file: IO[bytes], size: int) -> None:
    """Args:
    file: at its beginning
    size: bytes in it
    """
    try:
        version = np.lib.format.read_magic(file)
    except ValueError:
        return
    # Version 3 differs from 2 in the encoding of field names, which arrays of numbers do not have.
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    if dtype.hasobject:  # pickled: its size is not in the header, and numpy.load refuses it
        return
    announced = file.tell() + math.prod(shape) * dtype.itemsize
    if announced > size:
        raise ValueError(
            f"its header announces {dtype} {list(shape)}, {announced} bytes, but there are {size}"
        )
