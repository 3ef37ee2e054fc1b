"""`convert`: a trained network of `torch.nn` becomes one with random weights, and the same mean.

`laplace` finds the variances of the weights from data, without training.
"""

from spgru.conversion.convert import convert
from spgru.conversion.laplace import Laplace, laplace

__all__ = ["Laplace", "convert", "laplace"]
