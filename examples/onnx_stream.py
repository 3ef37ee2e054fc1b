"""A stream with intervals in any language: train here, run as ONNX without torch.

A small GRU learns to predict the next reading of a noisy oscillation. It is written as an ONNX
program of one step, with the state's mean and variance in and out, and then run by onnxruntime as a
service would run it, reading by reading.

Run:  python examples/onnx_stream.py          (half a minute on two cores; needs '.[onnx]')
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spgru
from spgru import Moments

HIDDEN = 16


class Predictor(nn.Module):
    """The next reading: recurrent state, linear readout, noise of the sensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = spgru.GRU(1, HIDDEN), spgru.Linear(HIDDEN, 1)
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor) -> Moments:
        """(T, B, 1) -> (T, B, 1)"""
        return self._readings(self.gru(x)[0])

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Moments, Any]:
        """(B, 1) -> (B, 1), and the state to pass on: what `to_onnx(stream=True)` writes."""
        output, state = self.gru.step(x_t, state)
        return self._readings(output), state

    def _readings(self, output: Moments) -> Moments:
        mean, var = self.head(output)
        return Moments(mean, var + (2 * self.log_noise).exp())


def readings(batch: int, length: int) -> Tensor:
    time, phase = torch.arange(length).unsqueeze(1), 2 * math.pi * torch.rand(batch)
    return (torch.sin(0.3 * time + phase) + 0.1 * torch.randn(length, batch)).unsqueeze(-1)


def train(model: Predictor, steps: int = 200) -> None:
    prior = spgru.Prior("gaussian", std=1.0)
    optimizer = torch.optim.Adam(spgru.parameter_groups(model), lr=1e-2)
    for _ in range(steps):
        x = readings(16, 40)
        loss = spgru.metrics.gaussian_nll(model(x[:-1]), x[1:]).mean()
        loss = loss + 1e-5 * spgru.kl_divergence(model, prior)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Predictor()
    train(model)
    folder = Path("outputs", "onnx")
    spgru.to_onnx(model, folder / "step.onnx", readings(2, 1)[0], stream=True)

    # From here on torch is not needed: any language with an ONNX runtime does the same.
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "step.onnx")
    series = readings(1, 200).numpy()
    state = {name: np.zeros((1, 1, HIDDEN), np.float32) for name in ("h_mean", "h_var")}
    inside = 0
    for now, following in pairwise(series):
        answer: Any = session.run(None, {"x": now, **state})
        mean, var, *after = answer
        state = dict(zip(state, after, strict=True))
        inside += bool(abs(following - mean) < 1.645 * np.sqrt(var))
    print(
        f"{folder / 'step.onnx'}: 90 % intervals held {inside / (len(series) - 1):.0%} of the time"
    )


if __name__ == "__main__":
    main()
