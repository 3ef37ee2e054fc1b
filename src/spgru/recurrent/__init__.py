"""Recurrent steps and their repetition along time: the reference, and kernels equal to it."""

from spgru.recurrent.backend import BACKENDS, Backend, Kernel, Scan, run
from spgru.recurrent.gru import gru_step, gru_step_reset_before, make_gru_step
from spgru.recurrent.lstm import lstm_step
from spgru.recurrent.rnn import rnn_step
from spgru.recurrent.scan import Neurons, scan

__all__ = [
    "BACKENDS", "Backend", "Kernel", "Neurons", "Scan", "gru_step", "gru_step_reset_before",
    "lstm_step", "make_gru_step", "rnn_step", "run", "scan",
]  # fmt: skip
