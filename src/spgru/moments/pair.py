"""`Moments`: a random tensor, known by its elementwise mean and variance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spgru.moments import observers
from spgru.moments.fields import check_fields, describe, refuse_packed
from spgru.moments.rows import wants_rows
from spgru.moments.table import refuse_writing
from spgru.moments.tensor_methods import TensorMethods, apply_rule

__all__ = ["Moments", "Value", "certain", "promote"]


class SupportsNatural(Protocol):
    """Anything that turns moments into natural parameters: the classes of `spgru.families`."""

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Moments(TensorMethods):
    """Elementwise mean and variance of a random tensor whose entries count as independent.

    Unpacks like a pair (`mean, var = moments`), is otherwise used like a tensor: indexing
    (`moments[:, -1]`), reshaping, arithmetic (`moments * scale + shift`), `torch.cat`, `torch.relu`
    and other functions of torch that have a rule; those without raise TypeError. It is a pytree and
    passes through `torch.compile`.

    Operands of arithmetic count as independent, except an object with itself: `x + x` is 2x and
    `x * x` is x^2. Two parts of one object are not recognised as the same. Numbers and tensors
    beside moments are certain.

    `==` tells whether two are the same object. Comparing entries with numbers, tensors or one
    another (`==`, `<` and the like) raises TypeError: compare `x.mean`, or take `x.cdf(value)`.

    For packed sequences both fields are a `PackedSequence`; see `pack_padded_moments`.

    Types, shapes, dtypes and devices are checked here; values (no negative variance) by layers and
    by `spgru.functional`.
    """

    mean: Tensor
    """(*shape)"""
    var: Tensor
    """(*shape), never negative"""

    __array_ufunc__: ClassVar[None] = None
    """Makes numpy leave `array * moments` to us, instead of an array of objects."""

    def __post_init__(self) -> None:
        # Every operation of a step passes here: where all is well it takes half a microsecond.
        mean, var = self.mean, self.var
        if not (
            isinstance(mean, Tensor)
            and isinstance(var, Tensor)
            and mean.shape == var.shape
            and mean.dtype is var.dtype
            and mean.dtype.is_floating_point
            and mean.device == var.device
        ):
            check_fields(mean, var)
        if observers.open_blocks:
            observers.tell(self)

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not all(issubclass(kind, (Tensor, Moments)) for kind in types):
            return NotImplemented
        kwargs = dict(kwargs or {})
        if kwargs.pop("out", None) is not None:
            refuse_writing("out")
        return apply_rule(function, *args, **kwargs)

    # -- a pair, and a container ----------------------------------------------------------------

    def __iter__(self) -> Iterator[Tensor]:
        """Mean and variance; rows, as of a tensor, in the code of a converted network."""
        if wants_rows():
            rows: Any = self.unbind()
            return iter(rows)
        return iter((self.mean, self.var))

    def __getitem__(self, index: Any) -> Moments:
        if isinstance(self.mean, PackedSequence):
            refuse_packed("indexing")
        return Moments(self.mean[index], self.var[index])

    def __len__(self) -> int:
        """Size of the first dimension, as of a tensor (unpacking still gives mean and variance)."""
        return len(self._tensor("len"))

    def __bool__(self) -> bool:
        raise TypeError("Moments have no truth value; compare x.mean, or test `x is None`")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Moments are two arrays; convert x.mean or x.var")

    def __repr__(self) -> str:
        return describe(self.mean, self.var)

    def __getattr__(self, name: str) -> Any:
        """Methods of a Tensor without one of ours: by the table, or its error.

        Packed Moments also have what a `PackedSequence` has, which torch's functions read.
        """
        if name in PackedSequence._fields and isinstance(self.mean, PackedSequence):
            own = getattr(self.mean, name)
            return Moments(own, getattr(self.var, name)) if name == "data" else own
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"Moments have no attribute {name!r}; use x.mean or x.var")
        return partial(apply_rule, method, self)

    # -- as a Gaussian --------------------------------------------------------------------------

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        self._tensor("std")
        return self.var.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval that a Gaussian with these moments falls into with probability `level`.

        Returns:
            lower and upper bound, each of this object's shape.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}; pass 0.95 for 95 %")
        self._tensor("interval")
        half_width = NormalDist().inv_cdf((1 + level) / 2) * self.std
        return self.mean - half_width, self.mean + half_width

    def quantile(self, q: float | Tensor) -> Tensor:
        """The value below which a Gaussian with these moments lies with probability `q`.

        With variance 0 it is the mean, for every `q`.

        Args:
            q: between 0 and 1, both excluded; a tensor adds its dimensions in front (where its
                entries lie outside, the result is NaN or infinite)

        Returns:
            (*q.shape, *shape)
        """
        mean = self._tensor("quantile")
        if isinstance(q, Tensor):
            z: Tensor = torch.special.ndtri(q.double()).to(mean.dtype)
            return mean + self.std * z.reshape(*q.shape, *[1] * mean.ndim)
        if not 0 < q < 1:
            raise ValueError(f"q must lie between 0 and 1, got {q}; pass 0.95 for 95 %")
        return mean + self.std * NormalDist().inv_cdf(q)

    def cdf(self, value: Tensor | float) -> Tensor:
        """Probability that a Gaussian with these moments is at most `value`, which broadcasts.

        With variance 0 it is 0 below the mean, and 1 from the mean on.
        """
        difference = value - self._tensor("cdf")
        # 0 / 0 where a certain value is met exactly.
        met = (difference == 0) & (self.var == 0)
        z = difference / torch.where(met, 1.0, self.var).sqrt()
        return torch.where(met, 1.0, 0.5 * torch.erfc(-z / math.sqrt(2)))

    def log_prob(self, value: Tensor | float) -> Tensor:
        """log N(value; mean, var) in nats, of this object's shape, to which `value` expands.

        With variance 0 it is infinite: +inf where the mean is `value`, else -inf.
        """
        mean = self._tensor("log_prob")
        if isinstance(value, Tensor) and _broadcast(value.shape, mean.shape) != mean.shape:
            raise ValueError(
                f"value has shape {tuple(value.shape)} but the moments have {tuple(mean.shape)}; "
                "pass the same shape, or one that expands to it"
            )
        squared_error = (value - mean) ** 2
        met = (squared_error == 0) & (self.var == 0)
        squared = squared_error / torch.where(met, 1.0, self.var)
        # The sum would be NaN for a certain value that is missed, inf - inf.
        log_var = torch.where(squared.isinf(), 0.0, self.var.log())
        return -0.5 * (squared + log_var + math.log(2 * math.pi))

    def sample(self, shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws from a Gaussian with these moments; variance 0 gives the mean.

        Gradients pass to mean and variance, but the variance's is infinite where it is 0.

        Returns:
            (*shape, *self.shape)
        """
        size = (*shape, *self.shape)
        noise = torch.randn(size, dtype=self.dtype, device=self.device, generator=generator)
        return self.mean + self.std * noise

    def to_natural(self, family: SupportsNatural) -> tuple[Tensor, ...]:
        """Natural parameters of the member of `family` with these moments."""
        if isinstance(family, str):
            raise TypeError(
                f"family must be an object, got the name {family!r}; "
                f"pass spgru.families.get({family!r})"
            )
        return family.to_natural(self)


def _broadcast(a: torch.Size, b: torch.Size) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(a, b)  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:
        return None


# -- pytree ---------------------------------------------------------------------------------------


def _unflatten(children: Any, _: Any) -> Moments:
    """Without the checks: what torch maps over leaves may give anything, numbers or None."""
    moments = object.__new__(Moments)
    for name, child in zip(("mean", "var"), children, strict=True):
        object.__setattr__(moments, name, child)
    return moments


pytree.register_pytree_node(
    Moments,
    lambda moments: ([moments.mean, moments.var], None),
    _unflatten,
    serialized_type_name="spgru.Moments",
    # torch.export names inputs by these.
    flatten_with_keys_fn=lambda moments: (
        [(pytree.GetAttrKey(name), getattr(moments, name)) for name in ("mean", "var")],
        None,
    ),
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
    dtype = next((value.dtype for value in values if isinstance(value, Moments)), None)
    if dtype is None:
        return values
    # Integers and masks have no moments of their own dtype.
    return tuple(
        certain(v if v.is_floating_point() else v.to(dtype)) if isinstance(v, Tensor) else v
        for v in values
    )
