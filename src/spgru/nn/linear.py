"""Linear and Conv2d with random weights."""

from __future__ import annotations

import math
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.checks import check_choice, check_features
from spgru.families import Family, Parameterization
from spgru.functional import Rule, conv2d, linear
from spgru.functional.linear import Size2d
from spgru.moments import Moments
from spgru.nn.layer import Layer, Record

__all__ = ["Conv2d", "Linear"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Linear(Layer):
    """`torch.nn.Linear` with random weights: Tensor or Moments in, Moments out.

    The arguments before `device` are `torch.nn.Linear`'s; for the others see `spgru.nn.Layer`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__(family, rule, parameterization, weight_std, device, dtype)
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / math.sqrt(in_features)
        self._add_weight("weight", (out_features, in_features), in_features, bound)
        self.register_module("bias", None)
        if bias:
            self._add_weight("bias", (out_features,), in_features, bound)

    def forward(self, x: Tensor | Moments) -> Moments:
        """(*batch, in_features) -> (*batch, out_features)"""
        self._check("x", x)
        check_features("x", x, self.in_features, "in_features")
        output = linear(self._enter(x), self._value("weight"), self._value("bias"))
        if self._records is not None:
            self._records.append(Record("", {"output": output}, None))
        return self._leave(output)  # type: ignore[no-any-return]

    @classmethod
    def from_torch(cls, module: nn.Linear, weight_std: float | None = None, **options: Any) -> Self:
        """The same layer with the weights of `module` as means."""
        layer = cls(
            module.in_features,
            module.out_features,
            module.bias is not None,
            module.weight.device,
            module.weight.dtype,
            weight_std=weight_std,
            **options,
        )
        return layer._take_means(module)

    def to_torch(self) -> nn.Linear:
        """A `torch.nn.Linear` with the means as weights."""
        like = self._like
        target = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, like.device, like.dtype
        )
        return self._give_means(target)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self._options_repr()}"


class Conv2d(Layer):
    """`torch.nn.Conv2d` with random weights: Tensor or Moments in, Moments out.

    The arguments before `device` are `torch.nn.Conv2d`'s; for the others see `spgru.nn.Layer`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2d,
        stride: Size2d = 1,
        padding: Size2d | str = 0,
        dilation: Size2d = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        family: str | Family = "gaussian",
        rule: Rule = "exact",
        parameterization: Parameterization = "moments",
        weight_std: float | None = None,
    ) -> None:
        super().__init__(family, rule, parameterization, weight_std, device, dtype)
        check_choice("padding_mode", padding_mode, get_args(PaddingMode))
        # torch.nn's own layer checks and normalises the arguments, and says how to pad.
        arguments: dict[str, Any] = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "padding_mode": padding_mode,
        }
        shape = nn.Conv2d(**arguments, device="meta")
        self._arguments = arguments
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = shape.kernel_size, shape.stride
        self.padding, self.dilation, self.groups = shape.padding, shape.dilation, groups
        self.padding_mode = padding_mode
        self._pad_widths = tuple(shape._reversed_padding_repeated_twice)
        fan_in = in_channels // groups * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan_in)
        self._add_weight("weight", tuple(shape.weight.shape), fan_in, bound)
        self.register_module("bias", None)
        if bias:
            self._add_weight("bias", (out_channels,), fan_in, bound)

    def forward(self, x: Tensor | Moments) -> Moments:
        """(B, in_channels, height, width) or unbatched -> the same with out_channels"""
        self._check("x", x)
        if x.ndim not in (3, 4) or x.shape[-3] != self.in_channels:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; pass (B, {self.in_channels}, height, width) "
                f"or ({self.in_channels}, height, width)"
            )
        padding: Size2d | str = self.padding
        x = self._enter(x)
        if self.padding_mode != "zeros":
            x, padding = self._pad(x), 0
        output = conv2d(
            x, self._value("weight"), self._value("bias"), self.stride, padding, self.dilation,
            self.groups,
        )  # fmt: skip
        if self._records is not None:
            self._records.append(Record("", {"output": output}, None))
        return self._leave(output)  # type: ignore[no-any-return]

    def _pad(self, x: Tensor | Moments) -> Tensor | Moments:
        if isinstance(x, Tensor):
            return F.pad(x, self._pad_widths, mode=self.padding_mode)
        return Moments(self._pad(x.mean), self._pad(x.var))  # type: ignore[arg-type]

    @classmethod
    def from_torch(cls, module: nn.Conv2d, weight_std: float | None = None, **options: Any) -> Self:
        """The same layer with the weights of `module` as means."""
        names = (
            "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
            "groups", "padding_mode",
        )  # fmt: skip
        arguments = {name: getattr(module, name) for name in names}
        layer = cls(
            **arguments,
            bias=module.bias is not None,
            device=module.weight.device,
            dtype=module.weight.dtype,
            weight_std=weight_std,
            **options,
        )
        return layer._take_means(module)

    def to_torch(self) -> nn.Conv2d:
        """A `torch.nn.Conv2d` with the means as weights."""
        like = self._like
        target = nn.Conv2d(**self._arguments, device=like.device, dtype=like.dtype)
        return self._give_means(target)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, {self._options_repr()}"
        )
