"""A sensor stream with an alarm: one reading at a time, no window, no sampling.

A small GRU learns what a healthy machine's sensor says next. `spgru.Stream` then follows new
recordings reading by reading, and knows at every step how far the next one may lie from what it
expects: further after the sensor was silent, when the network had to go on by itself. Recordings
kept from training set the limit of the alarm, so that it is seldom false.

Run:  python examples/alarm.py          (about 15 seconds on two cores)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import spgru
from spgru import Moments

NOISE, LENGTH, FAULT, SILENT = 0.1, 100, 65, range(30, 55)
NEVER = range(0)
FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "stuck": lambda x, t: x[FAULT - 1].expand_as(x),
    "twice as fast": lambda x, t: torch.sin(math.pi * t / 5) + NOISE * torch.randn_like(x),
    "drift of 0.04 a reading": lambda x, t: x + 0.04 * t,
    "noise three times as large": lambda x, t: x + math.sqrt(8) * NOISE * torch.randn_like(x),
}
"""What becomes of readings (T, B, 1), by the number of readings since the fault."""
SHARE = 1e-3
"""Of healthy readings that may raise an alarm."""


class Expectation(nn.Module):
    """The next reading, with what the weights do not know and the sensor's own noise."""

    def __init__(self, hidden_size: int = 16) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, hidden_size)
        self.head = spgru.nn.GaussianHead(hidden_size, 1)

    def forward(self, x: Tensor) -> Moments:
        """(T, B, 1) -> (T, B, 1), for training"""
        return self.head(self.gru(x)[0])

    def step(self, x_t: Tensor | None, state: Any = None) -> tuple[Moments, Any]:
        """One reading, None where there is none: then what was expected is read instead.

        What is read back is part of the state, so that a stream knows how it depends on it.
        """
        hidden, expected = (None, None) if state is None else state
        heard = expected if x_t is None else x_t
        if heard is None:
            raise ValueError("x_t is None at the first step; a stream begins with a reading")
        output, hidden = self.gru.step(heard, hidden)
        value, log_var = self.head.parts(output)
        # Read back without the sensor's noise: a reading that was not taken has none.
        return spgru.nn.with_noise(value, log_var), (hidden, value)


def recordings(count: int, length: int = LENGTH) -> Tensor:
    """(length, count, 1) of a healthy machine: an oscillation of random phase, and noise."""
    phase = 2 * math.pi * torch.rand(1, count, 1)
    steps = torch.arange(length)[:, None, None]
    return torch.sin(2 * math.pi * steps / 20 + phase) + NOISE * torch.randn(length, count, 1)


def train(model: Expectation, steps: int = 120) -> None:
    x = recordings(32, 50)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        loss = spgru.loss(model(x[:-1]), x[1:], model, data_size=x[1:].numel())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


def strangeness(stream: spgru.Stream, x: Tensor, silent: range = NEVER) -> tuple[Tensor, Tensor]:
    """How strange every reading was, |error| in standard deviations, and those deviations.

    (T, B, 1) -> (T - 1, B) each; NaN while silent. A service would call `stream.step` whenever a
    reading comes, and keep `state` until the next.
    """
    state, found, widths = None, [], []
    for t in range(len(x) - 1):
        expected, state = stream.step(None if t in silent else x[t], state)
        z = (x[t + 1] - expected.mean).abs() / expected.std
        found.append(torch.full_like(z, math.nan) if t + 1 in silent else z)
        widths.append(expected.std)
    return torch.stack(found).squeeze(-1), torch.stack(widths).squeeze(-1)


def alarms(z: Tensor) -> Tensor:
    """What the alarm looks at: the smaller one of two readings in a row, so that one outlier is
    none. (T, B), from the second on; a missing one is skipped."""
    return torch.fmin(z[1:], z[:-1])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    start = time.perf_counter()
    model = Expectation()
    train(model)
    stream = spgru.Stream(model.eval(), directions=16)
    stream.learn(recordings(8, 40), 8)
    print(f"trained in {time.perf_counter() - start:.0f} s")

    # The first readings are left out: the network has to find the phase.
    kept = alarms(strangeness(stream, recordings(100))[0])[10:]
    limit = kept.flatten().sort().values[math.ceil(len(kept.flatten()) * (1 - SHARE))].item()
    print(f"alarm when two readings in a row are more than {limit:.2f} deviations off\n")

    print(f"50 new recordings each, faulty from reading {FAULT} on:")
    t = torch.arange(LENGTH)[:, None, None] - FAULT
    x = {name: recordings(50) for name in ("healthy", *FAULTS)}
    for name, change in FAULTS.items():
        x[name] = torch.where(t >= 0, change(x[name], t), x[name])
    z, _ = strangeness(stream, torch.cat([*x.values()], 1))
    for name, part in zip(x, z.chunk(len(x), 1), strict=True):
        report(name, alarms(part) > limit)
    z, widths = strangeness(stream, recordings(50), SILENT)
    report("healthy, silent for a while", alarms(z) > limit)

    errors = z * widths
    for name, which in (("heard", slice(10, SILENT[0] - 1)), ("after the silence", SILENT[-1])):
        width, error = widths[which].mean(), errors[which].square().mean().sqrt()
        print(f"\nstandard deviation, {name}: {width:.2f}; of the errors: {error:.2f}", end="")
    print()


def report(name: str, rings: Tensor) -> None:
    false, after = rings[10 : FAULT - 2].double().mean(), rings[FAULT - 2 :]
    found = after.any(0)
    text = f"  {name:<28s} false {false:.2%}   found in {found.double().mean():4.0%}"
    if found.any():
        text += f", after {after.int().argmax(0)[found].double().mean():.0f} readings"
    print(text)


if __name__ == "__main__":
    main()
