"""Random weights of a layer: how they are stored, named, and read.

A Gaussian weight stored by moments (the default) is two parameters and a buffer of its layer:

    weight_ih_l0      (rows, inputs)  the mean, with the name and shape that `torch.nn` gives it
    spread_w_ih_l0    (rows, inputs)  log(var / starting var): 0 is "as at the start"
    start_w_ih_l0     ()              log of the starting variance, or one for every weight
    gain_w_ih_l0      (rows,)         what `spgru.calibrate` found; there is none before
  coherence_l0      (H,)            likewise, of the state of a GRU or LSTM

`bias_hh_l0` has `spread_b_hh_l0` and `start_b_hh_l0` likewise. Everything written for a layer of
`torch.nn` finds the means where it expects them, and whatever treats all parameters alike (weight
decay, an initialiser for all matrices) moves variances by a bounded factor at most.

While a weight is pruned by `torch.nn.utils.prune`, its pruned entries have variance 0 and do not
count in `kl_divergence`. `prune.remove` takes the mask away and tells no one: the means stay 0, the
variances return. Before removing, `layer.set_weight_(name, layer.weight_moments(name))` makes the
variances of 0 permanent.

Weights of other families, or stored by natural parameters, are an `nn.ParameterDict` of the
family's raw parameters under the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.checks import values_are_checked
from spgru.families import Family
from spgru.moments import Moments

if TYPE_CHECKING:
    from spgru.nn.random_weights import RandomWeights

__all__ = [
    "StandardDeviation", "Weight", "WeightShape", "is_spread", "named_weights",
    "parameter_groups", "spread_name", "start_name",
]  # fmt: skip

StandardDeviation = float | Tensor | Mapping[str, "float | Tensor"] | None
"""One for all weights of a layer, or by the name of the weight; None for the family's default."""

_SHORT = {"weight": "w", "bias": "b"}
CERTAIN = -1e4
"""Log of a starting variance of 0: its exp is 0 in every dtype, and unlike -inf it can be averaged
with others and rounded to 16 bits."""


def spread_name(name: str) -> str:
    """`weight_ih_l0` -> `spread_w_ih_l0`"""
    kind, separator, rest = name.partition("_")
    return f"spread_{_SHORT[kind]}{separator}{rest}"


def start_name(name: str) -> str:
    """`weight_ih_l0` -> `start_w_ih_l0`"""
    return spread_name(name).replace("spread", "start", 1)


def gain_name(name: str) -> str:
    """`weight_ih_l0` -> `gain_w_ih_l0`"""
    return spread_name(name).replace("spread", "gain", 1)


def is_spread(name: str) -> bool:
    """Whether a parameter of this (dotted) name sets a variance and not a mean."""
    last = name.rpartition(".")[2]
    return last.startswith("spread_") or last == "log_var"


