"""What a call costs the host: ours and torch's, called without a graph, and where ours spends it.

    python benchmarks/host_times.py [--profile] [--device cuda]

Milliseconds, the median of samples that take turns. `learning` computes variances of the weights
at every call, `frozen` once (`spgru.frozen`).
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

import spgru
from spgru.bench.timing import Effort, take_turns

SHAPES = ((30, 20, 4096, 1024), (128, 20, 4096, 1024), (512, 20, 1024, 1024), (32, 20, 128, 128))
SMALL = ((32, 20, 128, 128), (1, 20, 128, 128), (32, 50, 32, 64))


def forward(layer: Any, x: torch.Tensor) -> Callable[[], Any]:
    @torch.no_grad()
    def work() -> Any:
        return layer(x)

    return work


def training(layer: Any, x: torch.Tensor) -> Callable[[], None]:
    parameters = list(layer.parameters())
    ones = torch.ones(*x.shape[:2], layer.hidden_size, device=x.device)

    def work() -> None:
        for parameter in parameters:
            parameter.grad = None
        output = layer(x)[0]
        if isinstance(output, torch.Tensor):
            output.backward(ones)
        else:
            torch.autograd.backward((output.mean, output.var), (ones, ones))

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true", help="functions of the smallest shape")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    print(f"{'B,T,I,H':22}{'nn fwd':>9}{'frozen':>9}{'learning':>9}{'nn train':>9}{'train':>9}")
    for batch, steps, inputs, hidden in SHAPES if device.type == "cuda" else SMALL:
        x = torch.randn(steps, batch, inputs, device=device)
        plain = torch.nn.GRU(inputs, hidden, device=device)
        ours = spgru.GRU(inputs, hidden, device=device)
        still = spgru.GRU(inputs, hidden, device=device)
        works = {
            "nn fwd": forward(plain, x),
            "frozen": forward(still, x),
            "learning": forward(ours, x),
            "nn train": training(plain, x),
            "train": training(ours, x),
        }
        with ExitStack() as stack:
            stack.enter_context(spgru.frozen(still))
            for work in [*works.values()] * 12:  # until calls that repeat are recorded as graphs
                work()
            times = take_turns(works, device, Effort(rounds=15, seconds=1.0), lambda: None)
            row = [1e3 * statistics.median(times[name]) for name in works]
            label = f"{batch},{steps},{inputs},{hidden}"
            print(f"{label:22}" + "".join(f"{value:9.3f}" for value in row), flush=True)
            if options.profile and (batch, hidden) == (32, 128):
                for name in ("frozen", "train"):
                    profile(works[name], name)


def profile(work: Callable[[], Any], name: str, calls: int = 200) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(calls):
        work()
    profiler.disable()
    print(f"-- {name}, {calls} calls")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
