"""`Moments`: a random tensor, known by its elementwise mean and variance.

Torch's own functions accept `Moments` (`__torch_function__`) if a table has a rule for them. Here
stand the rules that treat mean and variance alike: reshaping, joining, selecting. Those that need
mathematics are in `spgru.functional.torch_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from numbers import Real
from statistics import NormalDist
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import resolve_name

__all__ = [
    "Moments",
    "Value",
    "cat",
    "certain",
    "pack_padded_moments",
    "pad_packed_moments",
    "rule_for",
    "stack",
]

_Float: TypeAlias = float  # inside the class the name means the method

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[Any, Rule] = {}
"""From a function of torch to what it does with `Moments`."""

_REMEDIES: dict[Any, str] = {}
"""What to use instead of a function that has no rule, if not simply x.mean."""


def rule_for(*functions: Any) -> Callable[[RuleT], RuleT]:
    """Decorator: the function below answers for these functions of torch, with their arguments."""

    def register(rule: RuleT) -> RuleT:
        _RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def no_rule_for(*functions: Any, remedy: str) -> None:
    """What the error says instead of "use x.mean" when one of these functions meets `Moments`."""
    _REMEDIES.update(dict.fromkeys(functions, remedy))


def refuse_writing(argument: str) -> NoReturn:
    raise TypeError(f"Moments are immutable; leave out {argument} and use what is returned")


def functions_named(*names: str) -> list[Any]:
    """The functions of these names in `torch`, `torch.nn.functional`, and the methods of `Tensor`.

    They are different objects to `__torch_function__`.
    """
    spaces = (torch, F, Tensor)
    return [getattr(space, name) for name in names for space in spaces if hasattr(space, name)]


def _apply_rule(function: Any, *args: Any, **kwargs: Any) -> Any:
    rule = _RULES.get(function)
    if rule is not None:
        for value in args:
            values = value if isinstance(value, (list, tuple)) else (value,)
            if any(isinstance(v, Moments) and isinstance(v.mean, PackedSequence) for v in values):
                _refuse_packed(_name(function))
        return rule(*args, **kwargs)
    remedy = _REMEDIES.get(
        function,
        "use x.mean and x.var, or register a rule with spgru.moments.rule_for",
    )
    raise TypeError(f"{_name(function)} has no rule for Moments; {remedy}")


def _name(function: Any) -> str:
    return str(resolve_name(function) or getattr(function, "__name__", function))


def _operate(function: Any, *operands: Any) -> Any:
    """A Python operator; one side is `Moments`, the other may be anything."""
    for operand in operands:
        if not isinstance(operand, (Moments, Tensor, Real)):
            if isinstance(operand, (np.ndarray, list)):
                raise TypeError(
                    f"an operand beside Moments must be a Tensor or a number, got "
                    f"{type(operand).__name__}; convert it with torch.as_tensor"
                )
            return NotImplemented
    return _apply_rule(function, *operands)


# -- who watches ----------------------------------------------------------------------------------


class Watcher(Protocol):
    """Sees what is computed; see `spgru.response`."""

    def made(self, moments: Moments) -> None:
        """Called with all `Moments` that are made, which it may change."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: Any) -> Any:
        """What the function gives; of all `Moments` it makes a watcher sees those it returns."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_watching = 0
"""Blocks of `watching` that are open in any thread: all that is read while there is none."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Block in which what this thread computes is seen by the watcher."""
    global _watching
    token = _watcher.set(watcher)
    _watching += 1
    try:
        yield
    finally:
        _watching -= 1
        _watcher.reset(token)


@contextmanager
def unwatched() -> Iterator[None]:
    """Block that no watcher sees."""
    token = _watcher.set(None)
    try:
        yield
    finally:
        _watcher.reset(token)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def watched_as_one(function: FunctionT) -> FunctionT:
    """Decorator: for a watcher the function is one operation."""

    @wraps(function)
    def one(*args: Any, **options: Any) -> Any:
        watcher = _watcher.get() if _watching else None
        if watcher is None:
            return function(*args, **options)
        return watcher.run(function, args, options)

    return one  # type: ignore[return-value]


