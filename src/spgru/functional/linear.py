"""Sums weighted by random weights: `linear` and `conv2d`. Exact under independence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.moments import Moments, promote

__all__ = ["Affine", "conv2d", "linear"]

Size2d = int | tuple[int, ...]
WeightedSum = Callable[[Tensor, Tensor, Tensor | None], Tensor]


# eq=False: tensors have no equality to go by, and torch.compile hashes what it calls before it has
# its fields (torch 2.11).
@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """x -> W x + b, with what is constant over a sequence computed once.

    With W, b and x independent and known by their moments:

        mean = W.mean x.mean + b.mean
        var  = W.var x.mean^2 + (W.var + W.mean^2) x.var + b.var
    """

    weight: Tensor
    """(O, I): W.mean, or W itself where the weights are known exactly"""
    weight_var: Tensor | None
    """(O, I), or None for weights known exactly"""
    bias: Tensor | None
    bias_var: Tensor | None
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(weight: Tensor | Moments, bias: Tensor | Moments | None = None) -> Affine:
        weight, bias = promote(weight, bias)
        if isinstance(weight, Tensor):
            return Affine(weight, None, bias, None)  # type: ignore[arg-type]
        bias_mean, bias_var = (None, None) if bias is None else bias
        return Affine(weight.mean, weight.var, bias_mean, bias_var)

    def detach(self) -> Affine:
        """The same map with weights that do not learn."""
        parts = self.weight, self.weight_var, self.bias, self.bias_var
        return Affine(*(None if part is None else part.detach() for part in parts))  # type: ignore[arg-type]

    def copy(self) -> Affine:
        """The same map with all that is kept, to which more can be added without a trace here."""
        return replace(self, _kept=dict(self._kept))

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once for as long as this map is kept."""
        if key not in self._kept:
            # What is kept may take part in a backward pass later.
            if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
                with torch.enable_grad():
                    self._kept[key] = make()
            else:
                with torch.inference_mode(False):
                    self._kept[key] = make()
        return self._kept[key]

    def second_moment(self) -> Tensor:
        """W.var + W.mean^2 (O, I), which only an uncertain input asks for."""
        var = self.weight_var
        assert var is not None
        result: Tensor = self.keep(
            "second moment", lambda: torch.addcmul(var, self.weight, self.weight)
        )
        return result

    def joined(self, dtype: torch.dtype) -> Tensor:
        """[W.var, W.var + W.mean^2] (O, 2 I): one product for both parts of the variance."""

        def join() -> Tensor:
            assert self.weight_var is not None
            return torch.cat((self.weight_var.to(dtype), self.second_moment().to(dtype)), 1)

        result: Tensor = self.keep(("joined", dtype), join)
        return result

    def rows(self, start: int, stop: int) -> Affine:
        """The map to outputs `start` to `stop` only."""
        part = Affine(
            *(
                tensor if tensor is None else tensor[start:stop]
                for tensor in (self.weight, self.weight_var, self.bias, self.bias_var)
            )  # type: ignore[arg-type]
        )
        if self.weight_var is not None:
            part._kept["second moment"] = self.second_moment()[start:stop]
        return part

    def __call__(self, x: Tensor | Moments, weighted_sum: WeightedSum = F.linear) -> Any:
        """(*batch, I) -> (*batch, O).

        A Tensor counts as certain and saves one product; certain weights and a certain input give
        a Tensor, everything else Moments.
        """
        x_mean, x_var = (x, None) if isinstance(x, Tensor) else x
        mean = weighted_sum(x_mean, self._cast("weight", self.weight), self.bias)
        if self.weight_var is None:
            if x_var is None:
                return mean
            return Moments(mean, weighted_sum(x_var, self.weight**2, None))
        var = weighted_sum(x_mean**2, self._cast("var", self.weight_var), self.bias_var)
        if x_var is not None:
            second = self._cast("second moment", self.second_moment())
            var = var + weighted_sum(x_var, second, None)
        return Moments(mean, var)

    def _cast(self, name: str, tensor: Tensor) -> Tensor:
        """As autocast would at every product, but once."""
        device = tensor.device.type
        if tensor.dtype != torch.float32 or not torch.is_autocast_enabled(device):
            return tensor
        low = torch.get_autocast_dtype(device)
        result: Tensor = self.keep((name, low), lambda: tensor.to(low))
        return result


def linear(
    x: Tensor | Moments, weight: Tensor | Moments, bias: Tensor | Moments | None = None
) -> Any:
    """Moments of W x + b; see `Affine`. Exact. Plain tensors throughout give a plain tensor.

    Args:
        x: (*batch, I)
        weight: (O, I)
        bias: (O,)
    """
    return Affine.of(weight, bias)(x)


def conv2d(
    x: Tensor | Moments,
    weight: Tensor | Moments,
    bias: Tensor | Moments | None = None,
    stride: Size2d = 1,
    padding: Size2d | str = 0,
    dilation: Size2d = 1,
    groups: int = 1,
) -> Any:
    """Moments of a convolution with random weights: `linear` at every position. Exact.

    Neighbouring outputs share weights and so are correlated; their own moments are exact.

    Args:
        x: (B, C, height, width) or (C, height, width)
        weight: (O, C / groups, kernel height, kernel width)
        bias: (O,)
    """
    return Affine.of(weight, bias)(x, convolution(stride, padding, dilation, groups))


def convolution(
    stride: Size2d, padding: Size2d | str, dilation: Size2d, groups: int
) -> WeightedSum:
    """`torch.nn.functional.conv2d` with these options, as `Affine` takes it."""

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)

    return convolve
