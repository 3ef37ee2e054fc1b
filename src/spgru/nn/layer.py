"""What all layers share: options, weights, recording of neurons."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypedDict

import torch
from torch import Tensor, nn

from spgru.checks import check_choice, check_value
from spgru.families import Family, Parameterization, get
from spgru.functional import Affine, Rule
from spgru.moments import certain
from spgru.nn.weight import Weight

__all__ = ["Layer", "Options", "Record", "recording"]


class Record(NamedTuple):
    """The neurons of one part of a layer ("l0", "l0_reverse", or "") during one call."""

    part: str
    neurons: dict[str, Any]
    time_dim: int | None


class Options(TypedDict, total=False):
    """The keyword arguments that every layer takes beyond those of `torch.nn`; see `Layer`."""

    family: str | Family
    rule: Rule
    parameterization: Parameterization
    weight_std: float | None


class Layer(nn.Module):
    """A module of random weights.

    Args:
        family: `"gaussian"`, `"gamma"`, `"poisson"`, or an object of `spgru.families`
        rule: `"exact"`, or `"paper"` for the printed formulas
        parameterization: store and learn `"moments"` or `"natural"` parameters
        weight_std: standard deviation of every weight at the start; None for a tenth of the
            range that `torch.nn` initialises within. 0 gives a deterministic network.
    """

    torch_class: type[nn.Module]
    """The layer's counterpart in `torch.nn`."""

    def __init__(
        self,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("rule", rule, ("exact", "paper"))
        check_choice("parameterization", parameterization, ("moments", "natural"))
        if weight_std is not None and not weight_std >= 0:
            raise ValueError(f"weight_std must not be negative, got {weight_std}")
        self.family, self.rule, self.parameterization = get(family), rule, parameterization
        self.weight_std = weight_std
        self._factory = {"device": device, "dtype": dtype}
        self._records: list[Record] | None = None
        self._frozen: dict[str, tuple[list[Any], list[Any], Affine]] = {}
        self._captured: list[Affine] = []
        self._steady: dict[str, Affine] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frozen": {}, "_captured": [], "_steady": None}

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        """Moved or cast, and what was kept for the old weights let go."""
        self._frozen.clear()
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def _add_weight(self, name: str, shape: tuple[int, ...], fan_in: int, bound: float) -> None:
        weight = Weight(
            shape,
            fan_in,
            bound,
            self.family,
            self.parameterization,
            self.weight_std,
            **self._factory,  # type: ignore[arg-type]
        )
        self.register_module(name, weight)

    def _weights(self) -> dict[str, Weight]:
        """In the order of `torch.nn`'s parameters."""
        return {name: child for name, child in self.named_children() if isinstance(child, Weight)}

    def _value(self, name: str) -> Any:
        """Moments or draw of the weight of that name, None where the layer has none."""
        weight = self._modules.get(name)
        return None if weight is None else weight()

    def _affine(self, weight: str, bias: str) -> Affine:
        """The map with these weights, and what they imply: see `steady` and `_or_frozen`."""
        return self._once(weight, lambda: self._or_frozen(weight, bias))

    def _once(self, key: str, make: Callable[[], Affine]) -> Affine:
        """What `make` gives; within `steady` that of the first call."""
        if self._steady is None or self._first.redraws_every_step:
            return make()
        if key not in self._steady:
            self._steady[key] = make()
        return self._steady[key]

    def _or_frozen(self, weight: str, bias: str) -> Affine:
        """The map with these weights; what frozen ones (`requires_grad_(False)`) imply is kept.

        Kept until a weight changes, which torch counts, but for changes through `.data`. A CUDA
        graph captures what is kept already, so capture again when frozen weights change.
        """
        modules = [m for m in (self._modules[weight], self._modules.get(bias)) if m is not None]
        if torch.compiler.is_compiling() or modules[0].is_certain:
            return Affine.of(self._value(weight), self._value(bias))
        parameters = [p for module in modules for p in module._parameters.values() if p is not None]
        if not all(map(_is_frozen, parameters)):
            self._frozen.pop(weight, None)
            return Affine.of(self._value(weight), self._value(bias))
        # The parameters themselves are kept too: another one may come to lie at the same address.
        state: list[Any] = [(p.data_ptr(), p._version) for p in parameters]
        # Under autocast what is kept may have another dtype.
        state.append(torch.is_autocast_enabled(parameters[0].device.type))
        kept = self._frozen.get(weight)
        is_valid = (
            kept is not None
            and kept[1] == state
            and all(a is b for a, b in zip(kept[0], parameters, strict=True))
        )
        if _is_captured(parameters[0]):
            # Nothing is computed before the graph runs: what is made here must not be kept.
            if kept is None or not is_valid:
                return Affine.of(self._value(weight), self._value(bias))
            # The graph knows addresses only: what it reads has to live as long as the layer.
            if not any(affine is kept[2] for affine in self._captured):
                self._captured.append(kept[2])
            return kept[2].copy()
        if kept is None or not is_valid:
            # Outside inference mode, so that it may take part in a backward pass later.
            with torch.inference_mode(False):
                kept = parameters, state, Affine.of(self._value(weight), self._value(bias))
            self._frozen[weight] = kept
        return kept[2]

    @property
    def _first(self) -> Weight:
        return next(child for child in self._modules.values() if isinstance(child, Weight))

    @property
    def _like(self) -> Tensor:
        return next(self._first.parameters())

    def _check(self, name: str, value: Any) -> None:
        """What users pass in is a Tensor or Moments that suits the parameters and the family."""
        check_value(name, value, self._like)
        self.family.check_support(name, value)

    def _enter(self, value: Any) -> Any:
        """While weights are numbers, so is what enters: neurons are plain numbers then."""
        weight = self._first
        if not weight.is_certain or isinstance(value, Tensor):
            return value
        return weight.like_weights(value)

    def _leave(self, value: Any) -> Any:
        return certain(value) if isinstance(value, Tensor) else value

    def reset_parameters(self) -> None:
        for weight in self._weights().values():
            weight.reset_parameters()

    @classmethod
    def from_torch(cls, module: nn.Module, weight_std: float | None = None, **options: Any) -> Self:
        """The same layer with the weights of `module` as means and `weight_std` around them."""
        if not isinstance(module, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.from_torch takes a torch.nn.{cls.torch_class.__name__}, "
                f"got {type(module).__name__}"
            )
        like = next(module.parameters())
        options |= {"device": like.device, "dtype": like.dtype, "weight_std": weight_std}
        layer = cls(**cls._torch_arguments(module), **options)
        for name, weight in layer._weights().items():
            mean = getattr(module, name).detach().clone()
            weight.set_(layer.family.moments_of(mean, weight_std, weight.bound))
        return layer.train(module.training)

    @torch.no_grad()
    def to_torch(self) -> Any:
        """The `torch.nn` layer with the means as weights."""
        if self.family.name != "gaussian":
            raise ValueError(
                f"family={self.family.name!r} has no counterpart in torch.nn, whose activations "
                "are sigmoid and tanh; only gaussian layers convert"
            )
        like = self._like
        module = self.torch_class(
            **self._torch_arguments(self), device=like.device, dtype=like.dtype
        )
        for name, weight in self._weights().items():
            getattr(module, name).copy_(weight.moments().mean)
        return module.train(self.training)

    @staticmethod
    @abstractmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        """The constructor's arguments, read off a layer of ours or of `torch.nn`."""

    def _options_repr(self) -> str:
        parts = [f"family={self.family.name!r}"]
        if self.rule != "exact":
            parts.append(f"rule={self.rule!r}")
        if self.parameterization != "moments":
            parts.append(f"parameterization={self.parameterization!r}")
        return ", ".join(parts)


def _is_frozen(parameter: Tensor) -> bool:
    """Whether what it implies can be kept: it does not learn, and nothing transforms it."""
    return not (
        parameter.requires_grad
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or type(parameter) not in (Tensor, nn.Parameter)
        or parameter.is_inference()
    )


def _is_captured(parameter: Tensor) -> bool:
    """Whether work on it goes into a CUDA graph."""
    return parameter.is_cuda and torch.cuda.is_current_stream_capturing()


@contextmanager
def steady(module: nn.Module) -> Iterator[None]:
    """Within, the weights of our layers inside `module` stay as they are.

    What they imply (variances, second moments, casts) is then worked out once for all calls, and
    not again for every step of a loop over time. For calls that are differentiated together, or
    not at all.
    """
    layers = [child for child in module.modules() if isinstance(child, Layer)]
    # Only those that are not yet: an inner block must not end an outer one. A compiler sees through
    # all calls anyway.
    layers = [layer for layer in layers if layer._steady is None]
    if torch.compiler.is_compiling():
        layers = []
    for layer in layers:
        layer._steady = {}
    try:
        yield
    finally:
        for layer in layers:
            layer._steady = None


@contextmanager
def recording(module: nn.Module) -> Iterator[dict[str, list[Record]]]:
    """Collect every neuron of our layers inside `module`, by the layer's name in it."""
    layers = {name: child for name, child in module.named_modules() if isinstance(child, Layer)}
    records: dict[str, list[Record]] = {}
    try:
        for name, layer in layers.items():
            layer._records = records[name] = []
        yield records
    finally:
        for layer in layers.values():
            layer._records = None
