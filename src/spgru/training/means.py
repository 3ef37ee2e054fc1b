"""Means alone: a plain safetensors file of a network without variances, to start a training from.

Its tensors have the names of the model's parameters, or those with `.mean` added, as version 0.1
named means. It has no configuration: that of the run must fit it.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from spgru.nn.weight import is_spread
from spgru.training import checkpoint as checkpoints

__all__ = ["is_plain_file", "load_means"]


def is_plain_file(path: Path) -> bool:
    """Whether this is a safetensors file that nothing of this package wrote."""
    if not path.is_file() or path.suffix != ".safetensors" or path.with_suffix(".json").exists():
        return False
    try:
        with safe_open(path, "pt") as file:
            return not file.metadata()
    except (OSError, SafetensorError):
        return False  # whoever reads it next says what is wrong


def load_means(model: nn.Module, path: Path) -> None:
    """Copy the means into `model`, whose variances stay as they are.

    Raises:
        CheckpointError: names or shapes differ; nothing has been copied then.
    """
    found = {
        name.removesuffix(".mean"): tensor
        for name, tensor in safetensors.torch.load_file(path).items()
    }
    means: dict[str, Tensor] = {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if not is_spread(name)
    }
    checkpoints.fit(means, found, f"{path} (means alone)")
