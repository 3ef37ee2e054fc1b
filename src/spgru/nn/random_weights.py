"""A module of random weights: how they are made, read, written and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spgru.checks import check_choice, values_are_checked
from spgru.families import Family, Parameterization, get
from spgru.functional import Rule
from spgru.moments import Moments
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

__all__ = ["Options", "RandomWeights"]


class Options(TypedDict, total=False):
    """The keyword arguments that every layer takes beyond those of `torch.nn`."""

    family: str | Family
    rule: Rule
    parameterization: Parameterization
    weight_std: StandardDeviation


class RandomWeights(nn.Module):
    """A module of random weights; `spgru.nn.weight` says how they are stored.

    Args:
        family: `"gaussian"`, `"gamma"`, `"poisson"`, or an object of `spgru.families`
        rule: `"exact"`, or `"paper"` for the printed formulas
        parameterization: store and learn `"moments"` or `"natural"` parameters
        weight_std: standard deviation of every weight at the start: a number, a tensor that
            broadcasts to every weight, or a mapping from names of weights to those; None for a
            tenth of the range that `torch.nn` initialises within. 0 gives a deterministic network.
    """

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
        for buffer, _ in self._gains().values():
            self.register_buffer(buffer, None)

    def _initial(self, spec: WeightShape, like: Tensor) -> Moments:
        mean = self._initial_mean(spec, like)
        std = standard_deviation_of(self.weight_std, spec)
        moments = self.family.moments_of(mean, std, spec.bound)
        self._check_representable(spec.name, moments)
        return moments

    def _initial_mean(self, spec: WeightShape, like: Tensor) -> Tensor:
        return self.family.initial_mean(spec.shape, spec.bound, like)

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
        """Draw fresh means; variances return to their starting values, and gains to 1."""
        like = self._like
        self.set_gains_({})
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
        var, mask = (spread + start).exp_(), self.pruning_mask(name)
        return Moments(mean, var if mask is None else var * mask)

    def pruning_mask(self, name: str) -> Tensor | None:
        """What `torch.nn.utils.prune` has put before the weight of that name: 0 where pruned."""
        return self._buffers.get(f"{name}_mask")

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

    def _gains(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Buffer and shape of all gains that there may be, by their keys in `gains`."""
        return {key: value for spec in self._specs.values() for key, value in spec.gains.items()}

    def gain_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all gains that there may be: of matrices by their names, and of states."""
        return {key: shape for key, (_, shape) in self._gains().items()}

    def gains(self) -> dict[str, Tensor]:
        """What `spgru.calibrate` has found: (rows,) by the name of the matrix, (H,) by that of the
        coherence of a state, `coherence_l0`; empty before."""
        found = {key: self._buffers.get(buffer) for key, (buffer, _) in self._gains().items()}
        return {key: gain for key, gain in found.items() if gain is not None}

    def gain_state(self) -> dict[str, Tensor]:
        """`gains` by the names of their buffers."""
        known, gains = self._gains(), self.gains()
        return {known[key][0]: gain for key, gain in gains.items()}

    def set_gains_(self, gains: Mapping[str, Tensor]) -> None:
        """Set these gains, by the keys that `gains` has for them, and take all others out."""
        like, known = self._like, self._gains()
        unknown = sorted(set(gains) - set(known))
        if unknown:
            raise ValueError(
                f"there are no gains of {', '.join(unknown)}; this layer has {', '.join(known)}"
            )
        for key, (buffer, shape) in known.items():
            gain = gains.get(key)
            if gain is not None and tuple(gain.shape) != shape:
                raise ValueError(
                    f"the gain of {key} has shape {tuple(gain.shape)} but must have {shape}, one "
                    "for every row or unit"
                )
            self._buffers[buffer] = None if gain is None else gain.detach().to(like, copy=True)

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
        self.make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def make_room(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Gains belong to weights: where weights are loaded, gains are too, or there are none."""
        if not any(key.startswith(prefix) for key in state_dict):
            return
        like = self._like.detach()
        for buffer, shape in self._gains().values():
            is_there = prefix + buffer in state_dict
            self._buffers[buffer] = like.new_ones(shape) if is_there else None

    @property
    def _like(self) -> Tensor:
        """A tensor with dtype and device of the weights."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter
        return next(self.parameters())
