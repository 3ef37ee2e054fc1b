"""Conv1d and Conv2d with random weights."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.checks import check_choice
from spgru.functional import Affine
from spgru.functional.linear import Size2d
from spgru.functional.products import Convolution
from spgru.modes import watch
from spgru.moments import Moments
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape

__all__ = ["Conv1d", "Conv2d"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _Conv(Layer):
    """What both share; a sequence is an image of height 1, as it is to torch itself."""

    positions: ClassVar[tuple[str, ...]]
    """the dimensions after the channels, in words"""

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
        shape: Any = self.torch_class(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
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
        """(B, in_channels, *positions) or unbatched -> the same with out_channels"""
        self._check("input", input)
        count = len(self.positions)
        if input.ndim not in (count + 1, count + 2) or input.shape[-count - 1] != self.in_channels:
            names = ", ".join((str(self.in_channels), *self.positions))
            raise ValueError(
                f"input has shape {tuple(input.shape)}; pass (B, {names}) or ({names})"
            )
        padding: Size2d | str = self.padding
        x = self._enter(input)
        if self.padding_mode != "zeros":
            x, padding = self._pad(x), 0
        is_sequence = count == 1
        output = self._map(padding)(x.unsqueeze(-2) if is_sequence else x)
        output = output.squeeze(-2) if is_sequence else output
        self._record("", {"output": output}, None)
        watch(self, output)
        return self._leave(output)  # type: ignore[no-any-return]

    def _map(self, padding: Size2d | str) -> Affine:
        if len(self.positions) == 2:
            product = Convolution(self.stride, padding, self.dilation, self.groups)
            return self._affine("weight", "bias", product)
        if not isinstance(padding, str):
            padding = (0, padding if isinstance(padding, int) else padding[0])
        product = Convolution((1, *self.stride), padding, (1, *self.dilation), self.groups)

        def make() -> Affine:
            weight = self._value("weight").unsqueeze(-2)
            return Affine.of(weight, self._value("bias"), product, self._gain("weight"))

        return self._once(("weight", "bias"), make)

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
        count = len(self.positions)
        for name, default in (
            ("stride", (1,) * count),
            ("padding", (0,) * count),
            ("dilation", (1,) * count),
            ("groups", 1),
            ("padding_mode", "zeros"),
        ):
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join([*parts, self._options_repr()])


class Conv1d(_Conv):
    """`torch.nn.Conv1d` with random weights: Tensor or Moments in, Moments out.

    (B, in_channels, length) or unbatched. The arguments before `device` are `torch.nn.Conv1d`'s;
    for the others see `spgru.nn.Layer`.
    """

    torch_class = nn.Conv1d
    positions = ("length",)


class Conv2d(_Conv):
    """`torch.nn.Conv2d` with random weights: Tensor or Moments in, Moments out.

    (B, in_channels, height, width) or unbatched. The arguments before `device` are
    `torch.nn.Conv2d`'s; for the others see `spgru.nn.Layer`.
    """

    torch_class = nn.Conv2d
    positions = ("height", "width")
