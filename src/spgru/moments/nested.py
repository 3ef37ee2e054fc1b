"""`Moments` inside what a module takes and returns: tuples, lists, dicts, packed sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments.pair import Moments

__all__ = [
    "at_their_means", "count_moments", "dims_of", "first_moments", "is_moments", "without_variance",
]  # fmt: skip


def first_moments(output: Any) -> Moments:
    """The first Moments of what a module returns: its output, before states and the like."""
    for leaf in pytree.tree_leaves(output, is_leaf=is_moments):
        if isinstance(leaf, Moments):
            return leaf
    raise TypeError(
        f"the module returns {type(output).__name__} without Moments; return the Moments, or pass "
        "call=, a function of the inputs that does"
    )


def count_moments(output: Any) -> int:
    """How many Moments a module returns."""
    return sum(map(is_moments, pytree.tree_leaves(output, is_leaf=is_moments)))


def is_moments(value: Any) -> bool:
    return isinstance(value, Moments)


def without_variance(moments: Moments) -> Moments:
    """The same means, packed too, with variance 0."""
    var: Any = moments.var
    if isinstance(var, PackedSequence):
        var = var._replace(data=torch.zeros_like(var.data))
    else:
        var = torch.zeros_like(var)
    return Moments(moments.mean, var)


def dims_of(inputs: Any) -> int | None:
    """Dimensions of the first tensor among the inputs, None if there is none."""
    for leaf in pytree.tree_leaves(inputs, is_leaf=is_moments):
        value = leaf.mean if isinstance(leaf, Moments) else leaf
        if isinstance(value, Tensor):
            return value.ndim
    return None


def at_their_means(inputs: Any) -> Any:
    """The same inputs, all certain: what a module adds itself does not come with them."""

    def at_mean(value: Any) -> Any:
        return without_variance(value) if isinstance(value, Moments) else value

    return pytree.tree_map(at_mean, inputs, is_leaf=is_moments)
