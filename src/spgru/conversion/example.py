"""A converted network is tried on an input: what fails is named by its path."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.conversion.uses import watching_weights
from spgru.moments import Moments
from spgru.nn import Layer
from spgru.nn.contexts import at_mean
from spgru.runtime.errors import refuse

__all__ = ["arguments_of", "check_example", "evaluating", "outputs_of"]

_TOLERANCE, _COARSE = 1e-4, 0.1
"""Relative to the largest entry: sums are taken in another order; of 16 bits that shows."""


def arguments_of(example: Any) -> tuple[Any, ...]:
    # A PackedSequence is a tuple too, but one argument.
    is_several = isinstance(example, (tuple, list)) and not isinstance(example, PackedSequence)
    return tuple(example) if is_several else (example,)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Block in which nothing is dropped or learned."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in before:
            part.training = training


def outputs_of(model: nn.Module, example: Any) -> list[Tensor]:
    """All tensors that the module gives, of Moments the mean."""
    with evaluating(model):
        return _tensors(model(*arguments_of(example)))


def _leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value, is_leaf=lambda part: isinstance(part, Moments))


def _tensors(value: Any) -> list[Tensor]:
    parts = [leaf.mean if isinstance(leaf, Moments) else leaf for leaf in _leaves(value)]
    parts = [part.data if isinstance(part, PackedSequence) else part for part in parts]
    return [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]


def check_example(
    twin: nn.Module, example: Any, expected: list[Tensor], layers: Mapping[str, Layer]
) -> None:
    """Run it, first at the means of its weights, then as it is.

    Args:
        layers: those that were converted, by path
    """
    with _naming_failures(twin):
        with at_mean(twin):
            found = outputs_of(twin, example)
        with watching_weights(layers) as used, evaluating(twin):
            output = twin(*arguments_of(example))
    refuse(
        f"{name}: forward uses it outside its layer, where it is certain and its variance lost; "
        "call the layer, or name the layer in keep="
        for name in used
    )
    if not any(isinstance(leaf, Moments) for leaf in _leaves(output)):
        raise ValueError(
            f"the network gives {type(output).__name__} without Moments: its forward takes means, "
            "or calls none of the converted layers"
        )
    error = max((_difference(*pair) for pair in zip(found, expected, strict=False)), default=0.0)
    is_coarse = any(part.dtype in (torch.float16, torch.bfloat16) for part in found)
    if len(found) != len(expected) or not error <= (_COARSE if is_coarse else _TOLERANCE):
        raise ValueError(
            f"at the means of the weights the output differs from the network's by {error:.1e} of "
            "its largest entry: its forward does something else with layers of ours, or is random; "
            "look for isinstance() and for weights used directly"
        )


def _difference(got: Tensor, want: Tensor) -> float:
    if got.shape != want.shape:
        return float("inf")
    if not want.numel():
        return 0.0
    scale = want.abs().max().clamp(min=1e-6)
    return ((got - want).abs().max() / scale).item()


@contextmanager
def _naming_failures(module: nn.Module) -> Iterator[None]:
    stack: list[tuple[str, nn.Module]] = []
    handles = []
    for path, part in module.named_modules():
        here = path or "the network", part
        handles.append(part.register_forward_pre_hook(lambda *_, here=here: stack.append(here)))
        handles.append(part.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield
    except Exception as error:
        path, part = stack[-1] if stack else ("the network", module)
        raise TypeError(
            f"{path}: {type(part).__name__} cannot run on Moments: {_explained(error)}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def _explained(error: Exception) -> str:
    if "'Tensor' object is not callable" not in str(error):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{place.filename}, line {place.lineno}: x.mean, x.var and x.std of Moments are tensors, "
        "no methods; write torch.mean(x, dim) for a mean over a dimension"
    )
