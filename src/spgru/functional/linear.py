"""Sums weighted by random weights: `linear`, `conv1d` and `conv2d`. Exact under independence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from spgru.functional.products import MATRIX, Convolution, Product
from spgru.moments import Moments, is_autocast, promote

__all__ = ["Affine", "Tap", "conv1d", "conv2d", "linear"]

Size2d = int | tuple[int, ...]


class Tap(Protocol):
    """Told of every use of a map; see `spgru.response`."""

    needs_reference: bool
    """whether what is computed must be torch's own operations"""

    def run(self, affine: Affine, x: Tensor | Moments) -> Moments:
        """The result of the map for x."""

    def note(self, affine: Affine | None, x: Moments | None, mean: Tensor, var: Tensor) -> Moments:
        """The result for x, which is differentiated by `mean` and `var`."""

    def add_to(self, affine: Affine, sequences: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Where gradients by weight (sequences, outputs, O, I) and bias without I are summed up."""

    def will_add(self, affine: Affine, sequences: int) -> None:
        """The results of a call are differentiated by what is summed up by `add_to`."""

    def remainder(self, affine: Affine, sequences: int, outputs: int) -> Tensor:
        """Where remainders (sequences, outputs) of a scan by this map are summed up."""

    def scans(self) -> list[Any]:
        """A list for all scans by this map; before they are differentiated one is asked to
        `prepare` for all."""

    def rows(self, start: int) -> Tap:
        """For the map to outputs from `start` on."""


# eq=False: tensors have no equality to go by, and torch.compile hashes what it calls before it has
# its fields (torch 2.11).
@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """x -> W x + b, with what is constant over a sequence computed once.

    With W, b and x independent and known by their moments:

        mean = W.mean x.mean + b.mean
        var  = W.var x.mean^2 + (W.var + g W.mean^2) x.var + b.var

    The gain g, one for every output, is 1 unless `spgru.calibrate` has found another: inputs that
    are correlated with each other add up to another variance than independent ones.
    """

    weight: Tensor
    """(O, I): W.mean, or W itself where the weights are known exactly"""
    weight_var: Tensor | None
    """(O, I), or None for weights known exactly"""
    bias: Tensor | None
    bias_var: Tensor | None
    product: Product
    """what W x means"""
    gain: Tensor | None = None
    """(O,), or None for 1"""
    coherence: Tensor | None = None
    """(H,), of the map that reads a recurrent state of H units: how far what comes in goes along
    with that state, see `spgru.functional.algebra.coherent`; None for 0"""
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)
    """what follows from the weights, by any key; see `keep`"""
    tap: Tap | None = None

    @staticmethod
    def of(
        weight: Tensor | Moments,
        bias: Tensor | Moments | None = None,
        product: Product | None = None,
        gain: Tensor | None = None,
        coherence: Tensor | None = None,
    ) -> Affine:
        """From a weight and a bias, certain or random; what `gain` multiplies is W.mean^2."""
        # Not as a default value, where torch.compile of torch 2.11 does not know an object.
        product = MATRIX if product is None else product
        weight, bias = promote(weight, bias)
        if isinstance(weight, Tensor):
            return Affine(weight, None, bias, None, product, gain, coherence)  # type: ignore[arg-type]
        bias_mean, bias_var = (None, None) if bias is None else bias
        return Affine(weight.mean, weight.var, bias_mean, bias_var, product, gain, coherence)

    def frozen(self) -> Affine:
        """The same map with copies of the weights, which do not learn."""
        names = "weight", "weight_var", "bias", "bias_var", "gain", "coherence"
        parts: Any = {name: getattr(self, name) for name in names}
        parts = {
            name: part if part is None else part.detach().clone() for name, part in parts.items()
        }
        return replace(self, **parts, cache={})

    def copy(self) -> Affine:
        """The same map with a copy of the cache: entries added to the copy stay there."""
        return replace(self, cache=dict(self.cache))

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """The entry `key` of the cache, made by `make` when it is first asked for."""
        if key not in self.cache:
            # An entry may take part in a backward pass later, so it is made with gradients.
            if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
                with torch.enable_grad():
                    self.cache[key] = make()
            else:
                with torch.inference_mode(False):
                    self.cache[key] = make()
        return self.cache[key]

    def second_moment(self) -> Tensor:
        """W.var + g W.mean^2 (O, I), which only an uncertain input asks for."""
        var = self.weight_var
        if var is None:
            raise ValueError("weights known exactly have no second moment beside their square")
        result: Tensor = self.keep(
            "second moment", lambda: torch.addcmul(var, self.weight, self._gained())
        )
        return result

    def _gained(self) -> Tensor:
        """g W.mean (O, I)"""
        if self.gain is None:
            return self.weight
        return self.gain.view(-1, *[1] * (self.weight.ndim - 1)).to(self.weight) * self.weight

    def to(self, dtype: torch.dtype) -> Affine:
        """The same map in another dtype, this object where it is in that dtype already."""
        if self.weight.dtype == dtype:
            return self
        result: Affine = self.keep(("to", dtype), lambda: self._each(lambda part: part.to(dtype)))
        return result

    def _each(self, change: Callable[[Tensor], Tensor]) -> Affine:
        """The map with every tensor changed."""

        def changed(part: Any) -> Any:
            return None if part is None else change(part)

        return Affine(
            changed(self.weight),
            changed(self.weight_var),
            changed(self.bias),
            changed(self.bias_var),
            self.product,
            changed(self.gain),
            self.coherence,
            tap=self.tap,
        )

    def rows(self, start: int, stop: int) -> Affine:
        """The map to outputs `start` to `stop` only."""
        part = self._each(lambda tensor: tensor[start:stop])
        if self.weight_var is not None:
            part.cache["second moment"] = self.second_moment()[start:stop]
        return part if self.tap is None else replace(part, tap=self.tap.rows(start))

    def second_moment_slope(self) -> Tensor:
        """d (W.var + g W.mean^2) / d W.mean (O, I)"""
        return 2 * self._gained()

    def __call__(self, x: Tensor | Moments) -> Any:
        """(*batch, I) -> (*batch, O).

        A Tensor counts as certain and saves one product; certain weights and a certain input give
        a Tensor, everything else Moments.
        """
        return self.untapped(x) if self.tap is None else self.tap.run(self, x)

    def untapped(self, x: Tensor | Moments) -> Any:
        """The result, told to nobody."""
        x_mean, x_var = (x, None) if isinstance(x, Tensor) else x
        mean = self.product(x_mean, self._cast("weight", self.weight), self.bias)
        if self.weight_var is None:
            if x_var is None:
                return mean
            return Moments(mean, self.product(x_var, self.weight * self._gained(), None))
        var = self.product(x_mean**2, self._cast("var", self.weight_var), self.bias_var)
        if x_var is not None:
            second = self._cast("second moment", self.second_moment())
            var = var + self.product(x_var, second, None)
        return Moments(mean, var)

    def _cast(self, name: str, tensor: Tensor) -> Tensor:
        """The weight in autocast's dtype, cast once instead of at every product."""
        device = tensor.device.type
        if tensor.dtype != torch.float32 or not is_autocast(tensor):
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


def conv1d(
    x: Tensor | Moments,
    weight: Tensor | Moments,
    bias: Tensor | Moments | None = None,
    stride: Size2d = 1,
    padding: Size2d | str = 0,
    dilation: Size2d = 1,
    groups: int = 1,
) -> Any:
    """Moments of a convolution along a sequence, which is an image of height 1; see `conv2d`.

    Args:
        x: (B, C, length) or (C, length)
        weight: (O, C / groups, kernel length)
        bias: (O,)
    """

    def wide(size: Size2d, height: int) -> tuple[int, ...]:
        return (height, size) if isinstance(size, int) else (height, *size)

    product = Convolution(
        wide(stride, 1), padding if isinstance(padding, str) else wide(padding, 0),
        wide(dilation, 1), groups,
    )  # fmt: skip
    return Affine.of(weight.unsqueeze(-2), bias, product)(x.unsqueeze(-2)).squeeze(-2)


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
    return Affine.of(weight, bias, Convolution(stride, padding, dilation, groups))(x)
