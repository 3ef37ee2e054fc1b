"""Layers with the signatures of `torch.nn` and random weights."""

from spgru.nn.conv import Conv1d, Conv2d
from spgru.nn.embedding import Embedding
from spgru.nn.gaussian_head import GaussianHead, with_noise
from spgru.nn.gru import GRU, GRUCell
from spgru.nn.layer import Layer
from spgru.nn.layer_norm import LayerNorm
from spgru.nn.linear import Linear
from spgru.nn.lstm import LSTM, LSTMCell
from spgru.nn.rnn import RNN, RNNCell
from spgru.nn.weight import Weight

__all__ = [
    "GRU", "LSTM", "RNN", "Conv1d", "Conv2d", "Embedding", "GRUCell", "GaussianHead", "LSTMCell",
    "Layer", "LayerNorm", "Linear", "RNNCell", "Weight", "with_noise",
]  # fmt: skip
