"""Functions from moments to moments: the reference mathematics.

Each accepts `Moments` or plain tensors and answers in kind, so the same equations run on
distributions and on draws from them.
"""

from spgru.functional.activation import Rule, relu, sigmoid, tanh
from spgru.functional.algebra import add, dropout, lerp, product, sum
from spgru.functional.linear import Affine, conv2d, linear
from spgru.functional.saturating import gamma_activation, poisson_activation

__all__ = [
    "Affine",
    "Rule",
    "add",
    "conv2d",
    "dropout",
    "gamma_activation",
    "lerp",
    "linear",
    "poisson_activation",
    "product",
    "relu",
    "sigmoid",
    "sum",
    "tanh",
]
