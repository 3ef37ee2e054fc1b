"""What linear response costs: 24 forecasts of 32 windows by a GRU that reads its own forecast back.

    python benchmarks/respond.py [--write] [--threads N]

Ratios of one run, each of the least processor time of samples that take turns; `--write` keeps them
in benchmarks/results/respond/. A plain closed pass is the module's forward under `no_grad`; fifty
drawn networks are fifty passes within `sampling`. A gain of 2 stands for any other than 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.nn.contexts import sampling
from spgru.runtime.provenance import provenance
from spgru.runtime.storage import write_whole

RESULTS = Path(__file__).parent / "results" / "respond"
HIDDEN, WINDOWS, HORIZON, DRAWS = 16, 32, 24, 50


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, HIDDEN, batch_first=True)
        self.head = spgru.Linear(HIDDEN, 1)
        self.log_noise = nn.Parameter(torch.tensor(-3.0))

    def read(self, hidden: Moments) -> Moments:
        y = self.head(hidden)
        return Moments(y.mean, y.var + self.log_noise.exp())

    def forward(self, x: Tensor) -> Moments:
        output, state = self.gru(x)
        forecasts = [self.read(output[:, -1])]
        for _ in range(HORIZON - 1):
            hidden, state = self.gru.step(forecasts[-1], state)
            forecasts.append(self.read(hidden))
        return spgru.cat(forecasts, 1)


def least_times(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Processor seconds, which others on the machine disturb less than the clock's."""
    found = {name: float("inf") for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - start)
    return found


def measure(context: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = Forecaster(), torch.randn(WINDOWS, context, 1)
    generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def draw() -> None:
        for _ in range(DRAWS):
            with sampling(model, generator):
                model(x)

    works = {
        "closed": torch.no_grad()(lambda: model(x)),
        "respond": lambda: spgru.respond(model, x),
        "with gain": lambda: spgru.respond(model, x, gain=2.0),
        "drawn": draw,
    }
    times = least_times(works, rounds)
    return {
        "closed pass, ms": 1e3 * times["closed"],
        "respond / closed pass": times["respond"] / times["closed"],
        f"{DRAWS} drawn networks / respond": times["drawn"] / times["respond"],
        "respond with a gain / closed pass": times["with gain"] / times["closed"],
        f"{DRAWS} drawn networks / respond with a gain": times["drawn"] / times["with gain"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {}
    for context in (24, 36, 48, 96):  # 36 is that of accuracy/forecasts.py
        for name, value in measure(context, options.rounds).items():
            found[f"context {context}, {name}"] = round(value, 3)
            print(f"context {context}, {name:45}{value:8.2f}", flush=True)
    if options.write:
        document = {**provenance(torch.device("cpu")), "results": found}
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / "respond.json", (json.dumps(document, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
