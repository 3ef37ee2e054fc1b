"""A long stream, one step at a time: memory must not grow, moments must stay finite."""

from __future__ import annotations

import argparse
import resource
import time

import torch
from common import save

import spgru


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gru, state = spgru.GRU(2, 4), None
    x = torch.randn(4096, 1, 2)
    memory, start = [], time.perf_counter()
    with torch.no_grad():
        for t in range(steps):
            output, state = gru.step(x[t % len(x)], state)
            if t % (steps // 10) == steps // 10 - 1:
                memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
                assert torch.isfinite(output.mean).all()
                assert (output.var > 0).all()
                print(f"{t + 1:>9} steps, peak memory {memory[-1]} kB", flush=True)
    result = {
        "steps": steps,
        "peak_memory_kb": memory,
        "growth_kb_from_first_tenth": memory[-1] - memory[0],
        "microseconds_per_step": (time.perf_counter() - start) / steps * 1e6,
    }
    print(result)
    save("streaming", f"python accuracy/streaming.py --steps {steps}", result)


if __name__ == "__main__":
    main()