@dataclass(frozen=True)
class WeightShape:
    """What a layer says of a weight when it creates it."""

    name: str
    shape: tuple[int, ...]
    fan_in: int
    """number of inputs summed over, which scales priors"""
    bound: float
    """`torch.nn` would initialise this weight uniformly within plus or minus this"""
    is_summed: bool = True
    """whether an output is a sum over several inputs, which a gain makes up for being correlated"""
    passed_on: int = 0
    """of a matrix that reads a state: units that are passed on from step to step beside it"""

    @cached_property
    def spread(self) -> str:
        """Name of the parameter that sets the variance."""
        return spread_name(self.name)

    @cached_property
    def start(self) -> str:
        """Name of the buffer with the log of the starting variance."""
        return start_name(self.name)

    @cached_property
    def gain(self) -> str | None:
        """Name of the buffer with the gains of a matrix; None for a bias, which has none."""
        return gain_name(self.name) if len(self.shape) > 1 and self.is_summed else None

    @cached_property
    def coherence(self) -> str | None:
        """`weight_hh_l0` -> `coherence_l0`, the buffer of the state that is passed on; see
        `spgru.functional.algebra.coherent`. None where there is none."""
        if not self.passed_on:
            return None
        return "_".join(["coherence", *self.name.split("_")[2:]])

    @property
    def gains(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Buffer and shape of everything that `spgru.calibrate` may find for this weight, by the
        key that it has in `Layer.gains`."""
        found = {} if self.gain is None else {self.name: (self.gain, self.shape[:1])}
        if self.coherence is not None:
            found[self.coherence] = self.coherence, (self.passed_on,)
        return found


class Weight(NamedTuple):
    """One random weight of a layer."""

    layer: RandomWeights
    spec: WeightShape

    @property
    def family(self) -> Family:
        """That of its layer."""
        return self.layer.family

    @property
    def fan_in(self) -> int:
        """How many inputs an output of it adds up."""
        return self.spec.fan_in

    def moments(self) -> Moments:
        """Mean and variance of every entry."""
        return self.layer.weight_moments(self.spec.name)

    def random_moments(self) -> Moments:
        """Moments of the entries that are not pruned, as a vector if some are."""
        mask, moments = self.layer.pruning_mask(self.spec.name), self.moments()
        return moments if mask is None else moments[mask.bool()]

    def set_(self, moments: Moments) -> None:
        """Give every entry this mean and variance, in place."""
        self.layer.set_weight_(self.spec.name, moments)


def named_weights(module: nn.Module) -> Iterator[tuple[str, Weight]]:
    """All random weights of a module built from our layers, each once, by their dotted names."""
    from spgru.nn.random_weights import RandomWeights

    for path, child in module.named_modules():
        if isinstance(child, RandomWeights):
            for name, weight in child.weights().items():
                yield f"{path}.{name}" if path else name, weight


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Two groups for an optimiser: what may be decayed, and what sets the weights' spread.

    Weight decay pulls a Gaussian weight's spread towards its starting value, which is harmless but
    seldom meant; the prior of `kl_divergence` is what should hold spreads. The second group has
    its decay switched off.

        torch.optim.AdamW(spgru.parameter_groups(model), lr=1e-3, weight_decay=0.01)
    """
    from spgru.nn.random_weights import RandomWeights

    spreads = {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, RandomWeights)
        for parameter in layer.spread_parameters()
    }
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if id(p) not in spreads]},
        {"params": [p for p in parameters if id(p) in spreads], "weight_decay": 0.0},
    ]


def check_standard_deviation(std: StandardDeviation) -> None:
    if isinstance(std, Mapping):
        for value in std.values():
            check_standard_deviation(value)
        return
    if std is None:
        return
    if isinstance(std, Tensor):
        if not values_are_checked(std):
            return
        is_valid = bool((std >= 0).all()) and bool(std.isfinite().all())
    elif isinstance(std, (int, float)):
        is_valid = std >= 0 and math.isfinite(std)
    else:
        raise TypeError(
            f"weight_std must be a number, a Tensor or a mapping from names of weights to those, "
            f"got {type(std).__name__}"
        )
    if not is_valid:
        raise ValueError(
            f"weight_std must be finite and not negative, got {std}; 0 gives a deterministic "
            "network, None the default"
        )


def standard_deviation_of(std: StandardDeviation, spec: WeightShape) -> float | Tensor | None:
    """That of one weight: entries of a mapping are found by name, missing ones have the default."""
    if isinstance(std, Mapping):
        std = std.get(spec.name)
    if isinstance(std, Tensor):
        std = std.detach()
        try:
            fits = torch.empty(spec.shape, device="meta").add(std.to("meta")).shape == spec.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"weight_std has shape {tuple(std.shape)} but {spec.name} has {spec.shape}; "
                f"pass one that broadcasts, or a mapping with a tensor for {spec.name!r}"
            )
    return std


def _old_names(state: Mapping[str, Tensor]) -> list[str]:
    names = [name.removesuffix(".mean") for name in state if name.endswith(".mean")]
    return [name for name in names if f"{name}.log_var" in state]


def has_old_layout(state: Mapping[str, Tensor]) -> bool:
    """Whether this is a state dict of version 0.1, whose weights had a `mean` and a `log_var`."""
    return bool(_old_names(state))


def from_old_layout(state: Mapping[str, Tensor], starts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of version 0.1 in today's layout.

    Args:
        state: the old state dict
        starts: buffers by today's names, as the model has them now
    """
    old = _old_names(state)
    new = {key: value for key, value in state.items() if key.rpartition(".")[0] not in old}
    for name in old:
        path, dot, last = name.rpartition(".")
        start_key = f"{path}{dot}{start_name(last)}"
        log_var = state[f"{name}.log_var"]
        start = starts[start_key].to(log_var) if start_key in starts else log_var.new_zeros(())
        new[name] = state[f"{name}.mean"]
        if bool((start <= CERTAIN).any()) or bool(log_var.isinf().any()):
            # A spread cannot lead from or to a variance of 0: the start is what was stored.
            start, log_var = log_var.clamp(min=CERTAIN), log_var.clamp(min=CERTAIN)
        new[f"{path}{dot}{spread_name(last)}"] = log_var - start
        new[start_key] = start
    return new
