"""Layers with the signatures of `torch.nn` and random weights."""

from spgru.nn.gru import GRU, GRUCell
from spgru.nn.layer import Layer
from spgru.nn.linear import Conv2d, Linear
from spgru.nn.lstm import LSTM, LSTMCell
from spgru.nn.rnn import RNN, RNNCell
from spgru.nn.weight import Weight

__all__ = [
    "GRU", "LSTM", "RNN", "Conv2d", "GRUCell", "LSTMCell", "Layer", "Linear", "RNNCell", "Weight",
]  # fmt: skip
