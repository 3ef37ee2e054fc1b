"""A predictor of `torch.nn` layers, sure of everything."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from spgru.baselines.common import certain_frames, certain_loss, shift, to_frames
from spgru.checks import check_choice
from spgru.models.config import CellName
from spgru.models.frames import split_halves
from spgru.moments import Moments, certain
from spgru.objectives import Loss, Objective

__all__ = ["Deterministic"]


class Deterministic(nn.Module):
    """`spgru.models.Predictor` without variance: encoder, unconditioned decoder, readout.

    Args:
        hidden_size: units of a layer
        num_layers: layers of encoder and decoder
        cell: `"gru"` or `"lstm"`
        initial_logit: added to the last bias at the start, see `spgru.models.ModelConfig`
        height: of a frame
        width: of a frame
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        num_layers: int = 1,
        cell: CellName = "gru",
        *,
        initial_logit: float = 0.0,
        height: int = 64,
        width: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("cell", cell, get_args(CellName))
        layer = nn.GRU if cell == "gru" else nn.LSTM
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.height, self.width = height, width
        self.encoder = layer(height * width, hidden_size, num_layers, **factory)
        # Unconditioned: the one input there must be is 0.
        self.decoder = layer(1, hidden_size, num_layers, **factory)
        self.readout = nn.Linear(hidden_size, height * width, **factory)
        shift(self.readout.bias, initial_logit)

    def forward(self, frames: Tensor, steps: int | None = None) -> Tensor:
        """Logits of the frames after these, (steps, B, height, width).

        Args:
            frames: (T, B, height, width)
            steps: how many; None for as many as were seen
        """
        pixels = certain_frames(frames, self.height, self.width)
        steps = len(pixels) if steps is None else steps
        _, state = self.encoder(pixels)
        nothing = pixels.new_zeros(steps, pixels.shape[1], 1)
        logits = self.readout(self.decoder(nothing, state)[0])
        return to_frames(logits, self.height, self.width)

    @torch.no_grad()
    def predict(self, frames: Tensor, steps: int | None = None) -> Moments:
        """Pixels of the frames after these, (steps, B, height, width), with variance 0."""
        return certain(torch.sigmoid(self(frames, steps).to(frames.dtype)))

    def loss(self, frames: Tensor, objective: Objective) -> Loss:
        """What to minimise; frames (2 T, B, height, width) in [0, 1], the first half the input."""
        seen, future = split_halves(frames, self.height, self.width)
        return certain_loss(self(seen), future, objective)
