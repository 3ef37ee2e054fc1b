"""What `respond` notes while a module runs: every use of a weight, every source of variance.

The module runs twice. The first pass is the closed form with a graph for autograd, and notes each
use of a weight (`Use`) and all `Moments` that the module makes. The second finds the noise that the
module itself adds: every weight and input is certain in it and every mean is that of the first
pass, so a variance that appears all the same was added there, whatever the way it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.functional.linear import Affine
from spgru.modes import Responding, enter_weights
from spgru.moments import Moments, watching
from spgru.nn.layer import Layer, layers_of

__all__ = ["Noise", "Tape", "Use"]


@dataclass(frozen=True, slots=True, eq=False)
class WeightTap:
    """Notes the uses of one weight and its bias, or of their rows from `start` on."""

    tape: Tape
    weight: str
    """name of the weight in the module"""
    bias: str
    start: int = 0

    @property
    def needs_reference(self) -> bool:
        return self.tape.create_graph

    def __call__(
        self, affine: Affine | None, x: Any, mean: Tensor, var: Tensor
    ) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():
            raise RuntimeError(
                f"{self.weight} is used under torch.no_grad() or inference_mode(), where the "
                "response to it cannot be computed; call respond on code without them"
            )
        # Results that depend on no other source start the graph.
        mean, var = (
            part if part.requires_grad else part.detach().requires_grad_() for part in (mean, var)
        )
        x_mean, x_var = (x, None) if isinstance(x, Tensor) or x is None else x
        self.tape.uses.append(Use(self, affine, x_mean, x_var, mean, var))
        return mean, var

    def rows(self, start: int) -> WeightTap:
        return WeightTap(self.tape, self.weight, self.bias, self.start + start)


class Use(NamedTuple):
    """One call of a map."""

    tap: WeightTap
    affine: Affine | None
    """None where a bias is used without a weight"""
    x_mean: Tensor | None
    """(*rows, I), or images"""
    x_var: Tensor | None
    mean: Tensor
    """(*rows, O), the tensor by which outputs are differentiated"""
    var: Tensor


class Noise(NamedTuple):
    """Variance that the module adds."""

    mean: Tensor
    """the tensor by which outputs are differentiated"""
    var: Tensor


class Tape:
    """The notes of one call of `respond`.

    Args:
        module: built from our layers
        create_graph: whether the response is to be differentiated
    """

    def __init__(self, module: nn.Module, create_graph: bool) -> None:
        self.create_graph = create_graph
        self.layers = dict(layers_of(module))
        self.uses: list[Use] = []
        self.weights: dict[str, Moments] = {}
        """by their dotted names"""
        self._made: list[tuple[Tensor, Tensor] | None] = []
        self._owners: dict[int, Tensor] = {}
        """variances by the id of the mean that they were made with"""
        for path, layer in self.layers.items():
            for name in layer.weights():
                moments = layer.weight_moments(name)
                moments = moments if create_graph else moments.detach()
                self.weights[_join(path, name)] = moments

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        with self._responding(lambda moments: moments, self._tap), watching(self._note):
            yield

    @contextmanager
    def second_pass(self, noises: list[Noise]) -> Iterator[None]:
        """Adds to `noises` what it finds."""
        found = iter(self._made)

        def check(moments: Moments) -> None:
            before = next(found, (None, None))
            if before is None:
                return
            mean = before[0]
            if mean is None or not isinstance(moments.mean, Tensor) or mean.shape != moments.shape:
                raise RuntimeError(_UNSTEADY)
            if bool(moments.var.any()):
                if not mean.requires_grad:
                    raise RuntimeError(_UNSTEADY)
                noises.append(Noise(mean, moments.var))
            object.__setattr__(moments, "mean", mean.detach())
            object.__setattr__(moments, "var", torch.zeros_like(mean))

        def certain(moments: Moments) -> Moments:
            return Moments(moments.mean.detach(), torch.zeros_like(moments.var))

        with self._responding(certain, None), torch.no_grad(), watching(check):
            yield
        if next(found, "end") != "end":
            raise RuntimeError(_UNSTEADY)

    @contextmanager
    def _responding(self, change: Callable[[Moments], Moments], tap: Any) -> Iterator[None]:
        modes = {
            layer: Responding(
                {name: change(self.weights[_join(path, name)]) for name in layer.weights()},
                None if tap is None else tap(path, layer),
                {},
            )
            for path, layer in self.layers.items()
        }
        with enter_weights(modes):
            yield

    def _tap(self, path: str, layer: Layer) -> Callable[[str, str], WeightTap]:
        return lambda weight, bias: WeightTap(
            self, _join(path, weight), _join(path, bias) if bias in layer.weights() else ""
        )

    def _note(self, moments: Moments) -> None:
        """Gives moments that may have noise of their own a mean of their own."""
        mean, var = moments.mean, moments.var
        if not isinstance(mean, Tensor):  # packed
            self._made.append(None)
            return
        if not mean.requires_grad:
            if bool(var.any()):
                mean = mean.detach().requires_grad_()
        elif self._owners.get(id(mean), var) is not var:
            mean = mean.view_as(mean)
        object.__setattr__(moments, "mean", mean)
        self._made.append((mean, var))  # which also keeps the id
        self._owners[id(mean)] = var


_UNSTEADY = (
    "the module did not do the same when it was run again with certain weights, so the noise that "
    "it adds cannot be told from what it passes on; make what it does depend on the means alone"
)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
