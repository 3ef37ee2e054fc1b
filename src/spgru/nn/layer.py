"""What all layers share: options, weights, recording of neurons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from spgru.checks import check_choice, check_value
from spgru.families import Family, Parameterization, get
from spgru.functional import Rule
from spgru.moments import Moments, certain
from spgru.nn.weight import Weight

__all__ = ["Layer", "Record", "recording"]


class Record(NamedTuple):
    """The neurons of one part of a layer ("l0", "l0_reverse", or "") during one call."""

    part: str
    neurons: dict[str, Any]
    time_dim: int | None


class Layer(nn.Module):
    """A module of random weights.

    Args:
        family: `"gaussian"`, `"gamma"`, `"poisson"`, or an object of `spgru.families`
        rule: `"exact"`, or `"paper"` for the printed formulas
        parameterization: store and learn `"moments"` or `"natural"` parameters
        weight_std: standard deviation of every weight at the start; None for a tenth of the
            range that `torch.nn` initialises within. 0 gives a deterministic network.
    """

    def __init__(
        self,
        family: str | Family,
        rule: Rule,
        parameterization: Parameterization,
        weight_std: float | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
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

    @property
    def _like(self) -> Tensor:
        return next(self.parameters())

    @property
    def _is_sampled(self) -> bool:
        return next(iter(self._weights().values())).is_sampled

    def _check(self, name: str, value: Any) -> None:
        """What users pass in is a Tensor or Moments that suits the parameters and the family."""
        check_value(name, value, self._like)
        self.family.check_support(name, value.mean if isinstance(value, Moments) else value)

    def _enter(self, value: Any) -> Any:
        """While weights are drawn, neurons are plain numbers too."""
        return value.mean if self._is_sampled and isinstance(value, Moments) else value

    def _leave(self, value: Any) -> Any:
        return certain(value) if isinstance(value, Tensor) else value

    def reset_parameters(self) -> None:
        for weight in self._weights().values():
            weight.reset_parameters()

    def _take_means(self, source: nn.Module) -> Self:
        """Copy the weights of a `torch.nn` module of the same shape; see `from_torch`."""
        for name, weight in self._weights().items():
            mean = getattr(source, name).detach().clone()
            weight.set_(self.family.moments_of(mean, self.weight_std, weight.bound))
        return self.train(source.training)

    @torch.no_grad()
    def _give_means(self, target: nn.Module) -> Any:
        if self.family.name != "gaussian":
            raise ValueError(
                f"family={self.family.name!r} has no counterpart in torch.nn, whose activations "
                "are sigmoid and tanh; only gaussian layers convert"
            )
        for name, weight in self._weights().items():
            getattr(target, name).copy_(weight.moments().mean)
        return target.train(self.training)

    def _options_repr(self) -> str:
        parts = [f"family={self.family.name!r}"]
        if self.rule != "exact":
            parts.append(f"rule={self.rule!r}")
        if self.parameterization != "moments":
            parts.append(f"parameterization={self.parameterization!r}")
        return ", ".join(parts)


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
