"""Is the variance true? Measure it, and put back what the closed form ignores.

A GRU is trained to predict the next value of noisy oscillations, and forecasts twelve by reading
its own predictions back, where the plain closed form loses most of the variance.

Run:  python examples/variance.py          (about half a minute on one core)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import spgru
from spgru import Moments

PAST, AHEAD, NOISE = 24, 12, 0.1
STEPS, BATCH = 400, 64


class Forecaster(nn.Module):
    """Any module of layers of `spgru`, with a loop of its own."""

    def __init__(self, hidden_size: int = 16) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, hidden_size, batch_first=True)
        self.head = spgru.nn.GaussianHead(hidden_size, 1)

    def next_values(self, x: Tensor) -> Moments:
        """(B, T, 1), after every step the value that comes next; for training"""
        return self.head(self.gru(x)[0])

    def forward(self, x: Tensor) -> Moments:
        """(B, T, 1) -> (B, AHEAD, 1)"""
        output, state = self.gru(x)
        forecasts = [self.head(output[:, -1:])]
        while len(forecasts) < AHEAD:
            output, state = self.gru(forecasts[-1], state)
            forecasts.append(self.head(output))
        return spgru.cat(forecasts, 1)


def series(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """What was seen (B, PAST, 1) and what came then (B, AHEAD, 1), of noisy oscillations."""
    generator = torch.Generator().manual_seed(seed)
    phase, period = (torch.rand(count, 1, generator=generator) for _ in range(2))
    times = torch.arange(PAST + AHEAD)
    values = torch.sin(2 * math.pi * (times / (10 + 6 * period) + phase))
    values = values + NOISE * torch.randn(values.shape, generator=generator)
    return values[:, :PAST, None], values[:, PAST:, None]


def train(model: Forecaster, steps: int = STEPS) -> None:
    x, y = series(1000, seed=1)
    values = torch.cat([x, y], 1)
    optimiser = torch.optim.AdamW(spgru.parameter_groups(model), lr=1e-2, weight_decay=1e-4)
    for step in range(steps):
        batch = values[torch.randint(len(values), (BATCH,))]
        found, target = model.next_values(batch[:, :-1]), batch[:, 1:]
        size = values[:, 1:].numel()
        loss = spgru.loss(found, target, model, data_size=size, step=step, warmup=steps // 4)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Forecaster()
    train(model)
    model.eval()
    (kept, came), (new, then) = series(64, seed=2), series(200, seed=3)

    def share(y: Moments) -> str:
        """Of what came, within intervals of 90 %."""
        low, high = y.interval(0.9)
        return f"90 % intervals hold {((low <= then) & (then <= high)).double().mean():.0%}"

    def ratios(y: Moments) -> str:
        values = y.var[:16].mean((0, 2)) / truth
        return f"variance over truth {values[0]:.2f}, {values[5]:.2f}, {values[-1]:.2f}"

    def tell(name: str, y: Moments, form: str = "") -> None:
        print(f"{name:14s} {ratios(y)}; {share(y)}{form}")

    with torch.no_grad():
        truth = spgru.audit(model, new[:16], draws=400, redraw=False).output.true_var
        print(f"{'':14s} 1, 6 and 12 steps ahead, over 400 drawn networks; on what came")
        tell("closed form", model(new))

    followed, parts = spgru.respond(model, new, sources=True)
    tell("respond", followed)
    gain = spgru.consistent_gain(model, kept[:16])
    tell("at its gain", spgru.respond(model, new, gain=gain), f"  ({gain:.2f})")
    for outcomes, name in (((), "calibrate"), ((came,), "with outcomes")):
        report = spgru.calibrate(model, kept, *outcomes)
        with torch.no_grad():
            tell(name, model(new), f"  ({report.chosen})")

    print("where the variance twelve steps ahead comes from:")
    last = {name: part[:, -1].mean().item() for name, part in parts.items()}
    for name, part in sorted(last.items(), key=lambda item: -item[1])[:4]:
        print(f"  {name:22s} {part / sum(last.values()):.0%}")


if __name__ == "__main__":
    main()
