"""What all layers share: how random weights run in each mode, and conversion to `torch.nn`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from spgru.checks import check_value
from spgru.families.lookup import describe, described
from spgru.functional import Affine
from spgru.functional.products import Product
from spgru.modes import (
    AtMean,
    Drawn,
    Responding,
    check_followed,
    frozen_of,
    gains_of,
    record,
    records_of,
    weight_mode,
)
from spgru.moments import Moments, certain, is_autocast, unobserved
from spgru.nn.cache import look_up, may_cache
from spgru.nn.random_weights import Options, RandomWeights
from spgru.nn.weight import StandardDeviation, standard_deviation_of

__all__ = ["Layer", "Options"]


class Layer(RandomWeights):
    """A module of random weights that runs; for the arguments see its base, `RandomWeights`."""

    torch_class: type[nn.Module]
    """The layer's counterpart in `torch.nn`."""

    def __init__(
        self,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        self._captured: list[Affine] = []
        """What CUDA graphs read; see `spgru.nn.cache`."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_captured": []}

    # -- weights in each mode -----------------------------------------------------------------

    def _value(self, name: str) -> Any:
        """The weight's moments, draw or mean as the mode asks; None where the layer has none."""
        if name not in self._specs:
            return None
        mode = weight_mode(self)
        if mode is None:
            check_followed(self)
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

    def _affine(self, weight: str, bias: str, product: Product | None = None) -> Affine:
        """x -> W x + b with these weights; within `spgru.frozen` it is cached."""

        def make() -> Affine:
            values = self._value(weight), self._value(bias)
            return Affine.of(*values, product, self._gain(weight), self._coherence(weight))

        return self._once((weight, bias), make)

    def _gain(self, name: str) -> Tensor | None:
        """Of the matrix of that name, None for 1."""
        return self._gain_of(name, self._specs[name].gain)

    def _coherence(self, name: str) -> Tensor | None:
        """Of the state that the matrix of that name reads, None for 0."""
        buffer = self._specs[name].coherence
        return None if buffer is None else self._gain_of(buffer, buffer)

    def _gain_of(self, key: str, buffer: str | None) -> Tensor | None:
        given = gains_of(self)
        if given is not None:
            return given.get(key)
        return None if buffer is None else self._buffers.get(buffer)

    def _once(self, names: tuple[str, ...], make: Callable[[], Affine]) -> Affine:
        """What `make` gives; within a block of `spgru.frozen` that of the first call.

        Args:
            names: of the weights it is made from, the matrix first; with its gain and coherence
                they are all that it depends on
        """
        frozen, mode = frozen_of(self), weight_mode(self)
        if isinstance(mode, Responding):
            return _tapped(mode, names, make)
        if frozen is None or not may_cache():
            return make()
        if isinstance(mode, Drawn) and (mode.draws is None or not frozen.learns):
            return make()  # every block of drawn weights has its own, which must not pile up
        sources = [s for name in names if name in self._specs for s in self._sources(name)]
        gains = self._gain(names[0]), self._coherence(names[0])
        for gain in gains:
            if gain is not None:
                if gain.requires_grad and not frozen.learns:
                    return make()
                sources.append(gain)
        # The plain form and calibrated ones may take turns.
        key = names, mode, is_autocast(sources[0]), *(gain is None for gain in gains)
        return look_up(frozen, key, sources, make, self._captured)

    def weight_sources(self) -> list[Tensor]:
        """All tensors that the maps are made from."""
        weights = [source for name in self._specs for source in self._sources(name)]
        return [*weights, *self.gains().values()]

    @contextmanager
    def capturing_by_block(self) -> Iterator[None]:
        """Where a graph is captured that lives no longer than the block of `spgru.frozen`."""
        count = len(self._captured)
        try:
            yield
        finally:
            del self._captured[count:]

    def _tell_bias(self, name: str, mean: Tensor, var: Tensor) -> Moments:
        """A bias that is used without a weight, told to whom every use is told."""
        mode = weight_mode(self)
        if not isinstance(mode, Responding) or mode.tap is None:
            return Moments(mean, var)
        return mode.tap("", name).note(None, None, mean, var)

    # -- calls --------------------------------------------------------------------------------

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

    # -- saving -------------------------------------------------------------------------------

    def pretrained_config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values, for `spgru.save_pretrained`.

        The starting standard deviation is not among them: it is stored with the weights.
        """
        names = ("rule", "parameterization", "backend", "reset_after")
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return {**self._constructor_arguments(), **options, "family": describe(self.family)}

    def _constructor_arguments(self) -> dict[str, Any]:
        """Of the constructor, without the options that layers share."""
        return self._torch_arguments(self)

    @classmethod
    def from_pretrained_config(cls, config: Mapping[str, Any]) -> Self:
        """The layer that was built with these arguments."""
        return cls(**{**config, "family": described(config["family"])})

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


def refresh_weights(module: nn.Module) -> None:
    """Compute what hooks of `torch.nn.utils` (pruning, weight_norm, spectral_norm) compute before
    every call: weights that are read without a call would be those of the last one.

    With a history, whoever asks, since a loss may read them next; and as in evaluation, where
    `spectral_norm` takes no step of its iteration.
    """
    for _, layer in layers_of(module):
        is_training = layer.training
        layer.training = False
        try:
            for hook in layer._forward_pre_hooks.values():
                if type(hook).__module__.startswith("torch.nn.utils."):
                    with torch.enable_grad():
                        hook(layer, ())
        finally:
            layer.training = is_training


def _tapped(mode: Responding, names: tuple[str, ...], make: Callable[[], Affine]) -> Affine:
    """The map that tells of its uses, made once."""
    if names not in mode.kept:
        with unobserved():
            affine = make()
        weight, bias = names
        mode.kept[names] = (
            affine if mode.tap is None else replace(affine, tap=mode.tap(weight, bias))
        )
    kept: Affine = mode.kept[names]
    return kept
