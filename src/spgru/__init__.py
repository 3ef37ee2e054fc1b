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
from spgru.conversion import Laplace, convert, laplace
from spgru.divergence import kl_divergence
from spgru.families import Prior
from spgru.losses import loss
from spgru.moments import (
    Moments,
    cat,
    certain,
    pack_padded_moments,
    pad_packed_moments,
    stack,
)
from spgru.nn import (
    GRU,
    LSTM,
    RNN,
    Conv1d,
    Conv2d,
    Embedding,
    GaussianHead,
    GRUCell,
    LayerNorm,
    Linear,
    LSTMCell,
    RNNCell,
)
from spgru.nn.contexts import at_mean, frozen, sampling
from spgru.nn.recordings import set_cuda_graphs
from spgru.nn.weight import parameter_groups
from spgru.onnx_export import to_onnx
from spgru.pretrained import from_pretrained, save_pretrained
from spgru.response import Stream, consistent_gain, respond
from spgru.tracing import Trace, trace

__version__ = "0.2.0"

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CalibrationReport",
    "Conv1d",
    "Conv2d",
    "Embedding",
    "GRUCell",
    "GaussianHead",
    "LSTMCell",
    "Laplace",
    "LayerNorm",
    "Linear",
    "Moments",
    "Prior",
    "RNNCell",
    "Report",
    "Stream",
    "Trace",
    "at_mean",
    "audit",
    "calibrate",
    "cat",
    "certain",
    "consistent_gain",
    "convert",
    "families",
    "from_pretrained",
    "frozen",
    "functional",
    "kl_divergence",
    "laplace",
    "load_calibration",
    "loss",
    "metrics",
    "nn",
    "pack_padded_moments",
    "pad_packed_moments",
    "parameter_groups",
    "respond",
    "sampling",
    "save_pretrained",
    "set_cuda_graphs",
    "set_value_checks",
    "stack",
    "to_onnx",
    "trace",
    "uncalibrate",
    "uncalibrated",
]
