"""Recurrent steps and their repetition along time: the reference, and kernels equal to it."""

from spgru.recurrent.backend import BACKENDS, Backend, Scan, make_gru_step, run_gru
from spgru.recurrent.gru import gru_step, gru_step_reset_before
from spgru.recurrent.lstm import lstm_step
from spgru.recurrent.rnn import rnn_step
from spgru.recurrent.scan import Neurons, scan

__all__ = [
    "BACKENDS", "Backend", "Neurons", "Scan", "gru_step", "gru_step_reset_before", "lstm_step",
    "make_gru_step", "rnn_step", "run_gru", "scan",
]  # fmt: skip
