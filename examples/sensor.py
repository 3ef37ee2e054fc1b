"""A sensor that fails: predict the next reading, and know when not to trust the prediction.

A small GRU learns a noisy oscillation one step ahead. Then it follows new recordings in which the
sensor goes silent for a while: the network is fed its own prediction, uncertainty included. One of
them later reports something never seen in training. In both the uncertainty that comes from the
weights and the input rises; that of the sensor's own noise, learned along with them, stays.

The intervals are then fitted to what happened on recordings kept from training
(`spgru.calibrate`), and hold on others, while the sensor is silent too.

Run:  python examples/sensor.py          (about a minute on two cores; figures in outputs/)
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import spgru
from spgru import Moments

LENGTH, SILENT, STRANGE = 160, (60, 90), (120, 160)
NOISE = 0.05


class Forecaster(nn.Module):
    """One step ahead: recurrent state, then a linear readout, both with random weights."""

    def __init__(self, hidden_size: int = 16) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, hidden_size)
        self.readout = spgru.Linear(hidden_size, 1)
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, silent: tuple[int, int] = (0, 0)) -> Moments:
        """Every next reading, (T, B, 1) -> (T, B, 1). While silent, the prediction is the input."""
        if silent[0] == silent[1]:
            output, _ = self.gru(x)
            return self._readings(output)
        history: list[Moments] = []
        state = None
        for t, reading in enumerate(x):
            heard = history[-1] if silent[0] <= t < silent[1] else reading
            output, state = self.gru.step(heard, state)
            history.append(self._readings(output))
        return spgru.stack(history)

    def _readings(self, output: Moments) -> Moments:
        """The sensor adds noise of its own."""
        value = self.readout(output)
        return Moments(value.mean, value.var + self.noise())

    def noise(self) -> Tensor:
        return (2 * self.log_noise).exp()


def recordings(count: int, length: int) -> Tensor:
    """(length, count, 1) noisy oscillations of random phase."""
    phase = 2 * math.pi * torch.rand(1, count, 1)
    time = torch.arange(length)[:, None, None]
    return torch.sin(2 * math.pi * time / 20 + phase) + NOISE * torch.randn(length, count, 1)


def train(model: Forecaster, steps: int = 150) -> None:
    """Maximise the evidence lower bound: expected log likelihood less KL to the prior."""
    prior = spgru.Prior("gaussian", std=1.0)
    sequences, length = 16, 40
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    data, start = recordings(sequences, length), time.perf_counter()
    for step in range(1, steps + 1):
        likelihood = model(data[:-1]).log_prob(data[1:]).mean()
        kl = spgru.kl_divergence(model, prior) / (sequences * (length - 1))
        loss = kl - likelihood
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0:
            seconds = time.perf_counter() - start
            print(
                f"step {step:4d}/{steps}  log likelihood {likelihood.item():6.3f}  "
                f"KL {kl.item():.3f}  {seconds:4.0f} s",
                flush=True,
            )


def coverage(predicted: Moments, happened: Tensor, level: float) -> str:
    """How many readings lie in their intervals, heard and silent, and how wide those are then."""
    low, high = predicted.interval(level)
    inside = ((low <= happened) & (happened <= high)).double()
    heard, silent = slice(20, SILENT[0]), slice(*SILENT)
    width = (high - low)[silent].mean()
    return f"{inside[heard].mean():9.0%} {inside[silent].mean():8.0%} {width:8.2f}"


def plot(x: Tensor, predicted: Moments, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    steps = range(1, len(x))
    low, high = predicted.interval(0.95)
    axes.fill_between(steps, low, high, alpha=0.3, label="95 % interval")
    axes.plot(steps, predicted.mean, label="predicted")
    axes.plot(range(len(x)), x, ".", color="black", markersize=4, label="sensor")
    axes.axvspan(*SILENT, color="grey", alpha=0.2, label="sensor silent: not seen by the network")
    axes.axvspan(*STRANGE, color="orange", alpha=0.2, label="never seen in training")
    axes.set(xlabel="time", title="One pass, no sampling: mean and uncertainty of the next reading")
    axes.legend(loc="lower left", ncols=3, fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    torch.manual_seed(0)
    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    model = Forecaster()
    train(model)
    model.eval()

    x = recordings(1, LENGTH)
    strange = torch.arange(LENGTH)[:, None, None] >= STRANGE[0]
    x = torch.where(strange, 1.5 * torch.sign(x), x)
    with torch.no_grad():
        predicted = model(x[:-1], SILENT)
        sensor_var = model.noise()
    error = (predicted.mean - x[1:]).abs()
    print("\n                      predicted sd   of it, not sensor noise   actual error")
    for name, (start, stop) in {
        "familiar": (20, SILENT[0]),
        "sensor silent": SILENT,
        "never seen": (STRANGE[0], STRANGE[1] - 1),
    }.items():
        part = slice(start, stop)
        spread = predicted.std[part].mean().item()
        network = (predicted.var[part] - sensor_var).sqrt().mean().item()
        print(f"  {name:<18s} {spread:13.3f} {network:25.3f} {error[part].mean().item():14.3f}")
    plot(x[:, 0, 0], predicted[:, 0, 0], outputs / "sensor.png")

    print("\nHow true is the variance? The same network, 200 times by brute force:\n")
    report = spgru.audit(model, recordings(8, 20), draws=200)
    print(report)
    report.plot().savefig(outputs / "audit.png", dpi=120)

    # Of these networks the data says less than they differ by: intervals that hold need outcomes.
    kept, new = (recordings(count, SILENT[1] + 1) for count in (80, 50))
    with torch.no_grad():
        before = model(new[:-1], SILENT)
    spgru.calibrate(model, (kept[:-1], SILENT), kept[1:])
    with torch.no_grad():
        after = model(new[:-1], SILENT)
    print("\n90 % intervals on 50 new recordings:   heard   silent    width then")
    print(f"  as trained                        {coverage(before, new[1:], 0.9)}")
    print(f"  calibrated on 80 other recordings {coverage(after, new[1:], 0.9)}")
    print(f"\nFigures: {outputs / 'sensor.png'}, {outputs / 'audit.png'}")


if __name__ == "__main__":
    main()
