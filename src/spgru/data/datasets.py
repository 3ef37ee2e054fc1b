"""Moving MNIST for a `torch.utils.data.DataLoader`.

The test set is a map-style dataset itself, see `spgru.data.MovingMNISTTest`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from spgru.data.moving_mnist import MovingMNIST

__all__ = ["MovingMNISTIterable"]


class MovingMNISTIterable(IterableDataset[Tensor]):
    """Endless single sequences (T, 64, 64) of a `MovingMNIST`, from its position on.

    Among W workers of a `DataLoader`, worker w makes the batches w, w + W, w + 2 W and so on of the
    source, so no sequence comes twice. With the loader's `batch_size` equal to the source's, the
    loader's batches are the source's in its order, for any number of workers, as (B, T, 64, 64).

    The source's position is read, not moved: it belongs to the main process, which the workers
    cannot reach. To resume, set it to the number of batches consumed and start a new iteration.

    Args:
        source: on the CPU if workers are used.
    """

    def __init__(self, source: MovingMNIST) -> None:
        if not isinstance(source, MovingMNIST):
            raise TypeError(f"source is {type(source).__name__}; pass a MovingMNIST")
        self.source = source

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        if worker is None:
            first, stride = 0, 1
        else:
            first, stride = worker.id, worker.num_workers
            if self.source.device.type != "cpu":
                raise ValueError(
                    f"source renders on {self.source.device}, which worker processes cannot use; "
                    'build it with device="cpu" or set num_workers=0'
                )
        k = self.source.position + first
        while True:
            yield from self.source.batch(k).unbind(1)
            k += stride
