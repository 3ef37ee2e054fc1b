"""Inputs of a calibration: which dimension holds the sequences, and those held out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.calibration.truth import Shape
from spgru.moments import Moments
from spgru.moments.nested import first_moments
from spgru.nn.contexts import at_mean

__all__ = [
    "as_arguments",
    "check_different",
    "check_inputs",
    "check_observed",
    "check_outcomes",
    "count_sequences",
    "find_shape",
    "join",
    "select",
    "split",
]

LEAST = 4
"""Sequences without which nothing can be held out of a fit."""


def as_arguments(x: Any) -> tuple[Any, ...]:
    """What the module is called with; a PackedSequence is a tuple too, but one argument."""
    arguments = x if isinstance(x, tuple) and not isinstance(x, PackedSequence) else (x,)

    def of_now(value: Any) -> Any:
        """Tensors made under inference_mode cannot take part in a backward pass."""
        return value.clone() if isinstance(value, Tensor) and value.is_inference() else value

    found: tuple[Any, ...] = pytree.tree_map(of_now, arguments)
    return found


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (Moments, PackedSequence))


def _leaves(inputs: Any) -> list[Any]:
    leaves = pytree.tree_leaves(inputs, is_leaf=_is_leaf)
    return [leaf for leaf in leaves if isinstance(leaf, (Tensor, Moments, PackedSequence))]


def check_inputs(name: str, inputs: Any) -> None:
    """Tensors or Moments, none of them packed, none NaN."""
    leaves = _leaves(inputs)
    if not leaves:
        raise TypeError(f"{name} holds no Tensor or Moments; pass what the module is called with")
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


def check_different(inputs: Any, dim: int) -> None:
    """Sequences that are all the same say nothing of others, held out of the fit or not."""
    for leaf in _leaves(inputs):
        for part in tuple(leaf) if isinstance(leaf, Moments) else (leaf,):
            if part.ndim > dim and not torch.equal(part, part.narrow(dim, 0, 1).expand_as(part)):
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


def select(inputs: Any, dim: int, index: Tensor) -> Any:
    """The sequences `index` of every Tensor and Moments."""

    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.index_select(dim, index.to(value.device))
        if isinstance(value, Moments):
            return Moments(chosen(value.mean), chosen(value.var))
        return value

    return pytree.tree_map(chosen, inputs, is_leaf=_is_leaf)


def join(first: Any, second: Any, dim: int) -> Any:
    """The sequences of both, of every Tensor and Moments."""

    def joined(one: Any, other: Any) -> Any:
        if isinstance(one, Tensor):
            return torch.cat([one, other], dim)
        if isinstance(one, Moments):
            return Moments(joined(one.mean, other.mean), joined(one.var, other.var))
        return one

    return pytree.tree_map(joined, first, second, is_leaf=_is_leaf)


def _sizes(inputs: Any, dim: int) -> set[int]:
    return {leaf.shape[dim] if leaf.ndim > dim else -1 for leaf in _leaves(inputs)}


@torch.no_grad()
def find_shape(
    module: nn.Module,
    call: Callable[..., Any],
    inputs: Sequence[Any],
    batch_dim: int | None,
    time_dim: int | None,
) -> tuple[int, Shape]:
    """The dimension of sequences in the inputs, and those of time and sequences in the output.

    A dimension of sequences is one along which the module may be called on a part: what it gives
    for the last half is the last half of what it gives for all. Along time that is not so.
    """
    if batch_dim is not None and batch_dim < 0:
        (batch_dim,) = {leaf.ndim + batch_dim for leaf in _leaves(inputs)[:1]}
    with at_mean(module):
        output: Any = first_moments(call(*inputs))
        if isinstance(output.mean, PackedSequence):
            raise TypeError(
                "the output is packed, and has no dimension of sequences; calibrate with call=, a "
                "function of the inputs that returns padded Moments, or a module that does"
            )
        whole, found = output.mean, None
        for dim in (0, 1) if batch_dim is None else (batch_dim,):
            sizes = _sizes(inputs, dim)
            if len(sizes) != 1 or min(sizes) < 1:
                continue
            (count,) = sizes
            if count < LEAST and batch_dim is None:
                continue
            last = torch.arange(count // 2, count)
            try:
                part = first_moments(call(*select(inputs, dim, last))).mean
            except (ValueError, RuntimeError):
                continue  # a module that takes one length only, and this was time
            found = _matching(whole, part, last, dim)
            if found is not None:
                break
    if found is None:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in _leaves(inputs))
        raise ValueError(
            f"x has shape {shapes}, and no dimension of it holds at least {LEAST} sequences that "
            "the module treats one by one, of which some can be held out of the fit; pass more "
            "sequences, or batch_dim"
        )
    batch = found
    if (batch > 0 and whole.ndim < 2) or batch > 1:
        raise ValueError(f"sequences are dimension {batch} of the output; they must be 0 or 1")
    if time_dim is None:
        # Without a third dimension the second is features, unless it is sequences.
        time = 1 - batch if whole.ndim > 2 or batch == 1 else None
    else:
        time = time_dim + whole.ndim if time_dim < 0 else time_dim
        if time == batch or time not in (0, 1) or time >= whole.ndim:
            raise ValueError(
                f"time_dim is {time_dim}, but in the output, of shape {tuple(whole.shape)}, "
                f"dimension {batch} holds sequences; time must be the other one of the first two"
            )
    return dim, Shape(time, batch)


def _matching(whole: Tensor, part: Tensor, last: Tensor, first: int) -> int | None:
    """The dimension of the output along which `part` is the last of `whole`; `first` goes first."""
    for dim in dict.fromkeys((first, 0, 1)):
        if whole.ndim <= dim or part.ndim != whole.ndim or part.shape[dim] != len(last):
            continue
        if whole.shape[dim] <= int(last[-1]):
            continue
        expected = whole.index_select(dim, last.to(whole.device))
        if expected.shape == part.shape and _agree(expected, part, dim):
            return dim
    return None


def _agree(expected: Tensor, part: Tensor, dim: int) -> bool:
    """Up to rounding: kernels round differently for other numbers of sequences.

    A loop that reads its own output back magnifies that in single entries, TF32 above all, so their
    sum is also held against what tells the sequences apart.
    """
    least = 1e-4 * expected.abs().max().item()
    if torch.allclose(expected, part, rtol=1e-3, atol=least):
        return True
    apart = (expected - expected.mean(dim, keepdim=True)).norm()
    return bool((expected - part).norm() < 0.01 * apart)


def count_sequences(inputs: Any, dim: int) -> int:
    return min(_sizes(inputs, dim))


def split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the sequences of the fit, and of those held out: `share` of all, at least one."""
    if count < LEAST:
        raise ValueError(
            f"x holds {count} sequences; pass at least {LEAST}, of which some are held out of the "
            "fit"
        )
    held = min(max(round(share * count), 1), count - 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values
