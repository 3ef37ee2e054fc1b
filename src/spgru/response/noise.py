"""Finds the variance that a module adds, without gradients.

As `spgru.response.tape` does: a first pass in the closed form tells the mean of all `Moments`, a
second with certain weights and inputs what variance appears all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from spgru.moments import Moments, observing, unobserved
from spgru.moments.nested import at_their_means, without_variance
from spgru.response.directions import taking
from spgru.response.observed import NOTHING, UNSTEADY, Repetition, checking_tap, made_again

__all__ = ["Weights", "find_noises"]

Weights = Mapping[nn.Module, Mapping[str, Moments]]
"""Of every layer by name."""


def find_noises(
    weights: Weights, call: Callable[..., Any], args: tuple[Any, ...]
) -> dict[int, Tensor]:
    """The variances that `call(*args)` adds, by the number of the `Moments` that they enter at."""
    is_cuda = any(value.mean.is_cuda for own in weights.values() for value in own.values())
    # Kernels for activations make other Moments on their way than the code that is differentiated.
    with forward_ad.dual_level() if is_cuda else nullcontext():
        first = _First()
        with taking(weights), observing(first):
            call(*args)
        second = _Second(first)
        sure = {
            layer: {name: without_variance(moments) for name, moments in own.items()}
            for layer, own in weights.items()
        }
        args = at_their_means(args)
        with taking(sure, checking_tap), observing(second):
            call(*args)
        second.end()
    return second.noises


class _First:
    """Notes all means."""

    def __init__(self) -> None:
        self.means: list[Any] = []
        self.results: list[Any] = []

    def made(self, moments: Moments) -> None:
        self.means.append(moments.mean)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        with unobserved():
            result = function(*args, **options)
        self.results.append(result)
        return made_again(result)


class _Second(Repetition):
    """Finds the variance that is there though nothing known is uncertain."""

    def __init__(self, first: _First) -> None:
        super().__init__(first.means, first.results)
        self._count = 0
        self.noises: dict[int, Tensor] = {}

    def made(self, moments: Moments) -> None:
        mean = next(self._made, NOTHING)
        if mean is NOTHING or mean.shape != moments.mean.shape:
            raise RuntimeError(UNSTEADY)
        if bool(moments.var.any()):
            self.noises[self._count] = moments.var
        self.make_certain(moments, mean)
        self._count += 1
