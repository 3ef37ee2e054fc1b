"""Recurrent steps and their repetition along time: the reference, and kernels equal to it."""

from spgru.recurrent.backend import BACKENDS, Backend, Choice, explain, run
from spgru.recurrent.cell import Cell, gru_cell, lstm_cell, rnn_cell
from spgru.recurrent.gru import gru_step, gru_step_reset_before, make_gru_step
from spgru.recurrent.lstm import lstm_step
from spgru.recurrent.rnn import rnn_step
from spgru.recurrent.scan import Neurons, Trajectory, scan
from spgru.recurrent.streaming import single_step

__all__ = [
    "BACKENDS", "Backend", "Cell", "Choice", "Neurons", "Trajectory", "explain", "gru_cell",
    "gru_step", "gru_step_reset_before", "lstm_cell", "lstm_step", "make_gru_step", "rnn_cell",
    "rnn_step", "run", "scan", "single_step",
]  # fmt: skip
