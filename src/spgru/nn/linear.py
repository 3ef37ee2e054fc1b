"""Linear with random weights."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from spgru.checks import check_features
from spgru.modes import watch
from spgru.moments import Moments
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape

__all__ = ["Linear"]


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
