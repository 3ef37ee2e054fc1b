"""MNIST, and Moving MNIST by the official protocol: the same sequences on every device.

Imported on demand (`import spgru.data`); `import spgru` leaves it alone.
"""

from spgru.data.datasets import MovingMNISTIterable
from spgru.data.evaluation import MovingMNISTTest
from spgru.data.layout import Layout, Protocol
from spgru.data.mnist import MNIST, load_mnist
from spgru.data.moving_mnist import MovingMNIST

__all__ = [
    "MNIST",
    "Layout",
    "MovingMNIST",
    "MovingMNISTIterable",
    "MovingMNISTTest",
    "Protocol",
    "load_mnist",
]
