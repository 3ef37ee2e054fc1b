"""Monte Carlo dropout (Gal and Ghahramani, 2016): uncertainty by running many thinned networks.

A draw is a network with units removed at random; the same units are missing at every time step.
Every draw of every sequence has its own masks, and all of them run together as one large batch.
"""

from __future__ import annotations

from abc import ABC
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.baselines.common import (
    certain_frames,
    certain_loss,
    check_draws,
    moments_over_draws,
    shift,
    to_frames,
)
from spgru.families import Gaussian
from spgru.models.frames import split_halves
from spgru.moments import Moments
from spgru.objectives import Loss, Objective
from spgru.recurrent import gru_step, lstm_step, scan

__all__ = ["MCDropoutGRU", "MCDropoutLSTM", "Masks"]


class Masks(NamedTuple):
    """What one draw removes: 0, or 1 / (1 - p) to keep the mean. N = draws * B, draws first."""

    encoder_inputs: tuple[Tensor, ...]
    """per layer, (N, inputs)"""
    encoder_states: tuple[Tensor, ...]
    """per layer, (N, H)"""
    decoder_inputs: tuple[Tensor, ...]
    """per layer but the first, which has no input, (N, H)"""
    decoder_states: tuple[Tensor, ...]
    """per layer, (N, H)"""
    output: Tensor
    """(N, H), between the decoder and the readout"""


