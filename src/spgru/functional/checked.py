"""The public functions: those of the other modules, with their arguments checked."""

from __future__ import annotations

from typing import Any

from spgru.checks import check_broadcast, checked
from spgru.functional import (
    activation,
    algebra,
    normalization,
    pooling,
    rectified,
    saturating,
    smooth,
)
from spgru.functional.linear import conv1d as unchecked_conv1d
from spgru.functional.linear import conv2d as unchecked_conv2d
from spgru.functional.linear import linear as unchecked_linear


def _check_linear(x: Any, weight: Any, bias: Any = None) -> None:
    if weight.ndim != 2:
        raise ValueError(f"weight has {weight.ndim} dimensions; pass (O, I)")
    outputs, inputs = weight.shape
    if x.ndim == 0 or x.shape[-1] != inputs:
        raise ValueError(
            f"x has shape {tuple(x.shape)} but weight {tuple(weight.shape)}; "
            f"pass x as (..., {inputs})"
        )
    if bias is not None and tuple(bias.shape) != (outputs,):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)} but weight {tuple(weight.shape)}; "
            f"pass bias as ({outputs},)"
        )


add = checked(algebra.add, check_broadcast)
product = checked(algebra.product, check_broadcast)
lerp = checked(algebra.lerp, check_broadcast)
square = checked(algebra.square)
matmul = checked(algebra.matmul)
sum = checked(algebra.sum)
mean = checked(algebra.mean)
dropout = checked(algebra.dropout)
linear = checked(unchecked_linear, _check_linear)
conv1d = checked(unchecked_conv1d)
conv2d = checked(unchecked_conv2d)
layer_norm = checked(normalization.layer_norm)
batch_norm = checked(normalization.batch_norm)
avg_pool1d = checked(pooling.avg_pool1d)
avg_pool2d = checked(pooling.avg_pool2d)
adaptive_avg_pool1d = checked(pooling.adaptive_avg_pool1d)
adaptive_avg_pool2d = checked(pooling.adaptive_avg_pool2d)

sigmoid = checked(activation.sigmoid)
tanh = checked(activation.tanh)
relu = checked(rectified.relu)
leaky_relu = checked(rectified.leaky_relu)
clamp = checked(rectified.clamp)
gelu = checked(smooth.gelu)
silu = checked(smooth.silu)
softplus = checked(smooth.softplus)
elu = checked(smooth.elu)
exp = checked(smooth.exp)
gamma_activation = checked(saturating.gamma_activation)
poisson_activation = checked(saturating.poisson_activation)
