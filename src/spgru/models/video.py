"""`Predictor`, `Autoencoder`, `Composite`, `NextFrame`: frames in, frames out."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from spgru.functional import sigmoid
from spgru.models import convolutional, fully_connected
from spgru.models.config import Kind, ModelConfig
from spgru.models.frames import check_frames, split_halves
from spgru.moments import Moments, cat
from spgru.nn import Layer
from spgru.nn.contexts import shared_weights
from spgru.nn.output_scale import OutputScale, with_plain_mean
from spgru.nn.replay import replayed_module
from spgru.objectives import Loss, Objective

__all__ = [
    "Autoencoder", "Composite", "NextFrame", "Prediction", "Predictor", "VideoModel", "build",
]  # fmt: skip


class Prediction(NamedTuple):
    """Logits of frames, (T, B, height, width); None for a sequence without a decoder."""

    future: Moments | None
    """oldest first"""
    reconstruction: Moments | None
    """newest first"""


class VideoModel(nn.Module, ABC):
    """Base of the models: mostly an encoder, and a decoder for each sequence of its output.

    The encoder's final state, mean and variance, is where a decoder starts, so uncertainty about
    the past travels into the future.

    Args:
        config: what to build; its `kind` is that of the class, and `spgru.models.build` chooses the
            class by it
    """

    kind: Kind
    gives: tuple[str, ...]
    """Names of the decoders."""

    def __init__(
        self,
        config: ModelConfig | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        if fields or not isinstance(config, ModelConfig):
            found = ", ".join(fields) or type(config).__name__
            raise TypeError(
                f"{type(self).__name__} takes a ModelConfig, got {found}; write "
                f"{type(self).__name__}(ModelConfig(kind={self.kind!r}, hidden_size=64))"
            )
        if config.kind != self.kind:
            raise ValueError(
                f"config.kind is {config.kind!r}, which {type(self).__name__} is not; pass "
                f"kind={self.kind!r}, or call spgru.models.build(config)"
            )
        self.config = config
        parts: Any = convolutional if config.architecture == "convolutional" else fully_connected
        factory = {"device": device, "dtype": dtype}
        self._add_parts(parts, factory)
        self.pixel_scale = OutputScale()
        """of the pixels' variance; see `spgru.calibrate`"""
        self._darken()

    def _add_parts(self, parts: Any, factory: dict[str, Any]) -> None:
        self.encoder = parts.Encoder(self.config, **factory)
        for name in self.gives:
            self.register_module(name, parts.Decoder(self.config, **factory))

    @torch.no_grad()
    def _darken(self) -> None:
        """Add `initial_logit` to the biases of the readouts."""
        for name in self.gives:
            self.get_parameter(f"{name}.readout.bias").add_(self.config.initial_logit)

    def pretrained_config(self) -> dict[str, Any]:
        """The configuration as plain values, for `spgru.save_pretrained`."""
        return asdict(self.config)

    @classmethod
    def from_pretrained_config(cls, config: Mapping[str, Any]) -> Self:
        """The model of this configuration."""
        return cls(ModelConfig(**config))

    def reset_parameters(self) -> None:
        """Draw all weights anew, as the constructor did, `initial_logit` included."""
        for module in self.modules():
            if isinstance(module, Layer):
                module.reset_parameters()
        self.pixel_scale.set_(None)
        self._darken()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        self.pixel_scale.before_loading(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def forward(self, frames: Tensor | Moments, steps: int | None = None) -> Prediction:
        """Logits of the frames that follow, of the given ones, or of both.

        Args:
            frames: (T, B, height, width), Tensor or Moments
            steps: how many frames to predict; None for as many as were seen
        """
        check_frames("frames", frames, self.config.height, self.config.width)
        if steps is None:
            steps = frames.shape[0]
        elif "future" not in self.gives:
            raise ValueError(
                f"steps has no meaning for {type(self).__name__}, which only reconstructs"
            )
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        return self._predict(frames, steps)

    def _predict(self, frames: Tensor | Moments, steps: int) -> Prediction:
        state = self.encoder(frames)
        future = reconstruction = None
        last = frames[-1]
        if "future" in self.gives:
            future = self.get_submodule("future")(state, steps, last)
        if "reconstruction" in self.gives:
            # With feedback it starts from an empty frame, since the last one is its first target.
            empty = torch.zeros(last.shape, dtype=last.dtype, device=last.device)
            reconstruction = self.get_submodule("reconstruction")(state, frames.shape[0], empty)
        return Prediction(future, reconstruction)

    @torch.no_grad()
    def predict_logits(self, frames: Tensor | Moments, steps: int | None = None) -> Moments:
        """Logits of the frames after these, or of these in reverse order from an autoencoder."""
        future, reconstruction = self(frames, steps)
        logits: Moments = reconstruction if future is None else future
        return logits.to(frames.dtype)  # under autocast they come in 16 bits

    @torch.no_grad()
    def predict(self, frames: Tensor | Moments, steps: int | None = None) -> Moments:
        """Pixels of the frames after these, or of these in reverse order from an autoencoder.

        The variance is that of sigmoid(logit): how little the network knows the brightness, without
        the Bernoulli noise mean (1 - mean) of a pixel that is either on or off.

        Args:
            frames: (T, B, height, width), Tensor or Moments
            steps: how many frames to predict; None for as many as were seen

        Returns:
            (steps, B, height, width)
        """
        return replayed_module(self, lambda x: self._predict_pixels(x, steps), frames, steps)

    def _predict_pixels(self, frames: Tensor | Moments, steps: int | None) -> Moments:
        return self._pixels(lambda: self.predict_logits(frames, steps))

    def calibration_output(self, frames: Tensor | Moments) -> Moments:
        """What `spgru.calibrate` fits: the pixels of `predict`, with gradients."""

        def run() -> Moments:
            future, reconstruction = self(frames)
            logits: Moments = reconstruction if future is None else future
            return logits

        return self._pixels(run)

    def _pixels(self, run: Callable[[], Moments]) -> Moments:
        """Of the logits that `run` gives, calibrated."""
        pixels: Moments = self.pixel_scale(sigmoid(run(), self.config.rule))
        if not self.pixel_scale.keeps_mean:
            return pixels
        return with_plain_mean(self, pixels, lambda: sigmoid(run(), self.config.rule))

    def loss(self, frames: Tensor, objective: Objective) -> Loss:
        """The loss to minimise.

        Args:
            frames: (2 T, B, height, width) in [0, 1]; the first half is the input, the second what
                a predictor is to give. An autoencoder uses the first half alone.
        """
        if objective.name == "elbo" and objective.beta > 0 and self.config.weight_std == 0:
            raise ValueError(
                "weight_std=0 makes the divergence from the prior infinite; "
                "use the objective 'cross_entropy' or a positive weight_std"
            )
        seen, after = split_halves(frames, self.config.height, self.config.width)
        return self._loss(seen, after, objective)

    def _loss(self, seen: Tensor, after: Tensor, objective: Objective) -> Loss:
        future, reconstruction = self(seen)
        return objective.loss(
            self,
            None if future is None else (future, after),
            None if reconstruction is None else (reconstruction, seen.flip(0)),
            self.config.rule,
        )


class Predictor(VideoModel):
    """Continues a sequence."""

    kind = "predictor"
    gives = ("future",)


class Autoencoder(VideoModel):
    """Reconstructs a sequence from one state, newest frame first."""

    kind = "autoencoder"
    gives = ("reconstruction",)


class Composite(VideoModel):
    """Continues and reconstructs a sequence from one state: two decoders over one encoder."""

    kind = "composite"
    gives = ("future", "reconstruction")


class NextFrame(VideoModel):
    """One network that predicts the next frame: of the frames it is given, then of its own.

    It is trained on every next frame, those of its input included; `loss` is their mean.
    """

    kind = "next_frame"
    gives = ("future",)

    def _add_parts(self, parts: Any, factory: dict[str, Any]) -> None:
        self.future = parts.Decoder(self.config, **factory)

    def _predict(self, frames: Tensor | Moments, steps: int) -> Prediction:
        return Prediction(self._continue(frames, steps)[-steps:], None)

    def _continue(self, frames: Tensor | Moments, steps: int) -> Moments:
        """Logits of the frames after each of these, (T + steps - 1, B, height, width)."""
        logits: Moments
        with shared_weights(self.future):
            logits, state = self.future.read(frames)
            if steps == 1:
                return logits
            first = sigmoid(logits[-1], self.config.rule).to(frames.dtype)
            rest: Moments = self.future(state, steps - 1, first)
        return cat([logits, rest])

    def _loss(self, seen: Tensor, after: Tensor, objective: Objective) -> Loss:
        logits = self._continue(seen, len(after))
        return objective.loss(self, (logits, torch.cat([seen[1:], after])), rule=self.config.rule)


def build(
    config: ModelConfig,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> VideoModel:
    """The model that `config` describes, of the class that its `kind` names."""
    if not isinstance(config, ModelConfig):
        raise TypeError(
            f"config must be a ModelConfig, got {type(config).__name__}; "
            "from a mapping build one by ModelConfig(**mapping)"
        )
    classes: tuple[type[VideoModel], ...] = (Predictor, Autoencoder, Composite, NextFrame)
    chosen = next(model for model in classes if model.kind == config.kind)
    return chosen(config, device=device, dtype=dtype)
