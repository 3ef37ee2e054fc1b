"""Making a trained LSTM probabilistic: no new training, no sampling, intervals that hold.

A plain `nn.LSTM` is trained to forecast the next 12 values of a noisy rhythm from the last 48, as
one does. `spgru.convert` then gives every weight a distribution around what training found, by a
Laplace approximation on the training data; `spgru.calibrate` fits noise and scale to windows kept
from training, and the intervals hold on new ones. `spgru.respond` says what the weights do not
know, on windows of a kind never seen too.

Run:  python examples/convert.py          (about 10 seconds on two cores)
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spgru
from spgru import Moments

PAST, AHEAD, NOISE = 48, 12, 0.1


class Forecaster(nn.Module):
    """Any module of yours: nothing in it knows of spgru."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, hidden_size, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden_size, 32), nn.ReLU(), nn.Linear(32, AHEAD))

    def forward(self, x: Tensor) -> Tensor:
        """(B, PAST, 1) -> (B, AHEAD)"""
        output, _ = self.lstm(x)
        return self.head(output[:, -1])


def windows(count: int, amplitude: float = 1.0, period: float = 24.0) -> tuple[Tensor, Tensor]:
    """Past (count, PAST, 1) and future (count, AHEAD) of noisy oscillations of random phase."""
    steps = torch.arange(PAST + AHEAD) * 2 * math.pi / period
    phase = 2 * math.pi * torch.rand(count, 1)
    series = amplitude * (torch.sin(steps + phase) + 0.3 * torch.sin(2 * (steps + phase)))
    series = series + NOISE * torch.randn(count, PAST + AHEAD)
    return series[:, :PAST, None], series[:, PAST:]


def train(model: Forecaster, loader: DataLoader[tuple[Tensor, ...]], epochs: int = 15) -> None:
    """As always: mean squared error."""
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(math.nan)
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    print(f"trained: mean squared error {loss.item():.4f}, of which noise {NOISE**2:.4f}")


def coverage(y: Moments, happened: Tensor, level: float = 0.9) -> float:
    low, high = y.interval(level)
    return ((low <= happened) & (happened <= high)).double().mean().item()


def main() -> None:
    torch.set_num_threads(1)  # the network is small: more threads would wait for one another
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*windows(600)), batch_size=100, shuffle=True)
    model = Forecaster()
    train(model, loader)
    model.eval()

    start = time.perf_counter()
    kept, new = windows(300), windows(300)
    twin = spgru.convert(model, data=loader, example=new[0][:2])
    print(f"converted in {time.perf_counter() - start:.1f} s, without training")
    with torch.no_grad():
        y = twin(new[0])
        moved = (y.mean - model(new[0])).abs().max()
    print(f"largest change of a forecast by giving weights a distribution: {moved:.3f}\n")

    print("What the weights do not know, as a standard deviation (and the error that was made):")
    kinds = {
        "familiar": new,
        "noise, no rhythm": windows(300, amplitude=0.0),
        "twice as large": windows(300, amplitude=2.0),
    }
    for name, (past, future) in kinds.items():
        error = (model(past) - future).square().mean().sqrt().item()
        closed = twin(past[:50]).std.mean().item()
        response = spgru.respond(twin, past[:50]).std.mean().item()
        print(f"  {name:<18s} closed form {closed:.3f}   response {response:.3f}   ({error:.3f})")

    print(f"\n90 % intervals hold for {coverage(y, new[1]):.0%} of new values without the noise,")
    spgru.calibrate(twin, *kept, progress=False)
    with torch.no_grad(), spgru.frozen(twin):
        print(f"for {coverage(twin(new[0]), new[1]):.0%} after calibration on 300 other windows")


if __name__ == "__main__":
    main()
