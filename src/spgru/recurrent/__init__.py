"""Recurrent steps and their repetition along time: the reference."""

from spgru.recurrent.gru import gru_step, gru_step_reset_before
from spgru.recurrent.lstm import lstm_step
from spgru.recurrent.rnn import rnn_step
from spgru.recurrent.scan import Neurons, scan

__all__ = ["Neurons", "gru_step", "gru_step_reset_before", "lstm_step", "rnn_step", "scan"]
