"""Several processes as one: started by torchrun, each with its part of every batch.

    torchrun --nproc-per-node=2 --max-restarts=3 -m spgru train CONFIG.yaml
    torchrun --nproc-per-node=2 fit.py           # one that calls Forecaster.fit

`batch_size` is that of all processes together, and every process takes its contiguous part. Losses
are means over a batch plus one divergence of the weights, and DistributedDataParallel averages
gradients, so the divergence counts once, and the run is that of a single process up to rounding.
The baselines that draw random numbers (Monte Carlo dropout, deep Markov model) draw others in each
process. The objective "paper" compares with the variance of the target over the batch, which no
process has whole, and is refused. Process 0 alone reads and writes files. When a process dies
torchrun starts all of them again, and they continue from the last checkpoint; a `Forecaster` has
none and fits anew.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from spgru.runtime.device import choose_device
from spgru.runtime.errors import ConfigError

__all__ = ["ALONE", "Processes", "is_first_process", "processes"]

_PATIENCE = 300.0
"""Seconds to wait for the other processes: importing torch on a busy machine may take a minute."""


@dataclass(frozen=True)
class Processes:
    """This process among its peers; alone unless torchrun started it."""

    rank: int
    count: int
    device: torch.device
    restarted: bool
    """whether torchrun started it again after a failure"""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, count: int) -> slice:
        """This process's part of so many things in a row; parts differ by one at most."""
        return slice(count * self.rank // self.count, count * (self.rank + 1) // self.count)

    def share(self, batch_size: int) -> int:
        """This process's part of a joint batch."""
        if batch_size % self.count:
            raise ConfigError(
                f"batch_size is {batch_size}, which {self.count} processes cannot share evenly; "
                f"give a multiple of {self.count}"
            )
        return batch_size // self.count

    def wrap(self, module: nn.Module, some_unused: bool = False) -> nn.Module:
        """The module with gradients averaged over the processes.

        Args:
            some_unused: whether some parameters take no part in its output
        """
        if self.count == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(
            module, devices, gradient_as_bucket_view=True, find_unused_parameters=some_unused
        )

    def mean(self, values: Tensor) -> Tensor:
        """Of the processes' values."""
        if self.count == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.count

    def largest(self, value: int) -> int:
        """Of the processes' values; the host waits."""
        if self.count == 1:
            return value
        tensor = torch.tensor(value, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def require_equal(self, value: int, what: str) -> None:
        """Refuse what differs between the processes, in all of them."""
        if self.largest(value) != -self.largest(-value):
            raise ValueError(f"{what} differs between the processes; give all of them the same")

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite with the values of process 0."""
        if self.count > 1:
            for tensor in tensors:
                on_device = tensor.detach().to(self.device)
                dist.broadcast(on_device, 0)
                tensor.detach().copy_(on_device)


ALONE = Processes(0, 1, torch.device("cpu"), False)


def is_first_process() -> bool:
    """Whether this process is to write and print: all but one of those that torchrun started are
    not."""
    return int(os.environ.get("RANK", "0")) == 0 if "WORLD_SIZE" in os.environ else True


def _join(backend: str) -> None:
    """`init_process_group` that also works after a restart.

    torchrun keeps one key-value store for all attempts, so a restarted process may read the address
    of a peer that has died. Every attempt therefore gets a prefix of its own in the store.
    """
    store, rank, count = next(rendezvous("env://"))
    store = PrefixStore(f"spgru/{_agree_on_attempt(store, rank, count)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)


def _agree_on_attempt(store: Store, rank: int, count: int) -> str:
    """A name for this attempt that process 0 has just drawn.

    Every other process asks under a random number, so that it cannot get an answer that was meant
    for an earlier attempt. Process 0 may see a question of an earlier attempt and answer it to no
    effect; it repeats until every process has confirmed this attempt's name.
    """
    if rank > 0:
        number = uuid4().hex
        store.set(f"spgru/asks/{rank}", number)
        name: str = store.get(f"spgru/answer/{number}").decode()
        store.set(f"spgru/confirms/{name}/{rank}", "")
        return name
    name, missing = uuid4().hex, set(range(1, count))
    deadline = time.monotonic() + _PATIENCE
    while missing:
        for other in tuple(missing):
            if store.check([f"spgru/confirms/{name}/{other}"]):
                missing.remove(other)
            elif store.check([f"spgru/asks/{other}"]):
                store.set(f"spgru/answer/{store.get(f'spgru/asks/{other}').decode()}", name)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {sorted(missing)} did not start within {_PATIENCE} s")
        time.sleep(0.01)
    return name


@contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, or be alone; a group that exists is used.

    Args:
        device: see `TrainConfig`; with torchrun, "cuda" is the GPU of the local rank
    """
    launched = "WORLD_SIZE" in os.environ
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if launched else None
    chosen = choose_device(device, local_rank)
    on_gpu = chosen.type == "cuda"
    with torch.cuda.device(chosen) if on_gpu else nullcontext():
        if not launched:
            yield Processes(0, 1, chosen, False)
            return
        if dist.is_initialized():  # by the user, whose group it stays
            yield Processes(dist.get_rank(), dist.get_world_size(), chosen, False)
            return
        _join("nccl" if on_gpu else "gloo")
        try:
            restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
            yield Processes(dist.get_rank(), dist.get_world_size(), chosen, restarted)
        finally:
            # DistributedDataParallel refers to the group and is part of reference cycles. Threads
            # of gloo that still run when the interpreter exits would abort the process.
            gc.collect()
            dist.destroy_process_group()
