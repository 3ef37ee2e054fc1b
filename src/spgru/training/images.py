"""A picture of a prediction: truth, mean and uncertainty side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.models import Autoencoder

__all__ = ["save_prediction"]


@torch.no_grad()
def save_prediction(path: Path, model: Any, frames: Tensor, columns: int = 5) -> None:
    """Write a PNG of the first sequence: rows truth, mean, standard deviation; columns frames.

    Args:
        frames: (2 T, B, height, width), the first half the model's input
    """
    from matplotlib.figure import Figure

    seen, target = frames[:, :1].chunk(2)
    if isinstance(model, Autoencoder):
        target = seen.flip(0)
    pixels = model.predict(seen)
    steps = torch.linspace(0, len(target) - 1, columns).round().int().tolist()
    rows = {"truth": target, "mean": pixels.mean, "standard deviation": pixels.std}
    figure = Figure(figsize=(1.5 * columns, 1.6 * len(rows)), layout="constrained")
    for row, (name, values) in enumerate(rows.items()):
        # A map that is 0 everywhere still needs a range of colours.
        top = 1.0 if row < 2 else max(values.max().item(), 1e-6)
        for column, step in enumerate(steps):
            axes = figure.add_subplot(len(rows), columns, row * columns + column + 1)
            image = values[step, 0].float().cpu().numpy()
            axes.imshow(image, cmap="magma" if row == 2 else "gray", vmin=0, vmax=top)
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name if row < 2 else f"{name}\n(to {top:.2g})", fontsize=8)
            if row == 0:
                axes.set_title(f"frame {step + 1}", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