class SupportsNatural(Protocol):
    """Anything that turns moments into natural parameters: the classes of `spgru.families`."""

    def to_natural(self, moments: Moments) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Moments:
    """Elementwise mean and variance of a random tensor whose entries count as independent.

    Unpacks like a pair (`mean, var = moments`), is otherwise used like a tensor: indexing
    (`moments[:, -1]`), reshaping, arithmetic (`moments * scale + shift`), `torch.cat`, `torch.relu`
    and other functions of torch that have a rule; those without raise TypeError. It is a pytree and
    passes through `torch.compile`.

    Operands of arithmetic count as independent, except an object with itself: `x + x` is 2x and
    `x * x` is x^2. Two parts of one object are not recognised as the same. Numbers and tensors
    beside moments are certain.

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
            _check_fields(mean, var)
        if _watching:
            watcher = _watcher.get()
            if watcher is not None:
                watcher.made(self)

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
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        return _apply_rule(function, *args, **kwargs)

    # -- a pair, and a container ----------------------------------------------------------------

    def __iter__(self) -> Iterator[Tensor]:
        yield self.mean
        yield self.var

    def __getitem__(self, index: Any) -> Moments:
        if isinstance(self.mean, PackedSequence):
            _refuse_packed("indexing")
        return Moments(self.mean[index], self.var[index])

    def __len__(self) -> int:
        """Size of the first dimension, as of a tensor (unpacking still gives mean and variance)."""
        return len(self._tensor("len"))

    def __bool__(self) -> bool:
        raise TypeError("Moments have no truth value; compare x.mean, or test `x is None`")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("Moments are two arrays; convert x.mean or x.var")

    def __repr__(self) -> str:
        return _describe(self.mean, self.var)

    def __getattr__(self, name: str) -> Any:
        """Methods of a Tensor without one of ours: by the table, or its error."""
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(f"Moments have no attribute {name!r}; use x.mean or x.var")
        return partial(_apply_rule, method, self)

    # -- what it is -----------------------------------------------------------------------------

    def _tensor(self, name: str) -> Tensor:
        """The mean, from which `name` can be read off."""
        if isinstance(self.mean, PackedSequence):
            _refuse_packed(name)
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

    # -- as a Gaussian --------------------------------------------------------------------------

    @property
    def std(self) -> Tensor:
        """Standard deviation."""
        self._tensor("std")
        return self.var.sqrt()

    def interval(self, level: _Float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval that a Gaussian with these moments falls into with probability `level`.

        Returns:
            lower and upper bound, each of this object's shape.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}; pass 0.95 for 95 %")
        self._tensor("interval")
        half_width = NormalDist().inv_cdf((1 + level) / 2) * self.std
        return self.mean - half_width, self.mean + half_width

    def quantile(self, q: _Float | Tensor) -> Tensor:
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

    def cdf(self, value: Tensor | _Float) -> Tensor:
        """Probability that a Gaussian with these moments is at most `value`, which broadcasts.

        With variance 0 it is 0 below the mean, and 1 from the mean on.
        """
        difference = value - self._tensor("cdf")
        # 0 / 0 where a certain value is met exactly.
        met = (difference == 0) & (self.var == 0)
        z = difference / torch.where(met, 1.0, self.var).sqrt()
        return torch.where(met, 1.0, 0.5 * torch.erfc(-z / math.sqrt(2)))

    def log_prob(self, value: Tensor | _Float) -> Tensor:
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

    # -- moved and cast -------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> Moments:
        """Both tensors moved or cast, with the arguments of `Tensor.to`."""
        return Moments(self.mean.to(*args, **kwargs), self.var.to(*args, **kwargs))

    def cpu(self) -> Moments:
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Moments:
        return Moments(self.mean.cuda(device), self.var.cuda(device))

    def float(self) -> Moments:
        return self.to(torch.float32)

    def double(self) -> Moments:
        return self.to(torch.float64)

    def half(self) -> Moments:
        return self.to(torch.float16)

    def bfloat16(self) -> Moments:
        return self.to(torch.bfloat16)

    def detach(self) -> Moments:
        return _alike(Tensor.detach, self)

    def clone(self, *args: Any, **kwargs: Any) -> Moments:
        return _alike(Tensor.clone, self, *args, **kwargs)

    def contiguous(self, *args: Any, **kwargs: Any) -> Moments:
        return _alike(Tensor.contiguous, self, *args, **kwargs)

    # -- reshaped; the arguments are those of the methods of `Tensor` ---------------------------

    def view(self, *shape: Any) -> Moments:
        return _alike(Tensor.view, self, *shape)

    def reshape(self, *shape: Any) -> Moments:
        return _alike(Tensor.reshape, self, *shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Moments:
        return _alike(Tensor.flatten, self, start_dim, end_dim)

    def unflatten(self, dim: int, sizes: Any) -> Moments:
        return _alike(Tensor.unflatten, self, dim, sizes)

    def expand(self, *sizes: Any) -> Moments:
        return _alike(Tensor.expand, self, *sizes)

    def expand_as(self, other: Tensor | Moments) -> Moments:
        return _alike(Tensor.expand, self, other.shape)

    def repeat(self, *repeats: Any) -> Moments:
        return _alike(Tensor.repeat, self, *repeats)

    def permute(self, *dims: Any) -> Moments:
        return _alike(Tensor.permute, self, *dims)

    def movedim(self, source: Any, destination: Any) -> Moments:
        return _alike(Tensor.movedim, self, source, destination)

    def transpose(self, dim0: int, dim1: int) -> Moments:
        return _alike(Tensor.transpose, self, dim0, dim1)

    @property
    def T(self) -> Moments:  # noqa: N802 (the name that Tensor gives it)
        return _alike(lambda part: part.T, self)

    @property
    def mT(self) -> Moments:  # noqa: N802
        return _alike(lambda part: part.mT, self)

    def squeeze(self, *dim: Any) -> Moments:
        return _alike(Tensor.squeeze, self, *dim)

    def unsqueeze(self, dim: int) -> Moments:
        return _alike(Tensor.unsqueeze, self, dim)

    def flip(self, *dims: Any) -> Moments:
        return _alike(Tensor.flip, self, *dims)

    def roll(self, shifts: Any, dims: Any = ()) -> Moments:
        return _alike(Tensor.roll, self, shifts, dims)

    def select(self, dim: int, index: int) -> Moments:
        return _alike(Tensor.select, self, dim, index)

    def narrow(self, dim: int, start: Any, length: int) -> Moments:
        return _alike(Tensor.narrow, self, dim, start, length)

    def index_select(self, dim: int, index: Tensor) -> Moments:
        return _alike(Tensor.index_select, self, dim, index)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Moments, ...]:
        return _alike_parts(Tensor.chunk, self, chunks, dim)

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Moments, ...]:
        return _alike_parts(torch.split, self, sizes, dim)

    def unbind(self, dim: int = 0) -> tuple[Moments, ...]:
        return _alike_parts(Tensor.unbind, self, dim)

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
        return _apply_rule(torch.neg, self)

    def __pos__(self) -> Moments:
        return self

    def sum(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Of independent entries."""
        return _apply_rule(torch.sum, self, dim, keepdim)

    def square(self) -> Any:
        return _apply_rule(torch.square, self)

    def exp(self) -> Any:
        return _apply_rule(torch.exp, self)

    def relu(self) -> Any:
        return _apply_rule(torch.relu, self)

    def sigmoid(self) -> Any:
        return _apply_rule(torch.sigmoid, self)

    def tanh(self) -> Any:
        return _apply_rule(torch.tanh, self)


