"""A random parameter: what every layer is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spgru.checks import values_are_checked
from spgru.families import Family, Parameterization
from spgru.moments import Moments

__all__ = ["Weight", "at_mean", "named_weights", "parameter_groups", "sampling"]


class Weight(nn.Module):
    """A tensor of independent random weights of one family.

    Stored are the family's raw parameters (for the Gaussian by moments, `mean` and `log_var`);
    calling the object gives the moments, a draw while `sampling` is active, or the mean within
    `at_mean`.

    Args:
        shape: shape of the tensor
        fan_in: number of inputs summed over, which scales priors
        bound: `torch.nn` would initialise this weight uniformly in ±bound
        family: the family, see `spgru.families`
        parameterization: what is stored and learned
        std: standard deviation of every weight, None for the family's default
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        fan_in: int,
        bound: float,
        family: Family,
        parameterization: Parameterization,
        std: float | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.fan_in, self.bound = shape, fan_in, bound
        self.family, self.parameterization, self.std = family, parameterization, std
        self._generator: torch.Generator | None = None
        self._draw: Tensor | None = None
        self._redraw = self._at_mean = False
        initial = self._initial(torch.empty(0, device=device, dtype=dtype))
        for name, raw in family.to_raw(initial, parameterization).items():
            self.register_parameter(name, nn.Parameter(raw))

    def _initial(self, like: Tensor) -> Moments:
        mean = self.family.initial_mean(self.shape, self.bound, like)
        moments = self.family.moments_of(mean, self.std, self.bound)
        self._check_representable(moments)
        return moments

    def _check_representable(self, moments: Moments) -> None:
        self.family.check_domain("weight", moments)
        if (
            self.parameterization == "natural"
            and values_are_checked(moments.var)
            and bool((moments.var == 0).any())
        ):
            raise ValueError(
                "weights of variance 0 have no natural parameters; "
                "use parameterization='moments' or a positive weight_std"
            )

    def reset_parameters(self) -> None:
        """Draw fresh means; standard deviations return to their initial value."""
        self.set_(self._initial(next(self.parameters())))

    @torch.no_grad()
    def set_(self, moments: Moments) -> None:
        """Take on these moments."""
        self._check_representable(moments)
        for name, raw in self.family.to_raw(moments, self.parameterization).items():
            self.get_parameter(name).copy_(raw)

    def moments(self) -> Moments:
        return self.family.from_raw(dict(self.named_parameters()), self.parameterization)

    def forward(self) -> Tensor | Moments:
        if self._draw is not None:
            return self._draw
        if self._at_mean:
            # A stored mean is handed out as it is: no variance is worked out beside it.
            mean = self._parameters.get("mean")
            return self.moments().mean if mean is None else mean
        if self._redraw:
            return self.family.sample(self.moments(), self._generator)
        return self.moments()

    @property
    def is_certain(self) -> bool:
        """Whether the weight is now one number, drawn or its mean, and no distribution."""
        return self._at_mean or self._redraw or self._draw is not None

    def like_weights(self, moments: Moments) -> Tensor:
        """Other moments as one number each, in the way the weights are: drawn, or their mean."""
        return moments.mean if self._at_mean else self.family.sample(moments, self._generator)

    @property
    def redraws_every_step(self) -> bool:
        return self._redraw

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}, {self.family.name}, {self.parameterization}"


def named_weights(module: nn.Module) -> Iterator[tuple[str, Weight]]:
    """All random weights of a module built from our layers, each once."""
    for name, child in module.named_modules():
        if isinstance(child, Weight):
            yield name, child


@contextmanager
def sampling(
    module: nn.Module, generator: torch.Generator, every_step: bool = False
) -> Iterator[None]:
    """Within this context the module runs with weights drawn at random instead of moments.

    One draw serves the whole context, or, with `every_step`, recurrent layers draw afresh at each
    time step. Moments that enter a layer are drawn too, so that variance a module adds between our
    layers counts. Outputs are certain: one sample of the network that the moments describe.
    """
    weights = [weight for _, weight in named_weights(module)]
    try:
        with torch.no_grad():
            for weight in weights:
                weight._generator, weight._redraw = generator, every_step
                weight._draw = (
                    None if every_step else weight.family.sample(weight.moments(), generator)
                )
            yield
    finally:
        for weight in weights:
            weight._generator, weight._redraw, weight._draw = None, False, None


@contextmanager
def at_mean(module: nn.Module) -> Iterator[None]:
    """Within this context the module is a plain network: every weight is its mean, and certain.

    It costs what a plain network costs and gives gradients of the means, so training can begin
    here and turn to the variances later. Outputs have variance 0.
    """
    before = [(weight, weight._at_mean) for _, weight in named_weights(module)]
    try:
        for weight, _ in before:
            weight._at_mean = True
        yield
    finally:
        for weight, was in before:
            weight._at_mean = was


def parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Two groups for an optimiser: what may be decayed, and what sets the weights' spread.

    Weight decay pulls parameters towards 0. For a `log_var` that is a variance of 1, so the second
    group has its decay switched off; the prior of `kl_divergence` is what should hold spreads.

        torch.optim.AdamW(spgru.parameter_groups(model), lr=1e-3, weight_decay=0.01)
    """
    spreads = {
        id(parameter)
        for _, weight in named_weights(module)
        for name, parameter in weight.named_parameters()
        if name != "mean"
    }
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if id(p) not in spreads]},
        {"params": [p for p in parameters if id(p) in spreads], "weight_decay": 0.0},
    ]
