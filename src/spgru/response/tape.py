"""What `respond` notes while a module runs: every use of a weight, every source of variance.

The module runs twice. The first pass is the closed form with a graph for autograd, and notes each
use of a weight (`Use`) and all `Moments` that the module makes. The second finds the noise that the
module itself adds: every weight and input is certain in it and every mean is that of the first
pass, so a variance that appears all the same was added there, whatever the way it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from spgru.moments.nested import without_variance
from spgru.nn.layer import Layer, layers_of, refresh_weights
from spgru.response.observed import (
    CHANGED,
    DETACHED,
    NOTHING,
    UNSTEADY,
    Repetition,
    check_known,
    checking_tap,
    data_of,
    made_again,
    with_data,
)

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
        check_known(x, _has_no_history)
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
                f"{self.weight or self.bias} is used under torch.no_grad() or inference_mode() "
                "(as torch.utils.checkpoint does with use_reentrant=True), where the response to "
                "it cannot be computed; call respond on code without them"
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
        refresh_weights(module)
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
        with (
            self._responding(without_variance, lambda path, layer: checking_tap),
            graph,
            observing(second),
        ):
            yield
        second.end()

    def check_detached(self, outputs: Sequence[Tensor]) -> None:
        """That no output depends on a variance that comes from what cannot be followed.

        Args:
            outputs: means and variances
        """
        detached = {id(var) for var in self.notes.detached}
        if any(id(output) in detached for output in outputs):
            raise RuntimeError(DETACHED)
        ways: list[Any] = [output.grad_fn for output in outputs] if detached else []
        seen = set(ways)
        while ways:
            node = ways.pop()
            if id(getattr(node, "variable", None)) in detached:
                raise RuntimeError(DETACHED)
            after = {way for way, _ in getattr(node, "next_functions", ())} - seen
            seen |= after
            ways += after

    @contextmanager
    def _responding(
        self,
        change: Callable[[Moments], Moments],
        tap: Callable[[str, Layer], Callable[[str, str], Any]],
    ) -> Iterator[None]:
        modes: dict[nn.Module, WeightMode] = {
            layer: Responding(
                {name: change(self.weights[_join(path, name)]) for name in layer.weights()},
                tap(path, layer),
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


class _Made(NamedTuple):
    """Moments of the first pass."""

    mean: Tensor
    """by which outputs are differentiated; of packed ones the rows"""
    version: int
    """by which changes in place are noticed"""
    detached_var: Tensor | None
    """the variance, where the mean had no history though there was one: noise, or detached"""


@dataclass(slots=True, eq=False)
class _Notes:
    """What the first pass leaves to the second, in the order of the computation."""

    made: list[_Made] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    """of all operations"""
    detached: list[Tensor] = field(default_factory=list)
    """known variances that go on beside means without their history"""


def _has_no_history(moments: Moments) -> bool:
    """Whether it is uncertain and nothing that was made or passed."""
    return not data_of(moments.mean).requires_grad and bool(data_of(moments.var).any())


class _First:
    """Notes all moments, and gives them means of their own.

    Noise may be found at any of them, and has the gradient by what is made of these moments alone,
    not by all that is made of a mean that others were made with too.
    """

    def __init__(self, notes: _Notes) -> None:
        self._notes = notes

    def made(self, moments: Moments) -> None:
        mean = data_of(moments.mean)
        detached_var = None
        if _has_no_history(moments):
            mean = _leaf(mean)
            # By which is seen whether anything comes of it.
            detached_var = _leaf(data_of(moments.var))
            object.__setattr__(moments, "var", with_data(moments.var, detached_var))
        elif mean.requires_grad:
            mean = mean.view_as(mean)
        object.__setattr__(moments, "mean", with_data(moments.mean, mean))
        self._notes.made.append(_Made(mean, _version(mean), detached_var))

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        check_known(args, _has_no_history)
        with unobserved():
            result = function(*args, **options)
        self._notes.results.append(result)
        return made_again(result)


class _Second(Repetition):
    """Finds the variance that is there though nothing known is uncertain."""

    def __init__(self, notes: _Notes, noises: list[Noise]) -> None:
        super().__init__(notes.made, notes.results)
        self._notes, self._noises = notes, noises

    def made(self, moments: Moments) -> None:
        before = next(self._made, NOTHING)
        if before is NOTHING or before.mean.shape != data_of(moments.mean).shape:
            raise RuntimeError(UNSTEADY)
        mean, var = before.mean, data_of(moments.var)
        if bool(var.any()):
            if not mean.requires_grad:
                raise RuntimeError(UNSTEADY)
            self._noises.append(Noise(mean, var))
        # What is more than the noise that was found came from elsewhere.
        known = before.detached_var
        if known is not None and not torch.allclose(known, var, atol=0, equal_nan=True):
            self._notes.detached.append(known)
        if _version(mean) != before.version and not torch.allclose(
            data_of(moments.mean), mean, equal_nan=True
        ):
            raise RuntimeError(CHANGED.format(part="mean", example="s * y.mean, s**2 * y.var"))
        self.make_certain(moments, mean if torch.is_grad_enabled() else mean.detach())


def _leaf(tensor: Tensor) -> Tensor:
    """The same numbers without their history, to be differentiated by."""
    # Those of inference mode serve only as a copy.
    return (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()


def _version(tensor: Tensor) -> int:
    # Inference tensors have none.
    return 0 if tensor.is_inference() else tensor._version


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