class _MCDropout(nn.Module, ABC):
    """Encoder, unconditioned decoder and readout, thinned by masks that are constant over time.

    Where the masks act:

    - on the input of every layer and on the input of the readout, always;
    - with `recurrent_dropout` on the state in every product with the recurrent weights, as Gal and
      Ghahramani have it (one mask for all gates; the state itself is carried on whole). The steps
      then run one by one.
    - without it on the state the encoder hands to the decoder only, because the fused layers of
      `torch.nn` and cuDNN leave no place for a mask inside. This is the fastest form: the one to
      beat in a comparison of speed.

    Masks are drawn in training and evaluation alike: the method is to sample.

    Args:
        hidden_size: units of a layer
        num_layers: layers of encoder and decoder
        dropout: p, the probability that a unit is missing
        recurrent_dropout: see above
        initial_logit: added to the last bias at the start, see `spgru.models.ModelConfig`
        height: of a frame
        width: of a frame
    """

    cell: ClassVar[Any]
    """`torch.nn.GRU` or `torch.nn.LSTM`"""

    def __init__(
        self,
        hidden_size: int = 1024,
        num_layers: int = 1,
        dropout: float = 0.2,
        recurrent_dropout: bool = True,
        *,
        initial_logit: float = 0.0,
        height: int = 64,
        width: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.dropout, self.recurrent_dropout = dropout, recurrent_dropout
        self.height, self.width = height, width
        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        def layers(inputs: int) -> nn.ModuleList:
            # One module per layer, so that masks can act between them.
            sizes = [inputs] + [hidden_size] * (num_layers - 1)
            return nn.ModuleList(type(self).cell(size, hidden_size, **factory) for size in sizes)

        self.encoder = layers(height * width)
        # Unconditioned: the one input there must be is 0.
        self.decoder = layers(1)
        self.readout = nn.Linear(hidden_size, height * width, **factory)
        shift(self.readout.bias, initial_logit)

    def draw_masks(self, count: int, generator: torch.Generator | None = None) -> Masks:
        """Fresh masks for `count` = draws * B networks."""
        like, remaining = self.readout.weight, 1 - self.dropout

        def draw(size: int) -> Tensor:
            mask = torch.empty(count, size, dtype=like.dtype, device=like.device)
            return mask.bernoulli_(remaining, generator=generator).div_(remaining)

        hidden, depth = self.hidden_size, self.num_layers
        between = [hidden] * (depth - 1)
        return Masks(
            tuple(draw(size) for size in (self.height * self.width, *between)),
            tuple(draw(hidden) for _ in range(depth)),
            tuple(draw(size) for size in between),
            tuple(draw(hidden) for _ in range(depth)),
            draw(hidden),
        )

    def forward(self, frames: Tensor, masks: Masks, steps: int | None = None) -> Tensor:
        """Logits under given masks.

        Args:
            frames: (T, B, height, width)
            masks: for N = draws * B networks
            steps: how many frames to predict; None for as many as were seen

        Returns:
            (steps, N, height, width), draws before sequences: entry d * B + b
        """
        pixels = certain_frames(frames, self.height, self.width)
        steps = len(pixels) if steps is None else steps
        batch = pixels.shape[1]
        # Masked while folding, so that the draws are never copied unmasked.
        first = masks.encoder_inputs[0].reshape(-1, batch, pixels.shape[2])
        x = (pixels.unsqueeze(1) * first).flatten(1, 2)
        states = []
        for k, layer in enumerate(self.encoder):
            x = x * masks.encoder_inputs[k] if k else x
            x, state = self._run(layer, x, None, masks.encoder_states[k])
            states.append(state)
        x = x.new_zeros(steps, x.shape[1], 1)
        for k, layer in enumerate(self.decoder):
            x = x * masks.decoder_inputs[k - 1] if k else x
            x, _ = self._run(layer, x, states[k], masks.decoder_states[k])
        return to_frames(self.readout(x * masks.output), self.height, self.width)

    def _run(self, layer: Any, x: Tensor, state: Any, mask: Tensor) -> tuple[Tensor, Any]:
        """One layer along time: its outputs, and its state as a tuple of (N, H)."""
        if not self.recurrent_dropout:
            if state is not None:
                h, *cell = state
                handed = [part.unsqueeze(0) for part in (h * mask, *cell)]
                state = tuple(handed) if cell else handed[0]
            output, final = layer(x, state)
            finals = final if isinstance(final, tuple) else (final,)
            return output, tuple(part.squeeze(0) for part in finals)
        count = 2 if isinstance(layer, nn.LSTM) else 1
        if state is None:
            state = (x.new_zeros(x.shape[1], self.hidden_size),) * count

        # Under autocast products come back in 16 bits; the state keeps the precision of x.
        def hidden(h: Tensor) -> Tensor:
            return F.linear(h * mask, layer.weight_hh_l0, layer.bias_hh_l0).to(x.dtype)

        options: dict[str, Any] = {"hidden": hidden, "family": Gaussian(), "rule": "exact"}
        step: Any = (
            partial(lstm_step, projection=None, **options)
            if isinstance(layer, nn.LSTM)
            else partial(gru_step, **options)
        )
        inputs = F.linear(x, layer.weight_ih_l0, layer.bias_ih_l0).to(x.dtype)
        output, final, _ = scan(step, inputs, state)
        return output, final

    @torch.no_grad()
    def predict(
        self,
        frames: Tensor,
        steps: int | None = None,
        draws: int = 50,
        generator: torch.Generator | None = None,
    ) -> Moments:
        """Pixels of the frames after these, (steps, B, height, width).

        Mean and unbiased variance of sigmoid(logit) over the draws: the same quantity as the
        variance of `spgru.models`, with a relative error of about sqrt(2 / draws).

        Args:
            frames: (T, B, height, width)
            steps: how many; None for as many as were seen
            draws: networks drawn for every sequence
            generator: of the masks, on the model's device; None for torch's own
        """
        check_draws(draws)
        masks = self.draw_masks(draws * frames.shape[1], generator)
        return moments_over_draws(self(frames, masks, steps), draws, frames.dtype)

    def loss(self, frames: Tensor, objective: Objective) -> Loss:
        """What to minimise, with one draw per sequence.

        Args:
            frames: (2 T, B, height, width) in [0, 1]; the first half is the input
        """
        seen, future = split_halves(frames, self.height, self.width)
        return certain_loss(self(seen, self.draw_masks(seen.shape[1])), future, objective)


class MCDropoutGRU(_MCDropout):
    cell = nn.GRU
    __doc__ = _MCDropout.__doc__


class MCDropoutLSTM(_MCDropout):
    cell = nn.LSTM
    __doc__ = _MCDropout.__doc__