# -- checks and text ------------------------------------------------------------------------------


def _check_fields(mean: Any, var: Any) -> None:
    """Raise unless the fields fit together; see `Moments`."""
    if isinstance(mean, PackedSequence) or isinstance(var, PackedSequence):
        if type(mean) is type(var):
            return
        raise ValueError(
            f"mean is a {type(mean).__name__} and var a {type(var).__name__}; pack both, "
            "use spgru.pack_padded_moments"
        )
    for name, value in (("mean", mean), ("var", var)):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a Tensor, got {type(value).__name__}; convert it, for instance "
                f"with torch.as_tensor or torch.full_like"
            )
        if not value.dtype.is_floating_point:
            raise TypeError(
                f"{name} has dtype {value.dtype} but must have a floating dtype; "
                f"convert it, for instance {name}.float()"
            )
    if mean.shape != var.shape:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)} but var {tuple(var.shape)}; "
            "expand one to the other's shape"
        )
    if mean.dtype != var.dtype and not is_autocast(mean):
        raise ValueError(
            f"mean has dtype {mean.dtype} but var has dtype {var.dtype}; "
            f"convert one of them, for instance var.to({mean.dtype})"
        )
    if mean.device != var.device:
        raise ValueError(
            f"mean is on {mean.device} but var is on {var.device}; "
            f"move one of them, for instance var.to({str(mean.device)!r})"
        )


def _broadcast(a: torch.Size, b: torch.Size) -> torch.Size | None:
    try:
        return torch.broadcast_shapes(a, b)  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:
        return None


def is_autocast(like: Tensor) -> bool:
    """Whether autocast chooses dtypes, operation by operation, on the device of `like`."""
    device = like.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _refuse_packed(name: str) -> NoReturn:
    raise TypeError(
        f"{name} is not defined for packed Moments; "
        "call spgru.pad_packed_moments first, which gives padded Moments and lengths"
    )


_FEW = 8
"""Up to so many entries are shown by `repr`."""


