"""MNIST from the copy inside the package, or from a user's own files."""

from __future__ import annotations

import gzip
import importlib.resources
import os
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.data.arguments import check_choice
from spgru.data.npy import check_archive

__all__ = ["DIGIT", "MNIST", "SPLITS", "Split", "load_mnist", "packaged_images"]

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

DIGIT = 28
"""Height and width of a digit in pixels."""

# Our own names first, then those of the widely copied Keras archive.
_NPZ_KEYS = {
    "train": (("train_images", "train_labels"), ("x_train", "y_train")),
    "test": (("test_images", "test_labels"), ("x_test", "y_test")),
}
_IDX_PREFIX = {"train": "train", "test": "t10k"}
_UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


class MNIST(NamedTuple):
    """One split of MNIST. The arrays are read-only, because they are shared."""

    images: NDArray[np.uint8]
    """(N, 28, 28)"""
    labels: NDArray[np.uint8]
    """(N,), 0 to 9"""


def load_mnist(split: Split, directory: str | os.PathLike[str] | None = None) -> MNIST:
    """Images and labels of one split.

    Args:
        split: `"train"` (60,000 digits) or `"test"` (10,000).
        directory: a folder with your own files in place of the packaged copy: either the IDX files
            under their original names (`train-images-idx3-ubyte` and so on, each plain or `.gz`),
            or one `.npz` with `train_images`, `train_labels`, `test_images` and `test_labels`.
            IDX files win where both are present, then `mnist.npz` over other archives.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ValueError: a file is damaged or holds something else.
    """
    check_choice("split", split, SPLITS)
    if directory is None:
        return _packaged(split)
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"directory {str(folder)!r} is not a folder; pass the folder that holds the MNIST "
            "files, or leave directory out for the packaged copy"
        )
    images = _idx_file(folder, split, "images")
    labels = _idx_file(folder, split, "labels")
    if images is not None and labels is not None:
        return _checked(folder, _read_idx(images, 3), _read_idx(labels, 1))
    archive = _npz_file(folder)
    if archive is not None:
        with archive.open("rb") as file:
            return _read_npz(archive, file, split)
    found = images or labels
    beside = f" beside {found.name}" if found else ""
    missing = f"{_IDX_PREFIX[split]}-{'labels-idx1' if images else 'images-idx3'}-ubyte"
    raise FileNotFoundError(
        f"directory {str(folder)!r} has no {missing} (or .gz){beside} and no .npz archive; "
        "put the MNIST files there, or leave directory out for the packaged copy"
    )


@cache
def packaged_images(split: Split, device: torch.device) -> Tensor:
    """Packaged images on a device, (N, 28, 28) uint8, from a cache: do not change them."""
    return torch.tensor(load_mnist(split).images, device=device)


@cache
def _packaged(split: Split) -> MNIST:
    source = importlib.resources.files("spgru.data") / "mnist.npz"
    with source.open("rb") as file:
        return _read_npz("mnist.npz of the package", file, split)


def _idx_file(folder: Path, split: Split, kind: Literal["images", "labels"]) -> Path | None:
    dimensions = 3 if kind == "images" else 1
    for joint in ("-", "."):
        for ending in ("", ".gz"):
            name = f"{_IDX_PREFIX[split]}-{kind}{joint}idx{dimensions}-ubyte{ending}"
            if (folder / name).is_file():
                return folder / name
    return None


def _npz_file(folder: Path) -> Path | None:
    archives = sorted(folder.glob("*.npz"))
    preferred = [archive for archive in archives if archive.name == "mnist.npz"]
    if len(archives) > 1 and not preferred:
        raise ValueError(
            f"directory {str(folder)!r} holds {len(archives)} .npz archives; "
            "name the one to use mnist.npz"
        )
    return next(iter(preferred or archives), None)


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, type 8 (uint8), the number of dimensions, their sizes, data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except _UNREADABLE as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); fetch it again") from error
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(
            f"{path} does not start like an IDX file of {dimensions}-dimensional uint8 data "
            f"(first bytes {raw[:4].hex(' ') or 'missing'}); fetch it again"
        )
    shape = np.frombuffer(raw, ">u4", dimensions, offset=4).tolist()
    expected = header + int(np.prod(shape, dtype=object))
    if len(raw) != expected:
        raise ValueError(
            f"{path} has {len(raw)} bytes but its header asks for {expected}; fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _read_npz(source: Path | str, file: Any, split: Split) -> MNIST:
    try:
        check_archive(file)
        with np.load(file, allow_pickle=False) as archive:
            keys = list(archive)
            chosen = [pair for pair in _NPZ_KEYS[split] if set(pair) <= set(keys)]
            arrays = [archive[key] for key in chosen[0]] if chosen else []
    except _UNREADABLE as error:
        raise ValueError(
            f"{source} is not a readable .npz archive ({error}); replace it"
        ) from error
    if not arrays:
        wanted = " and ".join(_NPZ_KEYS[split][0])
        raise ValueError(
            f"{source} holds {', '.join(keys) or 'nothing'} but not {wanted}; "
            "save the arrays under those names"
        )
    return _checked(source, arrays[0], arrays[1])


def _checked(source: Path | str, images: NDArray[Any], labels: NDArray[Any]) -> MNIST:
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (DIGIT, DIGIT):
        raise ValueError(
            f"{source} has images of shape {images.shape} and dtype {images.dtype}; "
            f"save them as uint8 (N, {DIGIT}, {DIGIT})"
        )
    if len(images) == 0:
        raise ValueError(f"{source} has no images; save at least one")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{source} has labels of shape {labels.shape} and dtype {labels.dtype} for "
            f"{len(images)} images; save one whole number per image"
        )
    labels = labels.astype(np.uint8)
    images.flags.writeable = labels.flags.writeable = False
    return MNIST(images, labels)
