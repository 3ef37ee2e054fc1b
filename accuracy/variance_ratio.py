"""Closed-form state variance against brute force, for random networks and both rules.

H=64, I=32, T=40, 16 sequences of standard normal input. The standard deviation of every weight is
given relative to the range ±1/sqrt(H) that weights are initialised in.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from common import publish, save

import spgru
from spgru.reporting.markdown import table

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "GRU": (spgru.GRU, {}),
    "GRU, reset before (the paper's)": (spgru.GRU, {"reset_after": False}),
    "LSTM": (spgru.LSTM, {}),
    "RNN": (spgru.RNN, {}),
}
RELATIVE_STDS = (0.02, 0.1, 0.3)


def measure(kind: str, relative_std: float, seed: int, draws: int) -> dict[str, Any]:
    """Ratio of mean state variance to truth at every step, for both rules and redrawn weights."""
    cls, options = KINDS[kind]
    torch.manual_seed(seed)
    network = cls(32, 64, weight_std=relative_std / 64**0.5, **options)
    x = torch.randn(40, 16, 32)
    report = spgru.audit(network, x, draws=draws, seed=seed).layers["l0"]
    printed = cls(32, 64, weight_std=0.0, rule="paper", **options)
    printed.load_state_dict(network.state_dict())
    with torch.no_grad():
        printed_var = printed(x)[0].var.mean((1, 2)).double()
    low, high = report.ratio_interval
    return {
        "kind": kind,
        "relative_std": relative_std,
        "seed": seed,
        "exact": report.ratio.tolist(),
        "exact_low": low.tolist(),
        "exact_high": high.tolist(),
        "exact_over_redrawn": report.redrawn_ratio.tolist(),
        "redrawn_over_truth": report.sharing_ratio.tolist(),
        "printed": (printed_var / report.true_var).tolist(),
        "mean_error": report.mean_error.tolist(),
        "coverage_50_90_95": report.coverage.mean(1).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    results, rows = [], []
    # Small networks: a thread each is faster than several for one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        arguments.processes, context, torch.set_num_threads, (1,)
    ) as pool:  # fmt: skip
        futures = {
            (kind, std): [
                pool.submit(measure, kind, std, seed, arguments.draws)
                for seed in range(arguments.seeds)
            ]
            for kind in KINDS
            for std in RELATIVE_STDS
        }
        for (kind, relative_std), pending in futures.items():
            runs = [future.result() for future in pending]
            results += runs

            def span(key: str, digits: int, runs: list[dict[str, Any]] = runs) -> str:
                values = [value for run in runs for value in run[key]]
                return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

            rows.append(
                [
                    kind,
                    f"{relative_std}",
                    span("exact", 2),
                    span("exact_over_redrawn", 2),
                    span("redrawn_over_truth", 2),
                    span("printed", 1),
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    options = f"--draws {arguments.draws} --seeds {arguments.seeds}"
    header = [
        "network",
        "weight sd (relative)",
        "exact / truth",
        "exact / truth with weights redrawn",
        "redrawn / truth",
        "printed / truth",
    ]
    save("variance_ratio", f"python accuracy/variance_ratio.py {options}", results)
    publish("docs/mathematics.md", "variance_ratio", table(header, rows))


if __name__ == "__main__":
    main()
