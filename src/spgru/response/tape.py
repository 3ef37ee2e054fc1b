"""What `respond` notes while a module runs: every use of a weight, every source of variance.

The module runs twice. The first pass is the closed form with a graph for autograd, and notes each
use of a weight (`Use`) and all `Moments` that the module makes. The second finds the noise that the
module itself adds: every weight and input is certain in it and every mean is that of the first
pass, so a variance that appears all the same was added there, whatever the way it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.functional.linear import Affine
from spgru.functional.products import Matrix
from spgru.functional.remainder import Remainder, noting_remainders
from spgru.functional.tapped import tapped_product
from spgru.modes import Responding, WeightMode, enter_weights
from spgru.moments import Moments, observing, unobserved
from spgru.nn.layer import Layer, layers_of
from spgru.response.observed import NOTHING, UNSTEADY, Repetition, certain, made_again

__all__ = ["Noise", "Sums", "Tape", "Use"]


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

    def run(self, affine: Affine, x: Tensor | Moments) -> Moments:
        x_mean, x_var = (x, None) if isinstance(x, Tensor) else x
        if self.tape.create_graph or not isinstance(affine.product, Matrix):
            with unobserved():
                mean, var = affine.untapped(x)
        else:
            mean, var = tapped_product(affine, x_mean, x_var)
        return self.note(affine, x, mean, var)

    def _check_grad(self) -> None:
        if not torch.is_grad_enabled():
            raise RuntimeError(
                f"{self.weight or self.bias} is used under torch.no_grad() or inference_mode(), "
                "where the response to it cannot be computed; call respond on code without them"
            )

    def note(self, affine: Affine | None, x: Any, mean: Tensor, var: Tensor) -> Moments:
        self._check_grad()
        x_mean, x_var = (x, None) if isinstance(x, Tensor) or x is None else x
        # Results that depend on no other source start the graph. Of a certain input the weight's
        # mean has no influence on the variance.
        mean = mean if mean.requires_grad else mean.detach().requires_grad_()
        if x_var is not None and not var.requires_grad:
            var = var.detach().requires_grad_()
        self.tape.uses.append(Use(self, affine, x_mean, x_var, mean, var))
        return Moments(mean, var)

    def will_add(self, affine: Affine, sequences: int) -> None:
        self._check_grad()
        self.tape.sums[self.weight, self.bias, self.start, sequences] = Sums(affine, sequences)

    def add_to(self, affine: Affine, sequences: int, outputs: int) -> tuple[Tensor, Tensor]:
        sums = self.tape.sums[self.weight, self.bias, self.start, sequences]
        if sums.by_weight is None or sums.by_bias is None:
            shape = sequences, outputs, *affine.weight.shape
            sums.by_weight = affine.weight.new_zeros(shape)
            sums.by_bias = affine.weight.new_zeros(shape[:-1])
        return sums.by_weight, sums.by_bias

    def remainder(self, affine: Affine, sequences: int, outputs: int) -> Tensor:
        key = self.weight, self.bias, self.start, sequences
        found = self.tape.scan_remainders.get(key)
        if found is None:
            found = affine.weight.new_zeros(sequences, outputs)
            self.tape.scan_remainders[key] = found
        return found

    def scans(self) -> list[Any]:
        return self.tape.scans.setdefault((self.weight, self.bias, self.start), [])

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


@dataclass(slots=True, eq=False)
class Sums:
    """Gradients by one weight, summed over all steps of every sequence of a scan."""

    affine: Affine
    sequences: int
    by_weight: Tensor | None = None
    """(sequences, K, O, I)"""
    by_bias: Tensor | None = None
    """(sequences, K, O)"""


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
        self.sums: dict[tuple[str, str, int, int], Sums] = {}
        """by weight, bias, first row of the weight, and sequences"""
        self.scans: dict[tuple[str, str, int], list[Any]] = {}
        self.scan_remainders: dict[tuple[str, str, int, int], Tensor] = {}
        """(sequences, K) each, of the last backward pass; keys as of `sums`"""
        self.remainders: list[Remainder] = []
        """of all operations but products with weights, and those of scans by kernels"""
        self.weights: dict[str, Moments] = {}
        """by their dotted names"""
        self.notes = _Notes()
        for path, layer in self.layers.items():
            for name in layer.weights():
                moments = layer.weight_moments(name)
                moments = moments if create_graph else moments.detach()
                self.weights[_join(path, name)] = moments

    def close(self) -> None:
        """Let go of the graph, which refers back to this object where Python cannot see it."""
        self.uses.clear()
        self.sums.clear()
        for scans in self.scans.values():
            scans.clear()
        self.scan_remainders.clear()
        self.remainders.clear()
        self.notes = _Notes()

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        with (
            self._responding(lambda moments: moments, self._tap),
            observing(_First(self.notes)),
            noting_remainders(self.create_graph) as found,
        ):
            yield
        self.remainders += found

    @contextmanager
    def second_pass(self, noises: list[Noise]) -> Iterator[None]:
        """Adds to `noises` what it finds."""
        second = _Second(self.notes, noises)
        graph = torch.set_grad_enabled(self.create_graph)
        with self._responding(certain, None), graph, observing(second):
            yield
        second.end()

    @contextmanager
    def _responding(self, change: Callable[[Moments], Moments], tap: Any) -> Iterator[None]:
        modes: dict[nn.Module, WeightMode] = {
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
        names = layer.weights()

        def make(weight: str, bias: str) -> WeightTap:
            full = [_join(path, name) if name in names else "" for name in (weight, bias)]
            return WeightTap(self, full[0], full[1])

        return make


@dataclass(slots=True, eq=False)
class _Notes:
    """What the first pass leaves to the second, in the order of the computation."""

    made: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)
    """mean and variance of all moments, None for packed ones"""
    results: list[Any] = field(default_factory=list)
    """of all operations"""


class _First:
    """Notes all moments, and gives those that may have noise of their own a mean of their own."""

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes
        self._owners: dict[int, Tensor] = {}
        """variances by the id of the mean that they were made with"""

    def made(self, moments: Moments) -> None:
        mean, var = moments.mean, moments.var
        if not isinstance(mean, Tensor):  # packed
            self._notes.made.append(None)
            return
        if not mean.requires_grad:
            if bool(var.any()):
                mean = mean.detach().requires_grad_()
                object.__setattr__(moments, "mean", mean)
        elif self._owners.get(id(mean), var) is not var:
            mean = mean.view_as(mean)
            object.__setattr__(moments, "mean", mean)
        self._notes.made.append((mean, var))  # which also keeps the id
        self._owners[id(mean)] = var

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        with unobserved():
            result = function(*args, **options)
        self._notes.results.append(result)
        return made_again(result)


class _Second(Repetition):
    """Finds the variance that is there though nothing known is uncertain."""

    def __init__(self, notes: _Notes, noises: list[Noise]) -> None:
        super().__init__(notes.made, notes.results)
        self._noises = noises

    def made(self, moments: Moments) -> None:
        before = next(self._made, NOTHING)
        if before is None and not isinstance(moments.mean, Tensor):
            return
        if before is None or before is NOTHING or before[0].shape != moments.mean.shape:
            raise RuntimeError(UNSTEADY)
        mean = before[0]
        if bool(moments.var.any()):
            if not mean.requires_grad:
                raise RuntimeError(UNSTEADY)
            self._noises.append(Noise(mean, moments.var))
        object.__setattr__(moments, "mean", mean if torch.is_grad_enabled() else mean.detach())
        object.__setattr__(moments, "var", torch.zeros_like(mean))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
