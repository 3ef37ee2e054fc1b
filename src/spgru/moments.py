"""`Moments`: a random tensor, known by its elementwise mean and variance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

__all__ = [
    "Moments",
    "Value",
    "cat",
    "certain",
    "pack_padded_moments",
    "pad_packed_moments",
    "stack",
]


class SupportsNatural(Protocol):
    """Anything that turns moments into natural parameters: the classes of `spgru.families`."""

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """Elementwise mean and variance of a random tensor whose entries count as independent.

    Unpacks like a pair (`mean, var = moments`), is indexed like a tensor (`moments[:, -1]`), is a
    pytree, and passes through `torch.compile`.

    For packed sequences both fields are a `PackedSequence`; see `pack_padded_moments`.
    """

    mean: Tensor
    """(*shape)"""
    var: Tensor
    """(*shape), never negative"""

    def __iter__(self) -> Iterator[Tensor]:
        yield self.mean
        yield self.var

    def __getitem__(self, index: Any) -> Moments:
        return Moments(self.mean[index], self.var[index])

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def ndim(self) -> int:
        return self.mean.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        return self.var.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval that a Gaussian with these moments falls into with probability `level`.

        Returns:
            lower and upper bound, each of this object's shape.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}; pass 0.95 for 95 %")
        half_width = NormalDist().inv_cdf((1 + level) / 2) * self.std
        return self.mean - half_width, self.mean + half_width

    def to_natural(self, family: SupportsNatural) -> tuple[Tensor, ...]:
        """Natural parameters of the member of `family` with these moments."""
        if isinstance(family, str):
            raise TypeError(
                f"family must be an object, got the name {family!r}; "
                f"pass spgru.families.get({family!r})"
            )
        return family.to_natural(self)

    def to(self, *args: Any, **kwargs: Any) -> Moments:
        """Both tensors moved or cast, with the arguments of `Tensor.to`."""
        return Moments(self.mean.to(*args, **kwargs), self.var.to(*args, **kwargs))

    def detach(self) -> Moments:
        return Moments(self.mean.detach(), self.var.detach())

    def reshape(self, *shape: int) -> Moments:
        return Moments(self.mean.reshape(*shape), self.var.reshape(*shape))

    def transpose(self, dim0: int, dim1: int) -> Moments:
        return Moments(self.mean.transpose(dim0, dim1), self.var.transpose(dim0, dim1))

    def unsqueeze(self, dim: int) -> Moments:
        return Moments(self.mean.unsqueeze(dim), self.var.unsqueeze(dim))

    def squeeze(self, dim: int) -> Moments:
        return Moments(self.mean.squeeze(dim), self.var.squeeze(dim))

    def flip(self, *dims: int) -> Moments:
        return Moments(self.mean.flip(*dims), self.var.flip(*dims))

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Moments, ...]:
        means, variances = self.mean.chunk(chunks, dim), self.var.chunk(chunks, dim)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))

    def split(self, sizes: list[int], dim: int = 0) -> tuple[Moments, ...]:
        means, variances = torch.split(self.mean, sizes, dim), torch.split(self.var, sizes, dim)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))

    def unbind(self, dim: int = 0) -> tuple[Moments, ...]:
        means, variances = self.mean.unbind(dim), self.var.unbind(dim)
        return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))


pytree.register_pytree_node(
    Moments,
    lambda moments: ([moments.mean, moments.var], None),
    lambda children, _: Moments(*children),
    serialized_type_name="spgru.Moments",
)

Value = TypeVar("Value", Tensor, Moments)
"""A number known exactly (`Tensor`) or by its moments (`Moments`).

Every function of `spgru.functional` accepts either and answers in kind, so the equations of a
recurrent step are written once and serve both the closed form and the brute force of `audit`.
"""


def certain(x: Tensor) -> Moments:
    """A tensor known exactly: variance 0."""
    return Moments(x, torch.zeros_like(x))


def promote(*values: Any) -> tuple[Any, ...]:
    """Plain tensors beside moments count as certain; tensors alone stay tensors."""
    if any(isinstance(value, Moments) for value in values):
        return tuple(certain(v) if isinstance(v, Tensor) else v for v in values)
    return values


def stack(values: Sequence[Value], dim: int = 0) -> Value:
    """`torch.stack` for tensors or moments."""
    return _join(torch.stack, values, dim)


def cat(values: Sequence[Value], dim: int = 0) -> Value:
    """`torch.cat` for tensors or moments."""
    return _join(torch.cat, values, dim)


def _join(function: Any, values: Sequence[Value], dim: int) -> Value:
    alike: tuple[Value, ...] = promote(*values)
    if isinstance(alike[0], Tensor):
        joined: Value = function(alike, dim)
        return joined
    return Moments(
        function([value.mean for value in alike], dim),
        function([value.var for value in alike], dim),
    )


def pack_padded_moments(
    moments: Moments,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Moments:
    """`torch.nn.utils.rnn.pack_padded_sequence` for moments: both fields become packed."""
    packed = [
        pack_padded_sequence(tensor, lengths, batch_first, enforce_sorted)  # type: ignore[arg-type]
        for tensor in moments
    ]
    return Moments(*packed)  # type: ignore[arg-type]


def pad_packed_moments(
    packed: Moments, batch_first: bool = False, padding_value: float = 0.0
) -> tuple[Moments, Tensor]:
    """Inverse of `pack_padded_moments`: padded moments (padding has variance 0) and lengths."""
    if not isinstance(packed.mean, PackedSequence):
        raise TypeError(
            f"packed.mean must be a PackedSequence, got {type(packed.mean).__name__}; "
            "only the output for a packed input is packed"
        )
    mean, lengths = pad_packed_sequence(packed.mean, batch_first, padding_value)
    var, _ = pad_packed_sequence(packed.var, batch_first)
    return Moments(mean, var), lengths