def _describe(mean: Any, var: Any) -> str:
    if isinstance(mean, PackedSequence):
        return f"Moments(packed, {_layout(mean.data)})"
    if not isinstance(mean, Tensor):  # a pytree whose leaves were replaced
        return f"Moments(mean={mean!r}, var={var!r})"
    has_values = (
        type(mean) is type(var) is Tensor
        and mean.shape == var.shape
        and mean.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(mean)
    )
    if not has_values or mean.numel() > _FEW:
        return f"Moments({_layout(mean)})"
    return f"Moments({_values(mean.tolist(), var.tolist())}, {_layout(mean)})"


def _layout(tensor: Tensor) -> str:
    return f"shape={tuple(tensor.shape)}, dtype={tensor.dtype}, device={str(tensor.device)!r}"


def _values(mean: Any, var: Any) -> str:
    """Each entry as mean ± std, nested as the dimensions are."""
    if isinstance(mean, list):
        return f"[{', '.join(_values(m, v) for m, v in zip(mean, var, strict=True))}]"
    spread = f"{math.sqrt(var):.2g}" if var >= 0 else f"sqrt({var:.2g})"
    return f"{mean:.4g} ± {spread}"


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


# -- rules that treat mean and variance alike -----------------------------------------------------


def _alike(function: Callable[..., Any], x: Moments, *args: Any, **kwargs: Any) -> Moments:
    """The function applied to mean and variance."""
    if isinstance(x.mean, PackedSequence):
        _refuse_packed(getattr(function, "__name__", "this"))
    return Moments(function(x.mean, *args, **kwargs), function(x.var, *args, **kwargs))


def _alike_parts(
    function: Callable[..., Any], x: Moments, *args: Any, **kwargs: Any
) -> tuple[Moments, ...]:
    """As `_alike`, for a function that gives several tensors."""
    if isinstance(x.mean, PackedSequence):
        _refuse_packed(getattr(function, "__name__", "this"))
    means, variances = function(x.mean, *args, **kwargs), function(x.var, *args, **kwargs)
    return tuple(Moments(m, v) for m, v in zip(means, variances, strict=True))


_RESHAPING = (
    "atleast_1d atleast_2d atleast_3d broadcast_to clone contiguous detach diagonal expand flatten "
    "flip fliplr flipud gather index_select masked_select moveaxis movedim narrow permute "
    "pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape roll rot90 select "
    "squeeze swapaxes swapdims t take_along_dim tile transpose tril triu unflatten unfold "
    "unsqueeze view"
)
_DIVIDING = "chunk dsplit hsplit split tensor_split unbind vsplit"

for _function in functions_named(*_RESHAPING.split()):
    rule_for(_function)(partial(_alike, _function))
for _function in functions_named(*_DIVIDING.split()):
    rule_for(_function)(partial(_alike_parts, _function))


@rule_for(torch.numel)
def _numel(x: Moments) -> int:
    return x.numel()


@rule_for(torch.is_floating_point)
def _is_floating_point(x: Moments) -> bool:
    return x.dtype.is_floating_point


@rule_for(torch.stack)
def stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    """`torch.stack` for tensors or moments."""
    return _join(torch.stack, tensors, dim)


@rule_for(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    """`torch.cat` for tensors or moments."""
    return _join(torch.cat, tensors, dim)


def _join(function: Any, values: Sequence[Value], dim: int) -> Value:
    alike: tuple[Value, ...] = promote(*values)
    if isinstance(alike[0], Tensor):
        joined: Value = function(alike, dim)
        return joined
    return Moments(
        function([value.mean for value in alike], dim),
        function([value.var for value in alike], dim),
    )


@rule_for(torch.where)
def _where(condition: Tensor, input: Any, other: Any) -> Moments:
    """Numbers and tensors beside moments are certain."""
    if isinstance(condition, Moments):
        raise TypeError("condition must be a Tensor, got Moments; compare x.mean")
    values = (input, other)
    mean: Any = torch.where(condition, *(v.mean if isinstance(v, Moments) else v for v in values))
    var: Any = torch.where(condition, *(v.var if isinstance(v, Moments) else 0.0 for v in values))
    return Moments(mean, var.to(mean.dtype).expand_as(mean))


@rule_for(Tensor.where)
def _where_method(x: Any, condition: Tensor, other: Any) -> Moments:
    return _where(condition, x, other)


@rule_for(F.pad)
def _pad(
    x: Moments, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Moments:
    """What is added is certain, or a copy of an entry where `mode` says so."""
    var = F.pad(x.var, pad, mode, 0.0 if mode == "constant" else None)
    return Moments(F.pad(x.mean, pad, mode, value), var)


# -- packed sequences -----------------------------------------------------------------------------


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
