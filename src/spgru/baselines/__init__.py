"""What the models are measured against: sampling, a state-space model, and no uncertainty at all.

Imported on demand (`import spgru.baselines`); `import spgru` leaves it alone. All are trained by
`loss(frames, objective)` and asked by `predict(frames)` like the models of `spgru.models`.
"""

from spgru.baselines.deep_markov import DeepMarkovModel
from spgru.baselines.deterministic import Deterministic
from spgru.baselines.mc_dropout import MCDropoutGRU, MCDropoutLSTM

__all__ = ["DeepMarkovModel", "Deterministic", "MCDropoutGRU", "MCDropoutLSTM"]
