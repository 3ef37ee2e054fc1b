"""The inputs of all contenders, and the float64 truth they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

import spgru
from spgru.bench.shapes import Case
from spgru.nn.weight import is_spread

__all__ = ["CELLS", "Answer", "Cell", "Problem", "gradients", "ours_gradients", "plain_gradients"]

Cell = Literal["GRU", "LSTM", "RNN"]
CELLS: tuple[Cell, ...] = get_args(Cell)

Answer = dict[str, Tensor]
"""By name: "mean" and "var" (T, B, H), and gradients, those of all weights in one vector."""

MEANS, SPREADS = "gradient of means", "gradient of spreads"


class Problem:
    """Inputs and weights of one case. Every network made here has the same means.

    Args:
        case: sizes and dtype
        device: where everything is
        seed: of inputs and weights
    """

    def __init__(self, case: Case, device: torch.device, seed: int = 0) -> None:
        self.case, self.device, self.seed = case, device, seed
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        shape = case.shape
        generator = torch.Generator(device).manual_seed(seed)

        def draw(size: int) -> Tensor:
            sizes = (shape.steps, shape.batch, size)
            return torch.randn(sizes, generator=generator, device=device).to(self.dtype)

        self.x = draw(shape.inputs)
        self.cotangents = draw(shape.hidden), draw(shape.hidden)
        """gradients of a loss by mean and variance, (T, B, H) each"""
        self.truth = cache(self._truth)
        self.plain_truth = cache(self._plain_truth)

    def refresh(self) -> None:
        """New inputs, in the same tensor, which captured graphs read."""
        self.x.normal_()

    def plain(self, cell: Cell, dtype: torch.dtype | None = None) -> Any:
        """The layer of `torch.nn`."""
        shape = self.case.shape
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self.seed)
            layer = getattr(nn, cell)(
                shape.inputs, shape.hidden, device=self.device, dtype=self.dtype
            )
        return layer if dtype is None else layer.to(dtype)

    def ours(self, cell: Cell, backend: str) -> Any:
        """Our layer, with the variances it has by default."""
        return getattr(spgru, cell).from_torch(self.plain(cell), backend=backend)

    def _truth(self, cell: Cell) -> Answer:
        """Our reference in float64, with the weights as they are after rounding to the dtype."""
        layer = self.ours(cell, "reference")
        layer = layer.to(torch.float64)
        output, _ = layer(self.x.double())
        _backward(output, self.cotangents)
        return {"mean": output.mean.detach(), "var": output.var.detach(), **ours_gradients(layer)}

    def _plain_truth(self, cell: Cell) -> Answer:
        """The same without variance."""
        plain = self.plain(cell, torch.float64)
        layer = getattr(spgru, cell).from_torch(plain, weight_std=0.0, backend="reference")
        output, _ = layer(self.x.double())
        _backward((output.mean,), self.cotangents)
        return {"mean": output.mean.detach(), MEANS: ours_gradients(layer)[MEANS]}


def _backward(values: Any, cotangents: Sequence[Tensor]) -> None:
    values = tuple(values)
    pairs = zip(values, cotangents, strict=False)
    torch.autograd.backward(values, [by.to(value.dtype) for value, by in pairs])


def gradients(tensors: Sequence[Tensor]) -> Tensor:
    """Gradients of parameters in one vector."""
    found = []
    for tensor in tensors:
        assert tensor.grad is not None
        found.append(tensor.grad.flatten())
    return torch.cat(found)


def plain_gradients(layer: nn.Module) -> Answer:
    return {MEANS: gradients(list(layer.parameters()))}


def ours_gradients(layer: nn.Module) -> Answer:
    named = dict(layer.named_parameters())
    return {
        MEANS: gradients([p for name, p in named.items() if not is_spread(name)]),
        SPREADS: gradients([p for name, p in named.items() if is_spread(name)]),
    }
