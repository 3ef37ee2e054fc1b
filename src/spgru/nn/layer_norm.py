"""LayerNorm with random weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from spgru.functional import Affine
from spgru.functional.normalization import normalize_features
from spgru.functional.products import ELEMENTWISE
from spgru.modes import watch
from spgru.moments import Moments
from spgru.nn.layer import Layer, Options
from spgru.nn.weight import WeightShape

__all__ = ["LayerNorm"]


class LayerNorm(Layer):
    """`torch.nn.LayerNorm` with random weights: Tensor or Moments in, Moments out.

    Of Moments the mean and variance over the features are random too; the closed form and its error
    are in `spgru.functional.normalization` and docs/mathematics.md. The arguments before `device`
    are `torch.nn.LayerNorm`'s; for the others see `spgru.nn.Layer`. Without weights
    (`elementwise_affine=False`) use `torch.nn.LayerNorm` itself, which takes Moments as well.
    """

    torch_class = nn.LayerNorm

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(device, dtype, **options)
        if not elementwise_affine:
            raise ValueError(
                "elementwise_affine=False leaves nothing that is random; use torch.nn.LayerNorm, "
                "which takes Moments as well"
            )
        if self.family.name != "gaussian":
            raise ValueError(
                f"family={self.family.name!r} is for positive numbers, and normalised ones are "
                "not; use family='gaussian'"
            )
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape, self.eps = tuple(shape), eps
        if math.prod(self.normalized_shape) < 1:
            raise ValueError(f"normalized_shape must be positive, got {self.normalized_shape}")
        self.elementwise_affine = True
        names = ("weight", "bias") if bias else ("weight",)
        self._add_weights(
            WeightShape(name, self.normalized_shape, 1, 1.0, is_summed=False) for name in names
        )
        if not bias:
            self.register_parameter("bias", None)

    def _initial_mean(self, spec: WeightShape, like: Tensor) -> Tensor:
        return like.new_full(spec.shape, 1.0 if spec.name == "weight" else 0.0)

    def forward(self, input: Tensor | Moments) -> Moments:
        """(*batch, *normalized_shape) -> the same"""
        self._check("input", input)
        count = len(self.normalized_shape)
        if tuple(input.shape[-count:]) != self.normalized_shape:
            sizes = ", ".join(map(str, self.normalized_shape))
            raise ValueError(f"input has shape {tuple(input.shape)}; pass (..., {sizes})")
        x = normalize_features(self._enter(input), self.normalized_shape, self.eps)
        flat = self._once(("weight", "bias"), self._map)(x.flatten(-count))
        output = flat.reshape(input.shape)
        self._record("", {"output": output}, None)
        watch(self, output)
        return self._leave(output)  # type: ignore[no-any-return]

    def _map(self) -> Affine:
        weight, bias = self._value("weight"), self._value("bias")
        bias = None if bias is None else bias.flatten()
        return Affine.of(weight.flatten(), bias, ELEMENTWISE)

    @staticmethod
    def _torch_arguments(module: Any) -> dict[str, Any]:
        names = ("normalized_shape", "eps", "elementwise_affine")
        arguments = {name: getattr(module, name) for name in names}
        return {**arguments, "bias": module.bias is not None}

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else "bias=False, "
        return f"{self.normalized_shape}, eps={self.eps}, {bias}{self._options_repr()}"
