"""`Forecaster` on tasks with published scores: M4 hourly, exchange_rate, ETTh.

    python accuracy/forecast_tasks.py --judge SCORE.PY [--task etth] [--series 40] [--steps 1000]
    python accuracy/forecast_tasks.py --judge SCORE.PY --data DIR --device cuda \
        --hidden-size 128 --batch-size 256 --steps 5000

SCORE.PY reads the data and judges: it has `tasks()`, which gives histories, futures and season by
name, `score(histories, futures, quantiles, season)`, which gives MASE, WQL and the coverage of 80 %
intervals, `seasonal_naive`, `QUANTILES` and `DATA`, the folder of the files, which --data replaces.
With all tasks and series, forecasts are written for it, too: `python SCORE.PY forecasts.npz`.
Needs torch, numpy and safetensors alone.

--backtest N forecasts the N windows before the last one instead, which the training has not seen
then either: by these settings are chosen, never by the last window. It also tells how much scores
differ between windows: those of a single one say little where series move together.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import save

from spgru.forecast import Forecaster

_COMMAND = "python accuracy/forecast_tasks.py --judge SCORE.PY"
_PLACES = ("judge", "data", "out", "save")


def load_judge(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("judge", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def windows(histories: list[Any], futures: list[Any], backtest: int) -> tuple[list[Any], ...]:
    """Series to train on, histories to forecast from and what follows them.

    Args:
        backtest: windows before the last one, which is then out of sight; 0 for the last one
    """
    if not backtest:
        return histories, histories, futures
    horizon, known, outcomes = len(futures[0]), [], []
    for values in histories:
        for end in range(len(values) - backtest * horizon, len(values), horizon):
            known.append(values[:end])
            outcomes.append(values[end : end + horizon])
    return [values[: -backtest * horizon] for values in histories], known, outcomes


def by_window(
    judge: Any, known: list[Any], outcomes: list[Any], quantiles: Any, season: int, count: int
) -> tuple[list[float], list[float]]:
    """MASE and share inside the 80 % intervals, of all series at each of `count` windows."""
    scores = [
        judge.score(known[k::count], outcomes[k::count], quantiles[k::count], season)
        for k in range(count)
    ]
    return [round(float(score[0]), 4) for score in scores], [round(score[2], 3) for score in scores]


def measure(
    judge: Any, name: str, task: Any, arguments: argparse.Namespace, seed: int
) -> tuple[list[dict[str, Any]], Any]:
    """Scores of seasonal naive and of a `Forecaster`, and the quantiles of the latter."""
    histories, futures, season = task
    every = max(1, len(histories) // arguments.series) if arguments.series else 1
    histories, futures = histories[::every], futures[::every]
    horizon, backtest = len(futures[0]), arguments.backtest
    train, known, outcomes = windows(histories, futures, backtest)
    start = time.perf_counter()
    forecaster = Forecaster(
        horizon,
        arguments.context,
        season,
        hidden_size=arguments.hidden_size,
        num_layers=arguments.layers,
        mode=arguments.mode,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        lr=arguments.lr,
        seed=seed,
        device=arguments.device,
        **({} if arguments.kl_weight is None else {"kl_weight": arguments.kl_weight}),
    ).fit(train)
    fitted = time.perf_counter()
    forecast = forecaster.predict(known, parts=False)
    predicted = time.perf_counter()
    quantiles = np.moveaxis(forecast.quantile(judge.QUANTILES), 0, 1)
    record = forecaster.records[forecaster.mode]
    print(
        f"{name}: {len(histories)} series, context {forecaster.context}, {forecaster.mode}, "
        f"seed {seed}, fit {fitted - start:.0f} s, forecast {predicted - fitted:.2f} s, best of "
        f"{record.steps[-1]} steps {record.best_step}, validation {record.best_score:.4f}",
        flush=True,
    )
    naive = [judge.seasonal_naive(history, horizon, season) for history in known]
    rows: list[dict[str, Any]] = []
    for who, given in (("seasonal naive", naive), ("Forecaster", quantiles)):
        mase, wql, covered = judge.score(known, outcomes, given, season)
        rows.append({"task": name, "method": who, "mase": mase, "wql": wql, "coverage": covered})
        if backtest:
            single = by_window(judge, known, outcomes, given, season, backtest)
            rows[-1] |= {"mase_by_window": single[0], "coverage_by_window": single[1]}
        print(f"  {who:15s} MASE {mase:.4f}  WQL {wql:.5f}  80 % covers {covered:.3f}", flush=True)
    rows[-1] |= {
        "seed": seed, "context": forecaster.context, "best_step": record.best_step,
        "fit_s": fitted - start, "forecast_s": predicted - fitted,
    }  # fmt: skip
    if backtest:
        shares = rows[-1]["coverage_by_window"]
        better = np.subtract(rows[0]["mase_by_window"], rows[-1]["mase_by_window"]) > 0
        print(
            f"  single windows are covered {min(shares):.2f} to {max(shares):.2f}, standard "
            f"deviation {np.std(shares):.2f}; MASE is better than naive's in {better.sum()} of "
            f"{backtest}",
            flush=True,
        )
    return rows, quantiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", type=Path, required=True, help="score.py")
    parser.add_argument("--task", help="one of them; all by default")
    parser.add_argument("--series", type=int, help="as many of a task, spread over it")
    parser.add_argument("--data", type=Path, help="folder of the files; default: the judge's")
    parser.add_argument("--backtest", type=int, default=0, metavar="N")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--context", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--kl-weight", type=float, help="default: the Forecaster's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="direct", choices=("auto", "direct", "fed-back"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--save", metavar="NAME", help="keep scores in accuracy/results/NAME.json")
    parser.add_argument("--out", type=Path, default=Path("outputs/forecasts.npz"))
    arguments = parser.parse_args()
    judge, found = load_judge(arguments.judge), {}
    rows: list[dict[str, Any]] = []
    if arguments.data is not None:
        judge.DATA = arguments.data
    for name, task in judge.tasks().items():
        if arguments.task not in (None, name):
            continue
        for seed in arguments.seeds:
            measured, quantiles = measure(judge, name, task, arguments, seed)
            rows += measured if seed == arguments.seeds[0] else measured[1:]
            found.setdefault(name, quantiles)
    if arguments.save:
        # Where judge and data lie is of no interest to others.
        options = {k: v for k, v in vars(arguments).items() if v is not None and k not in _PLACES}
        options["seeds"] = " ".join(map(str, arguments.seeds))
        words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
        save(arguments.save, " ".join([_COMMAND, *words]), rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(arguments.out, **found)


if __name__ == "__main__":
    main()
