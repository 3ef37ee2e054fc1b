from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from spgru.data import MovingMNIST, MovingMNISTIterable, MovingMNISTTest


def source(**options) -> MovingMNIST:
    return MovingMNIST(3, split="test", frames=2, noise=0.2, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_the_batches_in_order_for_any_number_of_workers(workers):
    data = source()
    data.position = 4
    loader = DataLoader(MovingMNISTIterable(data), batch_size=3, num_workers=workers)
    for k, batch in enumerate(islice(loader, 5), start=4):
        assert torch.equal(batch, data.batch(k).transpose(0, 1))
    assert data.position == 4


def test_workers_never_share_a_sequence_when_batch_sizes_differ():
    loader = DataLoader(MovingMNISTIterable(source()), batch_size=2, num_workers=2)
    drawn = torch.cat(list(islice(loader, 8))).flatten(1)
    assert len(drawn.unique(dim=0)) == len(drawn) == 16


def test_ranks_never_share_a_sequence():
    parts = [source(rank=rank, world_size=2) for rank in range(2)]
    drawn = [torch.stack(list(islice(MovingMNISTIterable(part), 12))) for part in parts]
    assert len(torch.cat(drawn).flatten(1).unique(dim=0)) == 24


def test_test_set_in_a_loader():
    data = MovingMNISTTest()
    loader = DataLoader(Subset(data, range(7)), batch_size=4, num_workers=1)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 3]
    expected = data.sequences(0, 7).transpose(0, 1).float() / 255
    assert torch.equal(torch.cat(batches), expected)


def test_source_must_be_moving_mnist():
    with pytest.raises(TypeError, match=r"source is list; pass a MovingMNIST"):
        MovingMNISTIterable([])
