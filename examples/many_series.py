"""Forecasts of many series: a Parquet dataset, one forecaster, two workers.

Four files of 500 series each are written, one network is fitted to some of the series and saved,
and two processes forecast all of them, file by file. With more files and machines the same call
serves millions: memory does not grow with their number.

Run:  python examples/many_series.py        (about 30 seconds on two cores; files in outputs/)
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from spgru.forecast import Forecaster, forecast_dataset

FILES, SERIES, DAYS, HORIZON = 4, 500, 90, 7


def sales(number: int) -> tuple[np.ndarray, np.ndarray]:
    """What is known of a series, and what follows."""
    random = np.random.default_rng(number)
    days = np.arange(DAYS + HORIZON)
    week = 1 + random.uniform(0.1, 0.5) * np.sin(2 * np.pi * (days + random.integers(7)) / 7)
    y = random.lognormal(3) * week * (1 + 0.1 * random.standard_normal(len(days)))
    return y[:DAYS], y[DAYS:]


def table(numbers: range) -> pd.DataFrame:
    """Columns item, time and value; the rows of a series are together."""
    times = pd.date_range("2025-01-01", periods=DAYS, freq="D")
    return pd.concat(
        pd.DataFrame({"item": f"shop-{n:07d}", "time": times, "value": sales(n)[0]})
        for n in numbers
    )


def main() -> None:
    folder = Path("outputs") / "many_series"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "series").mkdir(parents=True)
    for file in range(FILES):
        part = table(range(SERIES * file, SERIES * (file + 1)))
        part.to_parquet(folder / "series" / f"part-{file}.parquet", index=False)

    # A global model learns from some of the series and serves all of them.
    Forecaster(HORIZON, 28, steps=150, mode="direct", hidden_size=16).fit(
        table(range(0, FILES * SERIES, 10))
    ).save(folder / "forecaster")

    report = forecast_dataset(
        folder / "forecaster", folder / "series", folder / "forecasts", workers=2,
        quantiles=(0.1, 0.5, 0.9),
    )  # fmt: skip
    print(report)

    found = pd.read_parquet(folder / "forecasts")
    print(found.head(3).to_string())
    future = np.concatenate([sales(n)[1] for n in range(FILES * SERIES)])
    inside = (found["0.1"] <= future) & (future <= found["0.9"])
    print(f"80 % intervals hold for {inside.mean():.0%} of {len(found)} values")


if __name__ == "__main__":  # workers import this file
    main()
