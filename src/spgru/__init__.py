"""Recurrent networks that know what they do not know, in one pass and without sampling."""

from spgru import families, functional, metrics, nn
from spgru.audit import Report, audit
from spgru.calibration import (
    CalibrationReport,
    calibrate,
    load_calibration,
    uncalibrate,
    uncalibrated,
)
from spgru.checks import set_value_checks
from spgru.divergence import kl_divergence
from spgru.families import Prior
from spgru.moments import (
    Moments,
    cat,
    certain,
    pack_padded_moments,
    pad_packed_moments,
    stack,
)
from spgru.nn import GRU, LSTM, RNN, Conv2d, GRUCell, Linear, LSTMCell, RNNCell
from spgru.nn.contexts import frozen
from spgru.nn.recordings import set_cuda_graphs
from spgru.nn.weight import parameter_groups
from spgru.response import Stream, respond
from spgru.tracing import Trace, trace

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CalibrationReport",
    "Conv2d",
    "GRUCell",
    "LSTMCell",
    "Linear",
    "Moments",
    "Prior",
    "RNNCell",
    "Report",
    "Stream",
    "Trace",
    "audit",
    "calibrate",
    "cat",
    "certain",
    "families",
    "frozen",
    "functional",
    "kl_divergence",
    "load_calibration",
    "metrics",
    "nn",
    "pack_padded_moments",
    "pad_packed_moments",
    "parameter_groups",
    "respond",
    "set_cuda_graphs",
    "set_value_checks",
    "stack",
    "trace",
    "uncalibrate",
    "uncalibrated",
]
