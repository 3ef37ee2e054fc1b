"""Which models can be trained: those of `spgru.models`, and the baselines beside them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from spgru import baselines, models
from spgru.models import ModelConfig
from spgru.models.config import CellName

__all__ = [
    "AnyModelConfig",
    "DeepMarkovConfig",
    "DeterministicConfig",
    "DropoutConfig",
    "make_model",
]


@dataclass(frozen=True)
class DeterministicConfig:
    """See `spgru.baselines.Deterministic`."""

    kind: Literal["deterministic"] = "deterministic"
    hidden_size: int = 1024
    num_layers: int = 1
    cell: CellName = "gru"
    initial_logit: float = 0.0
    height: int = 64
    width: int = 64


@dataclass(frozen=True)
class DropoutConfig:
    """See `spgru.baselines.MCDropoutLSTM`."""

    kind: Literal["mc_dropout_gru", "mc_dropout_lstm"] = "mc_dropout_lstm"
    hidden_size: int = 1024
    num_layers: int = 1
    dropout: float = 0.2
    recurrent_dropout: bool = True
    initial_logit: float = 0.0
    height: int = 64
    width: int = 64


@dataclass(frozen=True)
class DeepMarkovConfig:
    """See `spgru.baselines.DeepMarkovModel`."""

    kind: Literal["deep_markov"] = "deep_markov"
    state_size: int = 100
    hidden_size: int = 1024
    cell: CellName = "lstm"
    anneal_steps: int = 1000
    anneal_from: float = 0.01
    initial_logit: float = 0.0
    height: int = 64
    width: int = 64


AnyModelConfig = ModelConfig | DeterministicConfig | DropoutConfig | DeepMarkovConfig

_BASELINES: dict[str, type[nn.Module]] = {
    "deterministic": baselines.Deterministic,
    "mc_dropout_gru": baselines.MCDropoutGRU,
    "mc_dropout_lstm": baselines.MCDropoutLSTM,
    "deep_markov": baselines.DeepMarkovModel,
}


def make_model(config: AnyModelConfig) -> Any:
    """The model or baseline that `config` describes, on the CPU in float32."""
    if isinstance(config, ModelConfig):
        return models.build(config)
    options = dataclasses.asdict(config)
    return _BASELINES[options.pop("kind")](**options)
