"""`torch.export` and ONNX: one program for every length and batch size, without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import spgru
from spgru import Moments
from spgru.nn.weight import named_weights

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


class Stream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(3, 5, num_layers=2)

    def forward(self, x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        out, state = self.gru.step(x, Moments(mean, var))
        return *out, *state


def example(length: int, batch: int) -> tuple[Tensor, Tensor]:
    return 3 * torch.randn(length, batch, 3), torch.rand(length, batch, 3)


TIME_AND_BATCH = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


@pytest.mark.parametrize("cell", ["GRU", "LSTM", "RNN"])
def test_onnx_gives_what_the_network_gives_for_any_length_and_batch(
    cell: str, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    network = Network(cell).eval()
    if cell == "GRU":  # calibrated, too
        for weight in dict(named_weights(network)).values():
            rows = weight.spec.shape[:1]
            if weight.spec.gain is not None:
                gains = {**weight.layer.gains(), weight.spec.name: 1 + torch.rand(rows)}
                weight.layer.set_gains_(gains)
    shapes = {"x": TIME_AND_BATCH, "x_var": TIME_AND_BATCH}
    program = torch.onnx.export(
        network, example(*OTHERS[0]), dynamo=True, dynamic_shapes=shapes, verbose=False
    )
    assert program is not None
    program.save(tmp_path / "network.onnx")
    session = runtime.InferenceSession(tmp_path / "network.onnx")
    for size in OTHERS:
        x, x_var = example(*size)
        found = session.run(None, {"x": x.numpy(), "x_var": x_var.numpy()})
        for got, wanted in zip(found, network(x, x_var), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-5, atol=1e-5)


def test_a_step_of_a_stream_becomes_onnx_with_its_state(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    stream = Stream().eval()
    program = torch.onnx.export(
        stream,
        (torch.randn(4, 3), torch.zeros(2, 4, 5), torch.zeros(2, 4, 5)),
        dynamo=True,
        dynamic_shapes={"x": {0: Dim.DYNAMIC}, "mean": {1: Dim.DYNAMIC}, "var": {1: Dim.DYNAMIC}},
        verbose=False,
    )
    assert program is not None
    program.save(tmp_path / "step.onnx")
    session = runtime.InferenceSession(tmp_path / "step.onnx")
    x = torch.randn(8, 2, 3)
    mean = var = torch.zeros(2, 2, 5).numpy()
    for x_t in x:
        inputs = {"x": x_t.numpy(), "mean": mean, "var": var}
        out_mean, out_var, mean, var = session.run(None, inputs)
    output, final = stream.gru(x)
    for got, wanted in zip((out_mean, out_var, mean, var), (*output[-1], *final), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), wanted, rtol=1e-5, atol=1e-6)


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
