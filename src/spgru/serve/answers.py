"""A clip and its predictions as JSON, as a GIF, or as arrays."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgru.serve.networks import NETWORKS
from spgru.serve.prediction import Asked, Clip, Predicted
from spgru.studies.animation import Clip as AnimatedClip
from spgru.studies.animation import save_animation

__all__ = ["ANSWERS", "MEDIA_TYPES"]

MEDIA_TYPES = {"json": "application/json", "gif": "image/gif", "npz": "application/zip"}


def _json(clip: Clip, asked: Asked) -> bytes:
    """Pictures as bytes: brightness 0 to 255 for 0 to 1, deviations for 0 to `std_top`.

    Those are bytes of the square root of their share of `std_top`, as the page's colours are: small
    ones are not rounded away.
    """
    found = {
        "seen": _bytes(clip.seen),
        "truth": None if clip.after is None else _bytes(clip.after),
        "sequences": clip.count,
        "images": [base64.b64encode(image).decode() for image in clip.images],
        "predictions": [_prediction(one, clip.after, asked) for one in clip.predictions],
    }
    return json.dumps(found, allow_nan=False).encode()


def _prediction(one: Predicted, after: Tensor | None, asked: Asked) -> dict[str, Any]:
    pixels, drawn = one.pixels, NETWORKS[one.network].kind == "draws"
    top = max(pixels.std.max().item(), 1e-6)
    error = None
    if after is not None:
        error = (pixels.mean.double() - after).square().sum((1, 2)).tolist()
    return {
        "network": one.network,
        "mean": _bytes(pixels.mean),
        "std": _bytes((pixels.std / top).sqrt()),
        "std_top": top,
        "variance": pixels.var.double().sum((1, 2)).tolist(),
        "error": error,
        "milliseconds": one.milliseconds,
        "draws": asked.draws if drawn else None,
        "form": "draws" if drawn else asked.variance,
    }


def _bytes(values: Tensor) -> str:
    whole = (255 * values).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(whole.numpy().tobytes()).decode()


def _gif(clip: Clip, asked: Asked) -> bytes:
    del asked
    after = torch.zeros_like(clip.seen) if clip.after is None else clip.after
    rows = {
        NETWORKS[one.network].label.split(",")[0]: AnimatedClip(clip.seen, after, one.pixels)
        for one in clip.predictions
    }
    file = io.BytesIO()
    save_animation(file, rows)
    return file.getvalue()


def _npz(clip: Clip, asked: Asked) -> bytes:
    del asked
    arrays = {"seen": clip.seen} | ({} if clip.after is None else {"truth": clip.after})
    for one in clip.predictions:
        name = one.network.replace("-", "_")
        arrays |= {f"{name}_mean": one.pixels.mean, f"{name}_var": one.pixels.var}
    file = io.BytesIO()
    named: dict[str, Any] = {name: part.numpy() for name, part in arrays.items()}
    np.savez_compressed(file, **named)
    return file.getvalue()


ANSWERS: dict[str, Callable[[Clip, Asked], bytes]] = {"json": _json, "gif": _gif, "npz": _npz}
