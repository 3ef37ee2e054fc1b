"""Predictions for a user's own sequences, from file to file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.data.npy import check_array_file
from spgru.runtime.storage import require_folder, write_whole
from spgru.training.evaluation import seeded
from spgru.training.export import Loaded

__all__ = ["predict_file", "read_sequences"]


def read_sequences(path: str | Path, height: int, width: int) -> tuple[Tensor, bool]:
    """Sequences of a .npy file as float32 (T, B, height, width), and whether B was in the file.

    The file holds (T, height, width) or (T, B, height, width), uint8 or floats in [0, 1].

    Raises:
        ValueError: it is missing, unreadable, or holds something else.
    """
    try:
        check_array_file(path)
        with Path(path).open("rb") as file:
            array: Any = np.load(file, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a .npy file of numbers ({_line(error)})") from error
    wanted = f"save (T, {height}, {width}) or (T, B, {height}, {width})"
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is an archive of arrays; {wanted} by numpy.save")
    if array.ndim not in (3, 4) or array.shape[-2:] != (height, width) or 0 in array.shape:
        raise ValueError(f"{path} has shape {array.shape}; {wanted}, frames first")
    frames = _to_unit(array, path)
    return (frames, True) if frames.ndim == 4 else (frames.unsqueeze(1), False)


def _to_unit(array: NDArray[Any], path: str | Path) -> Tensor:
    if array.dtype == np.uint8:
        return torch.from_numpy(array.astype(np.float32)) / 255
    if array.dtype.kind != "f":
        raise ValueError(f"{path} has dtype {array.dtype}; save uint8, or floats in [0, 1]")
    # Written so that NaN, which fails every comparison, is refused.
    if not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"{path} reaches from {array.min():.4g} to {array.max():.4g}; pixels must lie in "
            "[0, 1], without NaN"
        )
    return torch.from_numpy(array.astype(np.float32))


def predict_file(
    loaded: Loaded,
    source: str | Path,
    output: str | Path | None = None,
    *,
    steps: int | None = None,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Write mean and variance of the frames that follow, laid out as the input is.

    Args:
        source: see `read_sequences`
        output: beginning of the two names, to which `_mean.npy` and `_var.npy` are added; None for
            the input's name
        steps: frames to predict; None for as many as were given

    Returns:
        paths of mean and variance
    """
    shape = loaded.config.model
    prefix = Path(source).with_suffix("") if output is None else Path(output)
    paths = [prefix.with_name(f"{prefix.name}_{part}.npy") for part in ("mean", "var")]
    for path in paths:
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; remove it, choose another output, or overwrite it")
    require_folder(paths[0].parent)
    frames, batched = read_sequences(source, shape.height, shape.width)
    model = loaded.model.to(device)
    options = seeded(model, device) | ({} if steps is None else {"steps": steps})
    parts = [
        model.predict(part.to(device), **options) for part in torch.split(frames, batch_size, 1)
    ]
    for path, name in zip(paths, ("mean", "var"), strict=True):
        result = torch.cat([getattr(part, name) for part in parts], 1).cpu()
        buffer = io.BytesIO()
        np.save(buffer, (result if batched else result[:, 0]).numpy())
        write_whole(path, buffer.getvalue())
    return paths[0], paths[1]


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
