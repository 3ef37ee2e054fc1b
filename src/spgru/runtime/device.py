"""Choosing a device, and waiting for it."""

from __future__ import annotations

import torch

from spgru.runtime.errors import ConfigError

__all__ = ["GRAPH_WARMUP", "choose_device", "synchronize"]

GRAPH_WARMUP = 3
"""Calls before a CUDA graph is captured: what libraries set up at a first call must not be in it.
Three is what torch's own examples take."""


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one, else the CPU.

    Args:
        local_rank: number of this process on its machine; "cuda" is then the GPU of that number
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; give auto, cpu, cuda or cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; give auto, cpu, cuda or cuda:1")
    if device.type == "cpu":
        return device
    available = torch.cuda.device_count()
    index = device.index if local_rank is None or device.index is not None else local_rank
    index = 0 if index is None else index
    if index >= available:
        raise ConfigError(
            f"device is {name!r} and GPU number {index} is asked for, but there are {available}; "
            "set device to cpu or start fewer processes"
        )
    return torch.device("cuda", index)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; a CPU has when a call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
