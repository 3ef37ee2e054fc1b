"""The kernels of GRU, LSTM and RNN in Triton, by the name of the cell."""

from spgru.recurrent.kernels.triton import gru, lstm, rnn

__all__ = ["KERNELS"]

KERNELS = {"gru": gru.KERNELS, "lstm": lstm.KERNELS, "rnn": rnn.KERNELS}
