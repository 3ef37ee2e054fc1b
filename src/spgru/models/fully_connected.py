"""Encoder and decoder of whole frames, every pixel a feature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spgru.functional import sigmoid
from spgru.models.config import ModelConfig
from spgru.models.frames import flatten
from spgru.moments import Moments, stack
from spgru.nn import GRU, LSTM, Linear
from spgru.nn.contexts import shared_weights

__all__ = ["Decoder", "Encoder"]


def _recurrent(config: ModelConfig, inputs: int, factory: dict[str, Any]) -> GRU | LSTM:
    options = {"rule": config.rule, "weight_std": config.weight_std, **factory}
    if config.cell == "lstm":
        return LSTM(inputs, config.hidden_size, config.num_layers, **options)
    return GRU(
        inputs, config.hidden_size, config.num_layers, reset_after=config.reset_after, **options
    )


class Encoder(nn.Module):
    """A sequence to its final state."""

    def __init__(self, config: ModelConfig, **factory: Any) -> None:
        super().__init__()
        self.rnn = _recurrent(config, config.height * config.width, factory)

    def forward(self, frames: Tensor | Moments) -> Any:
        """(T, B, height, width) -> the state of `spgru.GRU` or `spgru.LSTM`"""
        _, state = self.rnn(flatten(frames))
        return state


class Decoder(nn.Module):
    """A state to the logits of a sequence.

    Without feedback there is no input. The recurrent layer wants one, so it gets a single feature
    that is 0, whose product costs nothing; the weights of that feature take no part in anything.
    """

    def __init__(self, config: ModelConfig, **factory: Any) -> None:
        super().__init__()
        self.feedback, self.rule = config.feeds_back, config.rule
        self.height, self.width = config.height, config.width
        pixels = config.height * config.width
        self.rnn = _recurrent(config, pixels if self.feedback else 1, factory)
        self.readout = Linear(
            config.hidden_size, pixels, rule=config.rule, weight_std=config.weight_std, **factory
        )

    def forward(self, state: Any, steps: int, first: Tensor | Moments) -> Moments:
        """The logits of `steps` frames, (steps, B, height, width).

        Args:
            state: of the encoder
            first: (B, height, width), the frame before the first one, read with feedback only
        """
        if self.feedback:
            return self._feed_back(state, steps, first)
        nothing = torch.zeros(steps, first.shape[0], 1, dtype=first.dtype, device=first.device)
        return self._read_out(self.rnn(nothing, state)[0])

    def read(self, frames: Tensor | Moments) -> tuple[Moments, Any]:
        """With feedback: the logits of the frame after each of (T, B, height, width), the state."""
        hidden, state = self.rnn(flatten(frames))
        return self._read_out(hidden), state

    def _read_out(self, hidden: Moments) -> Moments:
        """(*batch, H) -> (*batch, height, width)"""
        pixels: Moments = self.readout(hidden)
        return pixels.reshape(*hidden.shape[:-1], self.height, self.width)

    def _feed_back(self, state: Any, steps: int, frame: Tensor | Moments) -> Moments:
        outputs: list[Moments] = []
        dtype = frame.dtype
        with shared_weights(self):
            for _ in range(steps):
                hidden, state = self.rnn.step(flatten(frame), state)
                outputs.append(logits := self._read_out(hidden))
                # Under autocast the product comes back in 16 bits.
                frame = sigmoid(logits, self.rule).to(dtype)
        return stack(outputs)
