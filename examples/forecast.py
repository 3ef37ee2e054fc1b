"""Forecasting with intervals: a week of hourly demand, from an array to bounds that hold.

Run:  python examples/forecast.py        (within a minute on two cores; figure in outputs/)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spgru.forecast import Forecaster

HOURS, HORIZON = 2400, 24


def demand(hours: int, seed: int = 0) -> np.ndarray:
    """Day and week, a slow drift, and noise that is larger by day."""
    time, random = np.arange(hours), np.random.default_rng(seed)
    day = np.sin(2 * np.pi * (time - 7) / 24)
    weekend = (time // 24) % 7 >= 5
    drift = np.cumsum(0.05 * random.standard_normal(hours))
    return 50 + (10 - 5 * weekend) * day + drift + (1.5 + day) * random.standard_normal(hours)


def main() -> None:
    y = demand(HOURS)
    known = HOURS - 14 * HORIZON  # two weeks are kept back

    forecaster = Forecaster(HORIZON, season=24, steps=200, mode="direct").fit(y[:known])
    print(forecaster.report)

    forecasts, covered, errors, naive = [], [], [], []
    for start in range(known, HOURS, HORIZON):
        forecast = forecaster.predict()
        low, high = forecast.interval(0.8)
        future = y[start : start + HORIZON]
        covered.append((low <= future) & (future <= high))
        errors.append(np.abs(forecast.median - future))
        naive.append(np.abs(y[start - 24 : start] - future))
        forecasts.append(forecast)
        forecaster.update(future)  # a day later: no fitting

    print(f"\n80 % intervals of {len(covered)} days held {np.mean(covered):.0%} of the hours")
    print(f"mean absolute error {np.mean(errors):.2f}, that of the day before {np.mean(naive):.2f}")
    last = forecasts[-1]
    share = {name: np.mean(part / last.var) for name, part in last.parts.items()}
    print("variance from " + ", ".join(f"{name} {value:.1%}" for name, value in share.items()))

    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    last.plot().savefig(outputs / "forecast.png", dpi=120)
    print(f"Figure: {outputs / 'forecast.png'}")


if __name__ == "__main__":
    main()
