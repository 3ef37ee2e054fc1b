"""Inputs of a calibration: checked, and those held out of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.calibration.layout import LEAST, Place, leaves_of
from spgru.moments import Moments

__all__ = [
    "as_arguments",
    "check_different",
    "check_inputs",
    "check_observed",
    "check_outcomes",
    "split",
]


def as_arguments(x: Any) -> tuple[Any, ...]:
    """What the module is called with; a PackedSequence is a tuple too, but one argument."""
    arguments = x if isinstance(x, tuple) and not isinstance(x, PackedSequence) else (x,)

    def of_now(value: Any) -> Any:
        """Tensors made under inference_mode cannot take part in a backward pass."""
        return value.clone() if isinstance(value, Tensor) and value.is_inference() else value

    found: tuple[Any, ...] = pytree.tree_map(of_now, arguments)
    return found


def check_inputs(name: str, inputs: Any) -> None:
    """Tensors or Moments, none of them packed, none NaN."""
    leaves = leaves_of(inputs)
    if not leaves:
        kinds = ", ".join(type(one).__name__ for one in inputs) or "nothing"
        raise TypeError(
            f"{name} holds no Tensor or Moments but {kinds}; pass what the module is called with, "
            "all sequences at once"
        )
    for leaf in leaves:
        parts = tuple(leaf) if isinstance(leaf, Moments) else (leaf,)
        if any(isinstance(part, PackedSequence) for part in parts):
            raise TypeError(
                f"{name} is packed, and sequences cannot be held out of it; pass sequences of one "
                "length as a Tensor (gains found there hold for packed sequences too)"
            )
        for part in parts:
            if part.is_floating_point() and not bool(part.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinite values; leave those sequences out")
    # One of several may be: covariates where there are none.
    if not any(leaf.numel() for leaf in leaves):
        raise ValueError(f"{name} is empty; pass at least {LEAST} sequences")


def check_different(inputs: Any, places: Sequence[Place]) -> None:
    """Sequences that are all the same say nothing of others, held out of the fit or not."""
    for leaf, (dim, _) in zip(leaves_of(inputs), places, strict=True):
        for part in tuple(leaf) if isinstance(leaf, Moments) else (leaf,):
            if dim is not None and not torch.equal(part, part.narrow(dim, 0, 1).expand_as(part)):
                return
    raise ValueError(
        "all sequences of x are the same, and a variance that fits them says nothing of others; "
        "pass sequences as they come in use"
    )


def check_outcomes(y: Any, output: Moments) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a Tensor of what happened, got {type(y).__name__}")
    if y.shape != output.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)} but the output has {tuple(output.shape)}; they must be "
            "equal, with NaN in y where nothing was observed"
        )
    if bool(y.isinf().any()):
        raise ValueError("y holds infinite values; put NaN where nothing was observed")


def check_observed(*parts: Tensor) -> None:
    """Something was observed in the fit, and in what is held out of it."""
    for part, name in zip(parts, ("of the fit", "held out of the fit"), strict=True):
        if not bool((~part.isnan()).any()):
            raise ValueError(f"y is NaN for all sequences {name}; pass more outcomes")


def split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the sequences of the fit, and of those held out: `share` of all, at least one."""
    if count < LEAST:
        raise ValueError(
            f"x holds {count} sequences; pass at least {LEAST}, of which some are held out of the "
            "fit"
        )
    held = min(max(round(share * count), 1), count - 1)
    generator = torch.Generator("cpu").manual_seed(seed)
    order = torch.randperm(count, generator=generator, device="cpu")
    return order[held:].sort().values, order[:held].sort().values
