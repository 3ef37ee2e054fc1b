"""An animated GIF of input, prediction and uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spgru.moments import Moments
from spgru.reporting.pictures import COLOURS

__all__ = ["Clip", "save_animation"]

_ZOOM = 3
"""Pixels of the picture for one of a frame."""
# Sizes of the picture in its pixels: between frames, above the first row, left of each row.
_GAP, _HEADER, _LABEL = 4, 14, 90


class Clip(NamedTuple):
    """One sequence and its prediction."""

    seen: Tensor
    """(S, height, width), the input of the model"""
    after: Tensor
    """(T, height, width), the true frames after it"""
    prediction: Moments
    """(T, height, width)"""


def save_animation(
    path: Path | BinaryIO, clips: Mapping[str, Clip], milliseconds: int = 220
) -> None:
    """A row per clip: truth, prediction, uncertainty. S + T frames, in a file or an open one.

    While the model is still being shown frames, prediction and uncertainty are black.
    """
    try:
        from matplotlib import colormaps
        from PIL import Image, ImageDraw
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the animation of a study needs matplotlib and pillow; install them with "
            "pip install 'spgru[plot]'"
        ) from error
    top = max(clip.prediction.std.max().item() for clip in clips.values())
    rows = [_columns(clip, top) for clip in clips.values()]
    count = max(len(columns[0]) for columns in rows)
    maps = [colormaps[COLOURS[kind]] for kind in ("frame", "frame", "uncertainty")]
    images = []
    for t in range(count):
        pictures = [
            [_zoomed(maps[k](column[min(t, len(column) - 1)])) for k, column in enumerate(columns)]
            for columns in rows
        ]
        images.append(_laid_out(Image, ImageDraw, pictures, list(clips), t, len(rows[0][0])))
    options = {"duration": milliseconds, "loop": 0}
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], **options)


def _columns(clip: Clip, top: float) -> list[NDArray[np.float32]]:
    """Truth, mean and standard deviation over its largest value, each (S + T, height, width)."""
    dark = torch.zeros_like(clip.seen)
    truth = torch.cat([clip.seen, clip.after])
    mean = torch.cat([dark, clip.prediction.mean])
    # 1e-9 where every deviation is 0.
    std = torch.cat([dark, clip.prediction.std / max(top, 1e-9)])
    return [part.float().cpu().numpy() for part in (truth, mean, std)]


def _zoomed(colours: NDArray[np.float64]) -> NDArray[np.uint8]:
    """(height, width, 4) in [0, 1] -> (zoomed height, zoomed width, 3)"""
    pixels = np.round(255 * colours[..., :3]).astype(np.uint8)
    return pixels.repeat(_ZOOM, 0).repeat(_ZOOM, 1)


def _laid_out(
    image: Any, draw: Any, rows: list[list[NDArray[np.uint8]]], names: list[str], t: int, total: int
) -> Any:
    height, width = rows[0][0].shape[:2]
    size = (
        _LABEL + len(rows[0]) * (width + _GAP),
        _HEADER + len(rows) * (height + _GAP),
    )
    sheet = image.new("RGB", size, "white")
    pen = draw.Draw(sheet)
    titles = (f"frame {t + 1} of {total}", "prediction", "uncertainty")
    for column, title in enumerate(titles):
        pen.text((_LABEL + column * (width + _GAP), 0), title, fill="black")
    for row, (name, pictures) in enumerate(zip(names, rows, strict=True)):
        y = _HEADER + row * (height + _GAP)
        pen.text((2, y + height // 2), name, fill="black")
        for column, picture in enumerate(pictures):
            sheet.paste(image.fromarray(picture), (_LABEL + column * (width + _GAP), y))
    return sheet
