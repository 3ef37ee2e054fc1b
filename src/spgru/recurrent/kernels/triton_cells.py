"""GRU, LSTM and RNN in Triton for `spgru.recurrent.kernels.scan`."""

from spgru.recurrent.kernels.gru import GRU
from spgru.recurrent.kernels.lstm import LSTM
from spgru.recurrent.kernels.rnn import RNN

__all__ = ["GRU", "LSTM", "RNN"]
