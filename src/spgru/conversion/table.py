"""What becomes of every class of `torch.nn`."""

from __future__ import annotations

from torch import nn

from spgru.nn import (
    GRU,
    LSTM,
    RNN,
    Conv1d,
    Conv2d,
    Embedding,
    GRUCell,
    Layer,
    LayerNorm,
    Linear,
    LSTMCell,
    RNNCell,
)

__all__ = ["CONTAINERS", "LAYERS", "PASSING", "remedy_for"]

LAYERS: dict[type[nn.Module], type[Layer]] = {
    layer.torch_class: layer
    for layer in (
        Linear, Conv1d, Conv2d, Embedding, LayerNorm, GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell,
    )
}  # fmt: skip
"""Replaced by a layer with random weights."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

PASSING: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.PixelShuffle, nn.PixelUnshuffle,
    nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus,
    nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.BatchNorm1d, nn.BatchNorm2d,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ReflectionPad1d,
    nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.CircularPad1d,
    nn.CircularPad2d,
    nn.modules.loss._Loss,
)  # fmt: skip
"""Kept: torch's own code runs on Moments. (A loss is no part of a forward pass.)"""

_ELSEWHERE = "name it in keep= if Moments never reach it, or convert the parts around it"

_REMEDIES: dict[tuple[type[nn.Module], ...], str] = {
    (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder,
     nn.TransformerEncoderLayer, nn.TransformerDecoderLayer): (
        "has no closed form (a softmax of products of random values); name it in keep= if it reads "
        "the data itself, then it stays deterministic, and what follows it is converted"
    ),
    (nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin): (
        "has no closed form; return the logits, and take the softmax of their mean"
    ),
    (nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d): (
        "has no closed form; use average pooling or a convolution with a stride"
    ),
    (nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Mish, nn.SELU, nn.CELU, nn.PReLU,
     nn.Softsign, nn.GLU): (
        "has no closed form here; use ReLU, LeakyReLU, ELU, GELU, SiLU, Softplus, Sigmoid or Tanh"
    ),
    (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout): (
        "drops entries together, which moments of single entries cannot say; use nn.Dropout"
    ),
    (nn.DataParallel, nn.parallel.DistributedDataParallel): (
        "wraps a network; convert its .module, and wrap the result"
    ),
}  # fmt: skip


def remedy_for(module: nn.Module) -> str:
    """Why a module of torch cannot be converted, and what to do."""
    for kinds, remedy in _REMEDIES.items():
        if isinstance(module, kinds):
            return remedy
    if type(module).__name__ in ("OptimizedModule", "RecursiveScriptModule", "GraphModule"):
        return "is compiled or traced; convert the module it was made from"
    return f"has no rule for Moments; {_ELSEWHERE}"
