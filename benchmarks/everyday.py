"""Everyday calls on a CPU: packed sequences, 16 bits, the paper's GRU, streams, torch.compile.

    python benchmarks/everyday.py [--write]

Ratios of one run, each of the least time of samples that take turns; `--write` keeps them in
benchmarks/results/everyday/. torch.compile is timed in processes of their own with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru.bench.timing import Effort, take_turns
from spgru.runtime.provenance import provenance
from spgru.runtime.storage import write_whole

RESULTS = Path(__file__).parent / "results" / "everyday"
EFFORT = Effort(rounds=60, seconds=4.0)
COMPILE = """
import time, torch, spgru
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = {gru}, {head}
    def forward(self, x):
        out = self.head(self.gru(x)[0])
        return out if isinstance(out, torch.Tensor) else (out.mean, out.var)

def timed(function, x):
    start = time.perf_counter()
    with torch.no_grad():
        function(x)
    return time.perf_counter() - start

model = Model()
model(torch.randn(6, 4, 3))
# The first compilation of a process finds out about compiler and processor, whatever it compiles.
times = []
if {warm}:
    times.append(timed(torch.compile(lambda x: torch.exp(x + 1) * 2), torch.randn(64, 64)))
compiled = torch.compile(model, dynamic={dynamic})
times += [timed(compiled, torch.randn(steps, 4, 3)) for steps in (6, 9, 17)]
print(*times)
"""


def forward(layer: Any, *inputs: Any) -> Callable[[], Any]:
    @torch.no_grad()
    def work() -> Any:
        return layer(*inputs)

    return work


def training(layer: Any, x: Any) -> Callable[[], None]:
    def work() -> None:
        layer.zero_grad(set_to_none=True)
        output = layer(x)[0]
        parts = [output] if not isinstance(output, spgru.Moments) else [*output]
        sum(_data(part).sum() for part in parts).backward()

    return work


def _data(part: Any) -> Tensor:
    return part if isinstance(part, Tensor) else part.data


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
    works = {"ours": ours, "theirs": theirs}
    for work in works.values():
        work()
    times = take_turns(works, torch.device("cpu"), EFFORT, lambda: None)
    return min(times["ours"]) / min(times["theirs"])


def packed() -> dict[str, float]:
    x, lengths = torch.randn(50, 32, 32), torch.randint(5, 51, (32,))
    lengths[0] = 50
    sequences = pack_padded_sequence(x, lengths, enforce_sorted=False)
    ours, plain = spgru.GRU(32, 64), nn.GRU(32, 64)
    return {
        "packed 32,50,32,64 / nn.GRU, forward": ratio(
            forward(ours, sequences), forward(plain, sequences)
        ),
        "packed 32,50,32,64 / nn.GRU, training": ratio(
            training(ours, sequences), training(plain, sequences)
        ),
    }


def variants() -> dict[str, float]:
    x = torch.randn(50, 32, 32)
    ours = spgru.GRU(32, 64)
    low, low_x = spgru.GRU(32, 64, dtype=torch.bfloat16), x.bfloat16()
    before = spgru.GRU(32, 64, reset_after=False)
    return {
        "bfloat16 / float32, forward": ratio(forward(low, low_x), forward(ours, x)),
        "bfloat16 / float32, training": ratio(training(low, low_x), training(ours, x)),
        "reset_after=False / True, forward": ratio(forward(before, x), forward(ours, x)),
        "reset_after=False / True, training": ratio(training(before, x), training(ours, x)),
    }


def stream() -> dict[str, float]:
    gru, cell, x = spgru.GRU(64, 64), nn.GRUCell(64, 64), torch.randn(1, 64)
    with torch.no_grad():
        _, state = gru.step(x)
    h = torch.zeros(1, 64)

    @torch.no_grad()
    def step() -> Any:
        return gru.step(x, state)

    plain = forward(cell, x, h)
    found = {"a step, 1 row, H=64 / nn.GRUCell": ratio(step, plain)}
    with spgru.frozen(gru):
        found["the same within spgru.frozen"] = ratio(step, plain)
    return found


def compiling() -> dict[str, float]:
    """Seconds of the first call, and of calls with other lengths."""
    found = {}
    ours = "spgru.GRU(3, 5)", "spgru.Linear(5, 1)"
    for name, (gru, head), dynamic, warm in (
        ("GRU + Linear", ours, None, False),
        ("GRU + Linear after another", ours, None, True),
        ("GRU + Linear after another, dynamic=True", ours, True, True),
        ("nn.GRU + nn.Linear after another", ("nn.GRU(3, 5)", "nn.Linear(5, 1)"), None, True),
    ):
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    COMPILE.format(gru=gru, head=head, dynamic=dynamic, warm=int(warm)),
                ],
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
        seconds = [float(part) for part in done.stdout.split()]
        if warm:
            found["torch.compile of exp(x + 1) * 2, the first of its process, s"] = seconds.pop(0)
        for label, value in zip(("first call", "2nd length", "3rd length"), seconds, strict=True):
            found[f"torch.compile of {name}, {label}, s"] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for part in (packed, variants, stream, compiling):
        for name, value in part().items():
            found[name] = round(value, 3)
            print(f"{name:62}{value:8.2f}", flush=True)
    if options.write:
        document = {**provenance(torch.device("cpu")), "results": found}
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=2) + "\n"
        write_whole(RESULTS / "everyday.json", text.encode())


if __name__ == "__main__":
    main()
