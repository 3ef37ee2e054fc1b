"""The methods and operators of `Tensor` that `Moments` have too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments.fields import refuse_packed
from spgru.moments.table import find_rule, functions_named, name_of, no_rule_for

__all__ = ["TensorMethods", "apply_rule"]


def apply_rule(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of torch does with arguments among which there are `Moments`."""
    rule = find_rule(function)
    if kwargs:
        aliases = {} if isinstance(function, FunctionType) else _NUMPY_NAMES
        args, kwargs = _torch_names(args, kwargs, aliases)
    for value in (*args, *kwargs.values()):
        values = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(v, TensorMethods) and isinstance(v.mean, PackedSequence) for v in values):
            refuse_packed(name_of(function))
    return rule(*args, **kwargs)


_NUMPY_NAMES = {
    "axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input", "x1": "input", "x2": "other",
}  # fmt: skip
"""Names of arguments that torch takes from numpy wherever a function is not written in Python."""


def _torch_names(
    args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Mapping[str, str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments by torch's own names, the first of them by its position."""
    renamed: dict[str, Any] = {}
    for name, value in kwargs.items():
        name = aliases.get(name, name)
        if name in renamed:
            raise TypeError(f"{name} is given twice, by torch's name and by numpy's")
        renamed[name] = value
    if not args and "input" in renamed:
        args = (renamed.pop("input"),)
    return args, renamed


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


COMPARISON = "compare x.mean, or take the probability of being at most a value, x.cdf(value)"
"""What to do instead of ==, < and the like."""

no_rule_for(
    *functions_named(
        "eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater",
        "greater_equal", "isclose",
    ),
    remedy=COMPARISON,
)  # fmt: skip


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

    # -- reshaped -------------------------------------------------------------------------------

    def view(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.view, *args, **kwargs)

    def reshape(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.reshape, *args, **kwargs)

    def flatten(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.flatten, *args, **kwargs)

    def unflatten(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.unflatten, *args, **kwargs)

    def expand(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.expand, *args, **kwargs)

    def expand_as(self, other: Tensor | Self) -> Self:
        return self._each(Tensor.expand, other.shape)

    def repeat(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.repeat, *args, **kwargs)

    def permute(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.permute, *args, **kwargs)

    def movedim(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.movedim, *args, **kwargs)

    def transpose(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.transpose, *args, **kwargs)

    @property
    def T(self) -> Self:  # noqa: N802 (the name that Tensor gives it)
        return self._each(_T)

    @property
    def mT(self) -> Self:  # noqa: N802
        return self._each(_mT)

    def squeeze(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.squeeze, *args, **kwargs)

    def unsqueeze(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.unsqueeze, *args, **kwargs)

    def flip(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.flip, *args, **kwargs)

    def roll(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.roll, *args, **kwargs)

    def select(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.select, *args, **kwargs)

    def narrow(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.narrow, *args, **kwargs)

    def index_select(self, *args: Any, **kwargs: Any) -> Self:
        return self._each(Tensor.index_select, *args, **kwargs)

    def chunk(self, *args: Any, **kwargs: Any) -> tuple[Self, ...]:
        return self._each_parts(Tensor.chunk, *args, **kwargs)

    def split(self, *args: Any, **kwargs: Any) -> tuple[Self, ...]:
        return self._each_parts(Tensor.split, *args, **kwargs)

    def unbind(self, *args: Any, **kwargs: Any) -> tuple[Self, ...]:
        return self._each_parts(Tensor.unbind, *args, **kwargs)

    # -- compared -------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Whether both are one object, as containers ask; entries are not compared."""
        if isinstance(other, (Tensor, Real, np.ndarray)):
            raise TypeError(f"== of Moments and {type(other).__name__} has no rule; {COMPARISON}")
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __lt__(self, other: Any) -> NoReturn:
        raise TypeError(f"Moments have no order; {COMPARISON}")

    # One by one, not by assignment: type checkers of users may infer the latter differently.

    def __le__(self, other: Any) -> NoReturn:
        self.__lt__(other)

    def __gt__(self, other: Any) -> NoReturn:
        self.__lt__(other)

    def __ge__(self, other: Any) -> NoReturn:
        self.__lt__(other)

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

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """Of independent entries."""
        return apply_rule(torch.sum, self, *args, **kwargs)

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
