"""What goes into a module as sources of variance, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments import Moments
from spgru.response.observed import data_of, with_data
from spgru.response.sequences import Layout, candidates, single

__all__ = ["Inputs", "Outputs", "Source", "unpacked"]


def unpacked(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tuple alone is several arguments, as where `calibrate` and `audit` take one x."""
    # Moments and packed sequences are tuples too, of a type of their own.
    return inputs[0] if len(inputs) == 1 and type(inputs[0]) is tuple else inputs


class Source(NamedTuple):
    """An uncertain input."""

    name: str
    mean: Tensor
    """the tensor by which outputs are differentiated"""
    var: Tensor


class Inputs:
    """The arguments of a call, whose `Moments` are sources.

    Args:
        create_graph: whether the result is to be differentiated by what made the arguments
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], create_graph: bool = False
    ) -> None:
        leaves, self._tree = pytree.tree_flatten((args, dict(kwargs)), is_leaf=_is_value)
        known: dict[int, tuple[Moments, Moments]] = {}
        """uncertain and certain, by the id of the leaf: one object in two places is one source"""
        count = len({id(leaf) for leaf in leaves if isinstance(leaf, Moments)})
        self.sources: list[Source] = []
        self._uncertain: list[Any] = []
        self._certain: list[Any] = []
        self._tensors: list[Tensor] = []
        for leaf in leaves:
            if not isinstance(leaf, Moments):
                self._uncertain.append(leaf)
                self._certain.append(leaf)
                self._tensors += [leaf] if isinstance(leaf, Tensor) else []
                continue
            if id(leaf) not in known:
                mean = data_of(leaf.mean)
                mean = (mean if create_graph else mean.detach()).clone().requires_grad_()
                var = data_of(leaf.var).clone()
                number = len(self.sources)
                self.sources.append(Source("input" if count == 1 else f"input {number}", mean, var))
                shown = mean if create_graph else mean.detach()
                sure = _like(leaf, shown, torch.zeros_like(mean))
                known[id(leaf)] = _like(leaf, mean, var), sure
                self._tensors.append(mean)
            uncertain, sure = known[id(leaf)]
            self._uncertain.append(uncertain)
            self._certain.append(sure)
        # An input that is empty alone may stand for none, such as no covariates.
        sizes = [len(tensor) for tensor in self._tensors if tensor.ndim]
        if sizes and not any(sizes):
            raise ValueError("the inputs are empty; pass at least one sequence and step")

    def call(self, function: Callable[..., Any], certain: bool) -> Any:
        # Copies: a module that changes its input in place gets the same every time.
        leaves = [
            leaf.clone() if isinstance(leaf, Tensor) else leaf
            for leaf in (self._certain if certain else self._uncertain)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._tree)
        return function(*args, **kwargs)

    def sizes(self, first: int) -> list[int]:
        """Numbers of sequences that the inputs may hold, the likeliest first."""
        found = [tensor.shape[first] for tensor in self._tensors if tensor.ndim > max(first, 1)]
        found += [size for tensor in self._tensors for size in tensor.shape]
        found += [
            int(leaf.batch_sizes[0]) for leaf in self._certain if isinstance(leaf, PackedSequence)
        ]
        return [size for size in dict.fromkeys(found) if size > 1]


class Outputs:
    """What a module returned; its `Moments` are what is differentiated."""

    def __init__(self, result: Any, create_graph: bool) -> None:
        self._create_graph = create_graph
        self._leaves, self._tree = pytree.tree_flatten(result, is_leaf=_is_value)
        self._moments = [leaf for leaf in self._leaves if isinstance(leaf, Moments)]
        if not self._moments:
            raise TypeError(
                "the module returned no Moments, whose variance could be replaced; return those of "
                "its last layer"
            )
        if any(data_of(moments.mean).numel() == 0 for moments in self._moments):
            raise ValueError(
                "the module returned Moments without entries; pass at least one sequence and step"
            )
        self.means = [data_of(moments.mean) for moments in self._moments]
        self.closed_variances = [data_of(moments.var) for moments in self._moments]

    @property
    def _batch_sizes(self) -> list[Tensor | None]:
        return [
            m.mean.batch_sizes if isinstance(m.mean, PackedSequence) else None
            for m in self._moments
        ]

    def sizes(self, batch_dim: int) -> list[int]:
        """Of the dimension that was asked for."""
        found = []
        for mean, batch_sizes in zip(self.means, self._batch_sizes, strict=True):
            if batch_sizes is None and not -mean.ndim <= batch_dim < mean.ndim:
                raise ValueError(
                    f"batch_dim is {batch_dim} but the module returns Moments of shape "
                    f"{tuple(mean.shape)}"
                )
            found.append(mean.shape[batch_dim] if batch_sizes is None else int(batch_sizes[0]))
        return [size for size in dict.fromkeys(found) if size > 1]

    def layouts(self, sizes: Sequence[int], first: int) -> Iterator[Layout]:
        """Those to try; the last one always holds."""
        yield from candidates(self.means, self._batch_sizes, sizes, first)
        yield single(self.means)

    def filled(self, values: Sequence[Tensor]) -> Any:
        """The structure of the result with these values for `Moments`."""
        found = iter(values)
        return self._rebuild(lambda moments: with_data(moments.mean, next(found)))

    def summed(self, parts: Iterable[Sequence[Tensor]]) -> list[Tensor]:
        """The sum of all parts, 0 where there are none, for each of `Moments`."""
        totals = zip(*parts, strict=True)
        found = [torch.stack(total).sum(0) for total in totals]
        # Without parts nothing that was returned depends on a source.
        return found or [torch.zeros_like(mean) for mean in self.means]

    def replaced(self, means: Sequence[Tensor], variances: Sequence[Tensor]) -> Any:
        """The structure of the result with these means and variances for those of `Moments`."""
        pairs = zip(means, variances, strict=True)

        def replace(moments: Moments) -> Moments:
            mean, var = next(pairs)
            return _like(moments, mean if self._create_graph else mean.detach(), var)

        return self._rebuild(replace)

    def _rebuild(self, replace: Callable[[Moments], Any]) -> Any:
        def rebuilt(leaf: Any) -> Any:
            if isinstance(leaf, Moments):
                return replace(leaf)
            # Tensors beside Moments would keep the graph of the whole pass alive.
            if self._create_graph or not isinstance(leaf, (Tensor, PackedSequence)):
                return leaf
            return with_data(leaf, data_of(leaf).detach())

        leaves = [rebuilt(leaf) for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._tree)


def _is_value(value: Any) -> bool:
    return isinstance(value, (Moments, PackedSequence))


def _like(moments: Moments, mean: Tensor, var: Tensor) -> Moments:
    return Moments(with_data(moments.mean, mean), with_data(moments.var, var))
