"""Encoder and decoder on patches: every position a small network that sees its neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spgru.functional import sigmoid
from spgru.models.config import ModelConfig
from spgru.models.conv_recurrent import ConvGRU, ConvLSTM
from spgru.models.frames import from_patches, to_patches
from spgru.moments import Moments, stack
from spgru.nn import Conv2d
from spgru.nn.contexts import shared_weights

__all__ = ["Decoder", "Encoder"]


def _recurrent(config: ModelConfig, inputs: int, factory: dict[str, Any]) -> ConvGRU | ConvLSTM:
    sizes = inputs, config.hidden_size, config.num_layers, config.kernel_size
    options = {"rule": config.rule, "weight_std": config.weight_std, **factory}
    if config.cell == "lstm":
        return ConvLSTM(*sizes, **options)
    return ConvGRU(*sizes, reset_after=config.reset_after, **options)


class Encoder(nn.Module):
    """A sequence to its final state."""

    def __init__(self, config: ModelConfig, **factory: Any) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.rnn = _recurrent(config, config.patch_size**2, factory)

    def forward(self, frames: Tensor | Moments) -> Any:
        """(T, B, height, width) -> (layers, B, channels, height / patch, width / patch)

        For an LSTM a pair of those.
        """
        _, state = self.rnn(to_patches(frames, self.patch_size))
        return state


class Decoder(nn.Module):
    """A state to the logits of a sequence."""

    def __init__(self, config: ModelConfig, **factory: Any) -> None:
        super().__init__()
        self.feedback, self.rule = config.feeds_back, config.rule
        self.patch_size = config.patch_size
        channels = config.patch_size**2
        self.rnn = _recurrent(config, channels if self.feedback else 0, factory)
        self.readout = Conv2d(
            config.hidden_size, channels, 1, rule=config.rule, weight_std=config.weight_std,
            **factory,
        )  # fmt: skip

    def forward(self, state: Any, steps: int, first: Tensor | Moments) -> Moments:
        """The logits of `steps` frames, (steps, B, height, width).

        Args:
            state: of the encoder
            first: (B, height, width), the frame before the first one, read with feedback only
        """
        if self.feedback:
            return self._feed_back(state, steps, first)
        batch, *size = first.shape
        shape = (steps, batch, 0, *(pixels // self.patch_size for pixels in size))
        nothing = torch.zeros(shape, dtype=first.dtype, device=first.device)
        return self._read_out(self.rnn(nothing, state)[0])

    def read(self, frames: Tensor | Moments) -> tuple[Moments, Any]:
        """With feedback: the logits of the frame after each of (T, B, height, width), the state."""
        hidden, state = self.rnn(to_patches(frames, self.patch_size))
        return self._read_out(hidden), state

    def _read_out(self, hidden: Moments) -> Moments:
        """(T, B, channels, rows, columns) -> (T, B, height, width)"""
        steps, batch, *image = hidden.shape
        patches = self.readout(hidden.reshape(steps * batch, *image))
        return from_patches(patches.reshape(steps, batch, *patches.shape[1:]), self.patch_size)

    def _feed_back(self, state: Any, steps: int, frame: Tensor | Moments) -> Moments:
        outputs, dtype, x = [], frame.dtype, frame.unsqueeze(0)
        states = self.rnn.by_layer(state)
        with shared_weights(self):
            for _ in range(steps):
                hidden, states = self.rnn.run(to_patches(x, self.patch_size), states)
                logits = self._read_out(hidden)
                outputs.append(logits.squeeze(0))
                # Under autocast the product comes back in 16 bits.
                x = sigmoid(logits, self.rule).to(dtype)
        return stack(outputs)
