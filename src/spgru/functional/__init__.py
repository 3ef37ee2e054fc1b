"""Functions from moments to moments: the reference mathematics.

Each accepts `Moments` or plain tensors and answers in kind, so the same equations run on
distributions and on draws from them.

The functions here check their arguments. Those of the same name in the modules of this package do
not: layers check once what enters them and call those.
"""

from spgru.functional import torch_rules as torch_rules  # registers them with Moments
from spgru.functional.activation import Rule
from spgru.functional.checked import (
    add,
    batch_norm,
    clamp,
    conv1d,
    conv2d,
    dropout,
    elu,
    exp,
    gamma_activation,
    gelu,
    layer_norm,
    leaky_relu,
    lerp,
    linear,
    matmul,
    mean,
    poisson_activation,
    product,
    relu,
    sigmoid,
    silu,
    softplus,
    square,
    sum,
    tanh,
)
from spgru.functional.linear import Affine

__all__ = [
    "Affine",
    "Rule",
    "add",
    "batch_norm",
    "clamp",
    "conv1d",
    "conv2d",
    "dropout",
    "elu",
    "exp",
    "gamma_activation",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "lerp",
    "linear",
    "matmul",
    "mean",
    "poisson_activation",
    "product",
    "relu",
    "sigmoid",
    "silu",
    "softplus",
    "square",
    "sum",
    "tanh",
]
