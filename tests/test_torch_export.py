"""`torch.export`: one program for every length and batch size, without this package."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import spgru
from spgru import Moments

# Raised by torch itself: copying its tree specs, and importing onnxscript.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

OTHERS = [(6, 4), (1, 1), (2, 7), (1, 3), (40, 1)]
"""Lengths and batch sizes, those of the example first."""


class Network(nn.Module):
    """Weights as uncertain as these lead through both forms of the activations' moments."""

    def __init__(self, cell: str, **options: Any) -> None:
        super().__init__()
        self.recurrent = getattr(spgru, cell)(3, 5, weight_std=0.8, **options)
        self.head = spgru.Linear(5 * self.recurrent._directions, 2)

    def forward(self, x: Tensor, x_var: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = self.recurrent(Moments(x, x_var))
        mean, var = self.head(out)
        return mean, var


def example(length: int, batch: int) -> tuple[Tensor, Tensor]:
    return 3 * torch.randn(length, batch, 3), torch.rand(length, batch, 3)


TIME_AND_BATCH = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("GRU", {"reset_after": False}),
        ("RNN", {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}),
    ],
)
def test_exported_programs_hold_for_any_length_and_consist_of_torch_alone(
    cell: str, options: dict[str, Any]
) -> None:
    network = Network(cell, **options).eval()
    shapes = (TIME_AND_BATCH, TIME_AND_BATCH)
    program = torch.export.export(network, example(*OTHERS[0]), dynamic_shapes=shapes)
    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            if node.op == "call_function":
                assert "spgru" not in str(node.target)
    exported = program.module()
    for size in OTHERS[:3]:
        x, x_var = example(*size)
        with torch.no_grad():  # else torch's scan traces its gradient at every call
            found, expected = exported(x, x_var), network(x, x_var)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_strict_export_holds_for_any_length() -> None:
    network = Network("RNN").eval()
    shapes = (TIME_AND_BATCH, TIME_AND_BATCH)
    with torch.no_grad():  # torch 2.13 has no gradients of a scan of unknown batch size here
        program = torch.export.export(network, example(6, 4), dynamic_shapes=shapes, strict=True)
        x, x_var = example(9, 2)
        found = program.module()(x, x_var)
    for got, wanted in zip(found, network(x, x_var), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
