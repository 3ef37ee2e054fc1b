"""The methods and operators of `Tensor` that `Moments` have too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments.fields import refuse_packed
from spgru.moments.table import find_rule, name_of

__all__ = ["TensorMethods", "apply_rule"]


def apply_rule(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of torch does with arguments among which there are `Moments`."""
    rule = find_rule(function)
    for value in args:
        values = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(v, TensorMethods) and isinstance(v.mean, PackedSequence) for v in values):
            refuse_packed(name_of(function))
    return rule(*args, **kwargs)


def _operate(function: Any, *operands: Any) -> Any:
    """A Python operator; one side is `Moments`, the other may be anything."""
    for operand in operands:
        if not isinstance(operand, (TensorMethods, Tensor, Real)):
            if isinstance(operand, (np.ndarray, list)):
                raise TypeError(
                    f"an operand beside Moments must be a Tensor or a number, got "
                    f"{type(operand).__name__}; convert it with torch.as_tensor"
                )
            return NotImplemented
    return apply_rule(function, *operands)


def _T(part: Tensor) -> Tensor:  # noqa: N802 (the name is for the error)
    return part.T


def _mT(part: Tensor) -> Tensor:  # noqa: N802
    return part.mT


class TensorMethods:
    """Base of `Moments`: what it does as a tensor does. Arguments are those of `Tensor`."""

    __slots__ = ()

    mean: Tensor
    var: Tensor

    if TYPE_CHECKING:

        def __init__(self, mean: Tensor, var: Tensor) -> None: ...

    def _each(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Self:
        """The function applied to mean and variance."""
        if isinstance(self.mean, PackedSequence):
            refuse_packed(function.__name__)
        return type(self)(function(self.mean, *args, **kwargs), function(self.var, *args, **kwargs))

    def _each_parts(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Self, ...]:
        """As `_each`, for a function that gives several tensors."""
        if isinstance(self.mean, PackedSequence):
            refuse_packed(function.__name__)
        means, variances = function(self.mean, *args, **kwargs), function(self.var, *args, **kwargs)
        return tuple(type(self)(m, v) for m, v in zip(means, variances, strict=True))

    # -- what it is -----------------------------------------------------------------------------

    def _tensor(self, name: str) -> Tensor:
        """The mean, from which `name` can be read off."""
        if isinstance(self.mean, PackedSequence):
            refuse_packed(name)
        return self.mean

    @property
    def _data(self) -> Tensor:
        """The mean, or its entries if packed."""
        return self.mean.data if isinstance(self.mean, PackedSequence) else self.mean

    @property
    def shape(self) -> torch.Size:
        return self._tensor("shape").shape

    @property
    def ndim(self) -> int:
        return self._tensor("ndim").ndim

    @property
    def dtype(self) -> torch.dtype:
        return self._data.dtype

    @property
    def device(self) -> torch.device:
        return self._data.device

    @property
    def is_cuda(self) -> bool:
        return self._data.is_cuda

    @property
    def requires_grad(self) -> bool:
        """Whether the mean or the variance asks for gradients."""
        var = self.var.data if isinstance(self.var, PackedSequence) else self.var
        return self._data.requires_grad or var.requires_grad

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self._data.numel()

    # -- moved and cast -------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Both tensors moved or cast, with the arguments of `Tensor.to`."""
        return type(self)(self.mean.to(*args, **kwargs), self.var.to(*args, **kwargs))

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Self:
        return type(self)(self.mean.cuda(device), self.var.cuda(device))

    def float(self) -> Self:
        return self.to(torch.float32)

    def double(self) -> Self:
        return self.to(torch.float64)

    def half(self) -> Self:
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        return self.to(torch.bfloat16)

    def detach(self) -> Self:
        return self._each(Tensor.detach)

    def clone(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.clone, *args, **kwargs)

    def contiguous(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.contiguous, *args, **kwargs)

    # -- reshaped; the arguments are those of the methods of `Tensor` ---------------------------

    def view(self, *shape: Any) -> Self:
        return self._each(Tensor.view, *shape)

    def reshape(self, *shape: Any) -> Self:
        return self._each(Tensor.reshape, *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        return self._each(Tensor.flatten, start_dim, end_dim)

    def unflatten(self, dim: int, sizes: Any) -> Self:
        return self._each(Tensor.unflatten, dim, sizes)

    def expand(self, *sizes: Any) -> Self:
        return self._each(Tensor.expand, *sizes)

    def expand_as(self, other: Tensor | Self) -> Self:
        return self._each(Tensor.expand, other.shape)

    def repeat(self, *repeats: Any) -> Self:
        return self._each(Tensor.repeat, *repeats)

    def permute(self, *dims: Any) -> Self:
        return self._each(Tensor.permute, *dims)

    def movedim(self, source: Any, destination: Any) -> Self:
        return self._each(Tensor.movedim, source, destination)

    def transpose(self, dim0: int, dim1: int) -> Self:
        return self._each(Tensor.transpose, dim0, dim1)

    @property
    def T(self) -> Self:  # noqa: N802 (the name that Tensor gives it)
        return self._each(_T)

    @property
    def mT(self) -> Self:  # noqa: N802
        return self._each(_mT)

    def squeeze(self, *dim: Any) -> Self:
        return self._each(Tensor.squeeze, *dim)

    def unsqueeze(self, dim: int) -> Self:
        return self._each(Tensor.unsqueeze, dim)

    def flip(self, *dims: Any) -> Self:
        return self._each(Tensor.flip, *dims)

    def roll(self, shifts: Any, dims: Any = ()) -> Self:
        return self._each(Tensor.roll, shifts, dims)

    def select(self, dim: int, index: int) -> Self:
        return self._each(Tensor.select, dim, index)

    def narrow(self, dim: int, start: Any, length: int) -> Self:
        return self._each(Tensor.narrow, dim, start, length)

    def index_select(self, dim: int, index: Tensor) -> Self:
        return self._each(Tensor.index_select, dim, index)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        return self._each_parts(Tensor.chunk, chunks, dim)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        return self._each_parts(torch.split, sizes, dim)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        return self._each_parts(Tensor.unbind, dim)

    # -- mathematics, by the rules of `spgru.functional` ----------------------------------------

    def __add__(self, other: Any) -> Any:
        return _operate(torch.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _operate(torch.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _operate(torch.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operate(torch.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _operate(torch.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operate(torch.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _operate(torch.div, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _operate(torch.div, other, self)

    def __matmul__(self, other: Any) -> Any:
        return _operate(torch.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _operate(torch.matmul, other, self)

    def __pow__(self, exponent: Any) -> Any:
        return _operate(torch.pow, self, exponent)

    def __neg__(self) -> Any:
        return apply_rule(torch.neg, self)

    def __pos__(self) -> Self:
        return self

    def sum(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Of independent entries."""
        return apply_rule(torch.sum, self, dim, keepdim)

    def square(self) -> Any:
        return apply_rule(torch.square, self)

    def exp(self) -> Any:
        return apply_rule(torch.exp, self)

    def relu(self) -> Any:
        return apply_rule(torch.relu, self)

    def sigmoid(self) -> Any:
        return apply_rule(torch.sigmoid, self)

    def tanh(self) -> Any:
        return apply_rule(torch.tanh, self)
