"""A factor on the variance of a module's output, one for each step: what `calibrate` may add."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from spgru.modes import gains_of, watch
from spgru.moments import Moments

__all__ = [
    "CHILD", "OutputScale", "attach_scale", "detach_scale", "first_moments", "scale_variance",
    "scales_of",
]  # fmt: skip

CHILD = "output_scale"
"""Name of the child that `attach_scale` gives a module."""


class OutputScale(nn.Module):
    """Moments to the same moments with another variance; nothing changes before calibration.

        var' = factor_t V^power var,    V the mean of `var` over the features of a step and sequence

    The factor keeps the ranking of features; the power lets a sequence with more variance than
    others have a larger or smaller factor. After the last step of a calibration its factor holds.
    """

    factor: Tensor | None
    """(S,) if time is the first dimension, (1, S) if it is the second, ...; (1,) for all steps"""
    power: Tensor | None
    """() where features follow the sequences, (1,) where time is there too; None for 0"""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", None)
        self.register_buffer("power", None)

    def forward(self, x: Moments) -> Moments:
        """(T, B, ...) or (B, T, ...) -> the same"""
        given = gains_of(self)
        factor = self.factor if given is None else given.get("factor")
        power = self.power if given is None else given.get("power")
        found = x if factor is None else Moments(x.mean, scale_variance(x.var, factor, power))
        watch(self, found)
        return found

    def set_(self, factor: Tensor | None, power: Tensor | None = None) -> None:
        self.factor = None if factor is None else factor.detach().clone()
        self.power = None if power is None else power.detach().clone()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        for name in ("factor", "power"):
            loaded = state_dict.get(prefix + name)
            setattr(self, name, None if loaded is None else torch.empty_like(loaded))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def scale_variance(var: Tensor, factor: Tensor, power: Tensor | None) -> Tensor:
    """The formula of `OutputScale`; for the arguments see its fields."""
    time = factor.ndim - 1
    if factor.numel() > 1:
        if var.ndim <= time:
            raise ValueError(
                f"the output has {var.ndim} dimensions but was calibrated with time as dimension "
                f"{time}; calibrate the module again, or `spgru.uncalibrate` it"
            )
        # Later steps than those of the calibration have the factor of its last.
        steps = torch.arange(var.shape[time], device=factor.device)
        factor = factor.index_select(time, steps.clamp(max=factor.shape[time] - 1))
    factor = factor.reshape(factor.shape + (1,) * (var.ndim - factor.ndim)).to(var)
    if power is not None:
        features = tuple(range(1 + power.ndim, var.ndim))
        level = var.mean(features, keepdim=True) if features else var
        # Where all is certain there is nothing to scale, and no logarithm.
        factor = factor * torch.where(level > 0, level, 1.0) ** power.to(var)
    return factor * var


def first_moments(output: Any) -> Moments:
    """The first Moments of what a module returns: its output, before states and the like."""
    leaves = pytree.tree_leaves(output, is_leaf=lambda value: isinstance(value, Moments))
    for leaf in leaves:
        if isinstance(leaf, Moments):
            return leaf
    raise TypeError(
        f"the module returns {type(output).__name__} without Moments; return the Moments, or pass "
        "call=, a function of the inputs that does"
    )


def _scale(module: nn.Module, _: Any, output: Any) -> Any:
    """The hook: the first Moments scaled, everything else as it is."""
    first = first_moments(output)
    scaled = module.get_submodule(CHILD)(first)
    return pytree.tree_map(
        lambda value: scaled if value is first else value,
        output,
        is_leaf=lambda value: isinstance(value, Moments),
    )


def scales_of(module: nn.Module) -> list[OutputScale]:
    return [child for child in module.modules() if isinstance(child, OutputScale)]


def attach_scale(module: nn.Module) -> OutputScale:
    """Give a module of any class a scale of its own output."""
    scale = OutputScale()
    module.add_module(CHILD, scale)
    module.register_forward_hook(_scale)
    return scale


def detach_scale(module: nn.Module) -> None:
    """Take away what `attach_scale` gave."""
    hooks = module._forward_hooks
    for key in [key for key, hook in hooks.items() if hook is _scale]:
        del hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)
        module._forward_hooks_always_called.pop(key, None)
    if isinstance(module._modules.get(CHILD), OutputScale):
        del module._modules[CHILD]
