"""What all layers share: options, random weights, and how they run in each mode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spgru.checks import (
    check_choice,
    check_value,
    is_differentiated_forward,
    values_are_checked,
)
from spgru.families import Family, Parameterization, get
from spgru.functional import Affine, Rule
from spgru.functional.products import MATRIX, Product
from spgru.modes import (
    AtMean,
    Drawn,
    Frozen,
    Responding,
    frozen_of,
    record,
    records_of,
    weight_mode,
)
from spgru.moments import Moments, certain, is_autocast, unwatched
from spgru.nn.weight import (
    CERTAIN,
    StandardDeviation,
    Weight,
    WeightShape,
    check_standard_deviation,
    from_old_layout,
    has_old_layout,
    is_spread,
    standard_deviation_of,
)

__all__ = ["Layer", "Options"]


class Options(TypedDict, total=False):
    """The keyword arguments that every layer takes beyond those of `torch.nn`; see `Layer`."""

    family: str | Family
    rule: Rule
    parameterization: Parameterization
    weight_std: StandardDeviation


class Layer(nn.Module):
    """A module of random weights; `spgru.nn.weight` says how they are stored.

    Args:
        family: `"gaussian"`, `"gamma"`, `"poisson"`, or an object of `spgru.families`
        rule: `"exact"`, or `"paper"` for the printed formulas
        parameterization: store and learn `"moments"` or `"natural"` parameters
        weight_std: standard deviation of every weight at the start: a number, a tensor that
            broadcasts to every weight, or a mapping from names of weights to those; None for a
            tenth of the range that `torch.nn` initialises within. 0 gives a deterministic network.
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
        weight_std: StandardDeviation = None,
    ) -> None:
        super().__init__()
        check_choice("rule", rule, ("exact", "paper"))
        check_choice("parameterization", parameterization, ("moments", "natural"))
        check_standard_deviation(weight_std)
        self.family, self.rule, self.parameterization = get(family), rule, parameterization
        self.weight_std = weight_std
        self._stores_means = self.family.name == "gaussian" and parameterization == "moments"
        """Whether `layer.weight` is a parameter, the mean; see `spgru.nn.weight`."""
        self._factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self._specs: dict[str, WeightShape] = {}
        self._captured: list[Affine] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_captured": []}

    # -- weights ------------------------------------------------------------------------------

    def _add_weights(self, specs: Iterable[WeightShape]) -> None:
        """Create weights, first of all their means in the order of `torch.nn`'s parameters."""
        self._specs = {spec.name: spec for spec in specs}
        if isinstance(self.weight_std, Mapping):
            unknown = sorted(set(self.weight_std) - set(self._specs))
            if unknown:
                raise ValueError(
                    f"weight_std names {', '.join(unknown)}, which the layer does not have; "
                    f"it has {', '.join(self._specs)}"
                )
        like = torch.empty(0, **self._factory)
        initial = {name: self._initial(spec, like) for name, spec in self._specs.items()}
        for name, moments in initial.items():
            if self._stores_means:
                self.register_parameter(name, nn.Parameter(moments.mean))
            else:
                raw = self.family.to_raw(moments, self.parameterization)
                self.register_module(name, nn.ParameterDict(raw))
        for name, spec in self._specs.items() if self._stores_means else ():
            spread = torch.zeros_like(initial[name].mean)
            self.register_parameter(spec.spread, nn.Parameter(spread))
            self.register_buffer(spec.start, self._start(spec, like))

    def _initial(self, spec: WeightShape, like: Tensor) -> Moments:
        mean = self.family.initial_mean(spec.shape, spec.bound, like)
        std = standard_deviation_of(self.weight_std, spec)
        moments = self.family.moments_of(mean, std, spec.bound)
        self._check_representable(spec.name, moments)
        return moments

    def _start(self, spec: WeightShape, like: Tensor) -> Tensor:
        """Log of the starting variance: one number where it is the same for all weights."""
        std = standard_deviation_of(self.weight_std, spec)
        shape = std.shape if isinstance(std, Tensor) else ()
        var = self.family.moments_of(like.new_zeros(shape), std, spec.bound).var
        return var.log().clamp(min=CERTAIN)

    def _check_representable(self, name: str, moments: Moments) -> None:
        self.family.check_domain(name, moments)
        if (
            self.parameterization == "natural"
            and values_are_checked(moments.var)
            and bool((moments.var == 0).any())
        ):
            raise ValueError(
                f"{name} has weights of variance 0, which have no natural parameters; "
                "use parameterization='moments' or a positive weight_std"
            )

    def reset_parameters(self) -> None:
        """Draw fresh means; variances return to their starting values."""
        like = self._like
        for name, spec in self._specs.items():
            moments = self._initial(spec, like)
            if self._stores_means:
                with torch.no_grad():
                    self._write_mean(name, moments.mean)
                    getattr(self, spec.spread).zero_()
                setattr(self, spec.start, self._start(spec, like))
            else:
                self.set_weight_(name, moments)

    def weights(self) -> dict[str, Weight]:
        """The random weights by name, in the order of `torch.nn`'s parameters."""
        return {name: Weight(self, spec) for name, spec in self._specs.items()}

    def weight_moments(self, name: str) -> Moments:
        """Mean and variance of the weight of that name, differentiable."""
        if not self._stores_means:
            raw: dict[str, Tensor] = dict(self.get_submodule(name).named_parameters())
            return self.family.from_raw(raw, self.parameterization)
        mean, spread, start = self._sources(name)
        return Moments(mean, (spread + start).exp_())

    def _sources(self, name: str) -> tuple[Tensor, ...]:
        """The tensors a weight is made from."""
        if not self._stores_means:
            return tuple(self.get_submodule(name).parameters())
        spec, parameters = self._specs[name], self._parameters
        mean, spread = parameters.get(name), parameters.get(spec.spread)
        # A parametrized or pruned weight is an attribute and no parameter.
        mean = getattr(self, name) if mean is None else mean
        spread = getattr(self, spec.spread) if spread is None else spread
        return mean, spread, self._buffers[spec.start]  # type: ignore[return-value]

    @torch.no_grad()
    def set_weight_(self, name: str, moments: Moments) -> None:
        """Give the weight of that name these moments, which spreads count from then on."""
        self._check_representable(name, moments)
        if not self._stores_means:
            module = self.get_submodule(name)
            for key, raw in self.family.to_raw(moments, self.parameterization).items():
                module.get_parameter(key).copy_(raw)
            return
        spec = self._specs[name]
        self._write_mean(name, moments.mean)
        getattr(self, spec.spread).zero_()
        start = moments.var.to(self._buffers[spec.start]).log().clamp(min=CERTAIN)
        setattr(self, spec.start, start)

    def _write_mean(self, name: str, mean: Tensor) -> None:
        """In place, or through what pruning or a parametrization has put before the parameter."""
        if parametrize.is_parametrized(self, name):
            setattr(self, name, mean)
        else:
            original = self._parameters.get(f"{name}_orig")
            (getattr(self, name) if original is None else original).copy_(mean)

    def spread_parameters(self) -> list[nn.Parameter]:
        """The parameters that set variances and not means."""
        if self._stores_means:
            return [p for name, p in self.named_parameters() if is_spread(name)]
        return [p for name, p in self.named_parameters() if not name.endswith(".mean")]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        starts = {spec.start for spec in self._specs.values()} if self._stores_means else set()
        if self._stores_means:
            own = {prefix + name: getattr(self, name) for name in starts}
            here = {key: value for key, value in state_dict.items() if key.startswith(prefix)}
            if has_old_layout(here):
                for key in here:
                    del state_dict[key]
                state_dict.update(from_old_layout(here, own))
        for name in starts:
            loaded = state_dict.get(prefix + name)
            # One number for all weights, or one for each: both are valid whatever this layer has.
            if loaded is not None and loaded.shape != getattr(self, name).shape:
                setattr(self, name, getattr(self, name).new_empty(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    # -- weights in each mode -----------------------------------------------------------------

    def _value(self, name: str) -> Any:
        """The weight's moments, draw or mean as the mode asks; None where the layer has none."""
        if name not in self._specs:
            return None
        mode = weight_mode(self)
        if mode is None:
            return self.weight_moments(name)
        if isinstance(mode, AtMean):
            return getattr(self, name) if self._stores_means else self.weight_moments(name).mean
        if isinstance(mode, Responding):
            return mode.values[name]
        if mode.draws is not None:
            return mode.draws[name]
        return self.family.sample(self.weight_moments(name), mode.generator)

    @property
    def _redraws(self) -> bool:
        """Whether weights are drawn again at every time step."""
        mode = weight_mode(self)
        return isinstance(mode, Drawn) and mode.draws is None

    def _affine(self, weight: str, bias: str, product: Product = MATRIX) -> Affine:
        """x -> W x + b with these weights; see `spgru.frozen` for when it is kept."""
        return self._once(
            (weight, bias), lambda: Affine.of(self._value(weight), self._value(bias), product)
        )

    def _once(self, names: tuple[str, ...], make: Callable[[], Affine]) -> Affine:
        """What `make` gives; within a block of `spgru.frozen` that of the first call.

        Args:
            names: of the weights it is made from, which are all that it depends on
        """
        frozen, mode = frozen_of(self), weight_mode(self)
        if isinstance(mode, Responding):
            return _keep_tapped(mode, names, make)
        if frozen is None or not _may_keep():
            return make()
        if isinstance(mode, Drawn) and (mode.draws is None or not frozen.learns):
            return make()  # every block of drawn weights has its own, which must not pile up
        sources = [s for name in names if name in self._specs for s in self._sources(name)]
        key = names, mode, is_autocast(sources[0])
        entry: _Kept | None = frozen.kept.get(key)
        if entry is not None and not entry.is_current(sources):
            entry = None
        if not frozen.learns and _is_captured(sources[0]):
            # Nothing is computed before the graph runs: what is made here must not be kept.
            if entry is None:
                return make()
            # The graph knows addresses only: what it reads has to live as long as the layer.
            if not any(affine is entry.affine for affine in self._captured):
                self._captured.append(entry.affine)
            return entry.affine.copy()
        if entry is None:
            entry = frozen.kept[key] = _Kept(_make(make, frozen), sources)
        return entry.affine

    def _tell_bias(self, name: str, mean: Tensor, var: Tensor) -> Moments:
        """A bias that is used without a weight, told to whom every use is told."""
        mode = weight_mode(self)
        if not isinstance(mode, Responding) or mode.tap is None:
            return Moments(mean, var)
        return mode.tap("", name).note(None, None, mean, var)

    # -- calls --------------------------------------------------------------------------------

    @property
    def _like(self) -> Tensor:
        """A tensor with dtype and device of the weights."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter
        return next(self.parameters())

    def _check(self, name: str, value: Any) -> None:
        """What users pass in is a Tensor or Moments that suits the parameters and the family."""
        check_value(name, value, self._like)
        self.family.check_support(name, value)

    def _enter(self, value: Any) -> Any:
        """While weights are numbers, so is what enters: drawn or its mean, as they are."""
        mode = weight_mode(self)
        if mode is None or isinstance(mode, Responding) or isinstance(value, Tensor):
            return value
        return value.mean if isinstance(mode, AtMean) else self.family.sample(value, mode.generator)

    def _leave(self, value: Any) -> Any:
        return certain(value) if isinstance(value, Tensor) else value

    @property
    def _is_recorded(self) -> bool:
        return bool(records_of(self))

    def _record(self, part: str, neurons: dict[str, Any], time_dim: int | None) -> None:
        record(self, part, neurons, time_dim)

    # -- torch.nn -----------------------------------------------------------------------------

    @classmethod
    def from_torch(
        cls, module: nn.Module, weight_std: StandardDeviation = None, **options: Any
    ) -> Self:
        """The same layer with the weights of `module` as means and `weight_std` around them."""
        if not isinstance(module, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.from_torch takes a torch.nn.{cls.torch_class.__name__}, "
                f"got {type(module).__name__}"
            )
        like = next(module.parameters())
        options |= {"device": like.device, "dtype": like.dtype, "weight_std": weight_std}
        layer = cls(**cls._torch_arguments(module), **options)
        for name, spec in layer._specs.items():
            mean = getattr(module, name).detach().clone()
            if layer._stores_means:  # variances are there already
                with torch.no_grad():
                    getattr(layer, name).copy_(mean)
            else:
                std = standard_deviation_of(weight_std, spec)
                layer.set_weight_(name, layer.family.moments_of(mean, std, spec.bound))
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
        for name in self._specs:
            getattr(module, name).copy_(self.weight_moments(name).mean)
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


def layers_of(module: nn.Module) -> Iterator[tuple[str, Layer]]:
    """Our layers inside `module`, or it itself, each once, by their dotted names."""
    for name, child in module.named_modules():
        if isinstance(child, Layer):
            yield name, child


def _is_captured(tensor: Tensor) -> bool:
    """Whether work on it goes into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _make(make: Callable[[], Affine], frozen: Frozen) -> Affine:
    if frozen.learns:
        return make()
    # Outside inference mode, so that it may take part in a backward pass to the input later; and
    # copied, so that a change through .data, which torch does not count, leaves it whole.
    with torch.inference_mode(False), torch.no_grad():
        return make().frozen()


def _keep_tapped(mode: Responding, names: tuple[str, ...], make: Callable[[], Affine]) -> Affine:
    if names not in mode.kept:
        with unwatched():
            affine = make()
        weight, bias = names
        mode.kept[names] = (
            affine if mode.tap is None else replace(affine, tap=mode.tap(weight, bias))
        )
    kept: Affine = mode.kept[names]
    return kept


class _Kept:
    """A map, and the tensors it was made from as they were then."""

    def __init__(self, affine: Affine, sources: list[Tensor]) -> None:
        self.affine, self.sources = affine, sources
        self.versions: list[tuple[int, int]] = []
        if all(type(s) in (Tensor, nn.Parameter) and not s.is_inference() for s in sources):
            self.versions = [(source._version, source.data_ptr()) for source in sources]

    def is_current(self, sources: list[Tensor]) -> bool:
        """Whether nothing has changed that torch counts, nor been replaced, cast or moved."""
        for new, old in zip(sources, self.sources, strict=True):
            if new is not old:
                return False
        # Tensors of other kinds have no versions.
        return not self.versions or self.versions == [(s._version, s.data_ptr()) for s in sources]


def _may_keep() -> bool:
    """Whether tensors made now outlive the call: not in a compiler's trace or a transform."""
    return not (torch.compiler.is_compiling() or is_differentiated_forward())
