"""Linear and Conv2d with random weights."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.checks import check_choice, check_features
from spgru.functional.linear import Size2d
from spgru.functional.products import Convolution
from spgru.modes import watch
from spgru.moments import Moments
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape

__all__ = ["Conv2d", "Linear"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Linear(Layer):
    """`torch.nn.Linear` with random weights: Tensor or Moments in, Moments out.

    The arguments before `device` are `torch.nn.Linear`'s; for the others see `spgru.nn.Layer`.
    """

    torch_class = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        self.in_features, self.out_features = in_features, out_features
        # As in torch.nn a layer may have no inputs or outputs, and then has nothing to draw.
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 0:
                raise ValueError(f"{name} must not be negative, got {size}")
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        specs = [WeightShape("weight", (out_features, in_features), in_features, bound)]
        if bias:
            specs.append(WeightShape("bias", (out_features,), in_features, bound))
        self._add_weights(specs)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, input: Tensor | Moments) -> Moments:
        """(*batch, in_features) -> (*batch, out_features)"""
        self._check("input", input)
        if input.ndim == 0:
            raise ValueError(f"input is a single number; pass (..., {self.in_features})")
        check_features("input", input, self.in_features, "in_features")
        output = self._affine("weight", "bias")(self._enter(input))
        self._record("", {"output": output}, None)
        watch(self, output)
        return self._leave(output)  # type: ignore[no-any-return]

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        return {
            "in_features": module.in_features,
            "out_features": module.out_features,
            "bias": module.bias is not None,
        }

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else "bias=False, "
        return f"{self.in_features}, {self.out_features}, {bias}{self._options_repr()}"


class Conv2d(Layer):
    """`torch.nn.Conv2d` with random weights: Tensor or Moments in, Moments out.

    The arguments before `device` are `torch.nn.Conv2d`'s; for the others see `spgru.nn.Layer`.
    """

    torch_class = nn.Conv2d

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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        check_choice("padding_mode", padding_mode, get_args(PaddingMode))
        # torch.nn's own layer checks and normalises the arguments, and says how to pad.
        shape = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,  # type: ignore[arg-type]
            padding_mode, device="meta",
        )  # fmt: skip
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = shape.kernel_size, shape.stride
        self.padding, self.dilation, self.groups = shape.padding, shape.dilation, groups
        self.padding_mode = padding_mode
        self._pad_widths = tuple(shape._reversed_padding_repeated_twice)
        fan_in = in_channels // groups * math.prod(self.kernel_size)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        specs = [WeightShape("weight", tuple(shape.weight.shape), fan_in, bound)]
        if bias:
            specs.append(WeightShape("bias", (out_channels,), fan_in, bound))
        self._add_weights(specs)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, input: Tensor | Moments) -> Moments:
        """(B, in_channels, height, width) or unbatched -> the same with out_channels"""
        self._check("input", input)
        if input.ndim not in (3, 4) or input.shape[-3] != self.in_channels:
            raise ValueError(
                f"input has shape {tuple(input.shape)}; pass (B, {self.in_channels}, height, "
                f"width) or ({self.in_channels}, height, width)"
            )
        padding: Size2d | str = self.padding
        x = self._enter(input)
        if self.padding_mode != "zeros":
            x, padding = self._pad(x), 0
        product = Convolution(self.stride, padding, self.dilation, self.groups)
        output = self._affine("weight", "bias", product)(x)
        self._record("", {"output": output}, None)
        watch(self, output)
        return self._leave(output)  # type: ignore[no-any-return]

    def _pad(self, x: Tensor | Moments) -> Tensor | Moments:
        if isinstance(x, Tensor):
            return F.pad(x, self._pad_widths, mode=self.padding_mode)
        return Moments(self._pad(x.mean), self._pad(x.var))  # type: ignore[arg-type]

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        names = (
            "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
            "groups", "padding_mode",
        )  # fmt: skip
        arguments = {name: getattr(module, name) for name in names}
        return {**arguments, "bias": module.bias is not None}

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        for name, default in (
            ("stride", (1, 1)),
            ("padding", (0, 0)),
            ("dilation", (1, 1)),
            ("groups", 1),
            ("padding_mode", "zeros"),
        ):
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join([*parts, self._options_repr()])
