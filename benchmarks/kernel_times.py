"""Where the time of a layer on a GPU goes: its kernels, the rest being the host's.

For every shape that has a bar, forward without gradients and forward with backward: milliseconds on
the clock, in all kernels, and in the three longest. With --variants, the persistent kernel with
other numbers of warps and stages, and each step launched by itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import spgru
from spgru.bench.shapes import BARS
from spgru.recurrent.kernels.triton import planning
from spgru.runtime.provenance import provenance
from spgru.runtime.storage import write_whole

# Warps, stages, and rows of a block where they are not to be chosen.
VARIANTS = {
    "8 warps, 4 stages": (8, 4, None),
    "4 warps, 3 stages": (4, 3, None),
    "32 rows": (None, 3, 32),
    "step by step": None,
}


def milliseconds(work: Callable[[], Any], calls: int = 50) -> float:
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e3


def kernels(work: Callable[[], Any], calls: int = 10) -> list[tuple[str, float]]:
    """Name and milliseconds of every kernel in one call, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
    rows = [(row.key, row.device_time_total / calls / 1e3) for row in found.key_averages()]
    return sorted(rows, key=lambda row: -row[1])


def works(shape: Any, dtype: torch.dtype, cell: str) -> dict[str, Callable[[], Any]]:
    options = {"device": "cuda", "dtype": dtype, "backend": "triton"}
    x = torch.randn(shape.steps, shape.batch, shape.inputs, device="cuda", dtype=dtype)
    pull = torch.randn(shape.steps, shape.batch, shape.hidden, device="cuda", dtype=dtype)
    make = getattr(spgru, cell)
    frozen = make(shape.inputs, shape.hidden, **options).requires_grad_(False)
    learning = make(shape.inputs, shape.hidden, **options)

    def forward() -> Any:
        with torch.no_grad():
            return frozen(x)

    def training() -> None:
        learning.zero_grad()
        output, _ = learning(x)
        torch.autograd.backward([output.mean, output.var], [pull, pull])

    return {"forward": forward, "training": training}


def always(warps: int, *_: Any) -> int:
    return warps


def divide(
    block_rows: int, rows: int, size: int, gates: int, device: torch.device
) -> planning.Plan | None:
    programs = -(-rows // block_rows) * (size // planning.UNITS)
    fits = programs <= planning.room(device)[0]
    return planning.Plan(programs, block_rows) if fits else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=("GRU", "LSTM", "RNN"), default="GRU")
    parser.add_argument("--variants", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and there is none")
    torch.set_float32_matmul_precision("high")
    # Asked before anything is measured: a commit made meanwhile is not the one that ran.
    started = provenance(torch.device("cuda"))
    cases = dict.fromkeys((bar.shape, bar.dtype) for bar in BARS if bar.device == "cuda")
    warps, stages, plan = planning.warps, planning.STAGES, planning.make_plan
    variants: dict[str, Any] = {"as it is": (None, stages, None)}
    if arguments.variants:
        variants |= VARIANTS
    rows = []
    for shape, dtype in cases:
        for variant, constants in variants.items():
            if constants is None:
                planning.make_plan = lambda *_: None
            else:
                count, planning.STAGES, block_rows = constants
                if count is not None:
                    planning.warps = partial(always, count)
                if block_rows is not None:
                    planning.make_plan = partial(divide, block_rows)
            try:
                for mode, work in works(shape, getattr(torch, dtype), arguments.cell).items():
                    clock, parts = milliseconds(work), kernels(work)
                    row = {
                        "shape": str(shape), "dtype": dtype, "mode": mode, "variant": variant,
                        "clock": round(clock, 4), "kernels": round(sum(ms for _, ms in parts), 4),
                        "longest": {name[:40]: round(ms, 4) for name, ms in parts[:3]},
                    }  # fmt: skip
                    rows.append(row)
                    print(*row.values(), flush=True)
            except Exception as error:  # a variant may not fit the chip
                print(shape, dtype, variant, f"{type(error).__name__}: {error}"[:150], flush=True)
            finally:
                planning.make_plan = plan
                planning.warps, planning.STAGES = warps, stages
    options = f" --cell {arguments.cell}" + " --variants" * arguments.variants
    document = {"command": f"python benchmarks/kernel_times.py{options}", **started, "rows": rows}
    path = Path(__file__).parent / "results" / f"kernel_times_{arguments.cell.lower()}.json"
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
