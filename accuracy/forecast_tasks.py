"""`Forecaster` on tasks with published scores: M4 hourly, exchange_rate, ETTh.

    python accuracy/forecast_tasks.py --judge SCORE.PY [--task etth] [--series 40] [--steps 1000]

SCORE.PY reads the data and judges: it has `tasks()`, which gives histories, futures and season by
name, `score(histories, futures, quantiles, season)`, which gives MASE, WQL and the coverage of 80 %
intervals, `seasonal_naive` and `QUANTILES`. With all tasks and series, forecasts are written for
it, too: `python SCORE.PY forecasts.npz`.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

from spgru.forecast import Forecaster


def load_judge(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("judge", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", type=Path, required=True, help="score.py")
    parser.add_argument("--task", help="one of them; all by default")
    parser.add_argument("--series", type=int, help="as many of a task, spread over it")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--mode", default="direct", choices=("auto", "direct", "fed-back"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("outputs/forecasts.npz"))
    arguments = parser.parse_args()
    judge, found = load_judge(arguments.judge), {}
    for name, (histories, futures, season) in judge.tasks().items():
        if arguments.task not in (None, name):
            continue
        every = max(1, len(histories) // arguments.series) if arguments.series else 1
        histories, futures = histories[::every], futures[::every]
        horizon = len(futures[0])
        start = time.perf_counter()
        forecaster = Forecaster(
            horizon, season=season, steps=arguments.steps, mode=arguments.mode, seed=arguments.seed
        ).fit(histories)
        fitted = time.perf_counter()
        forecast = forecaster.predict(parts=False)
        predicted = time.perf_counter()
        found[name] = np.moveaxis(forecast.quantile(judge.QUANTILES), 0, 1)
        naive = [judge.seasonal_naive(history, horizon, season) for history in histories]
        print(
            f"{name}: {len(histories)} series, context {forecaster.context}, {forecaster.mode}, "
            f"fit {fitted - start:.0f} s, forecast {predicted - fitted:.2f} s",
            flush=True,
        )
        for who, quantiles in (("seasonal naive", naive), ("Forecaster", found[name])):
            mase, wql, covered = judge.score(histories, futures, quantiles, season)
            print(
                f"  {who:15s} MASE {mase:.4f}  WQL {wql:.5f}  80 % covers {covered:.3f}", flush=True
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(arguments.out, **found)


if __name__ == "__main__":
    main()
