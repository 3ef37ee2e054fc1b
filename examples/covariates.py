"""Several series with covariates: daily sales of shops, with promotions and a weather forecast.

One network serves all shops. Promotions are planned, so they are known for certain; the weather of
the days to come is known from a forecast that says how wrong it may be, and that uncertainty is
part of the result. Some days are missing.

Run:  python examples/covariates.py        (about 15 seconds on two cores)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from spgru import Moments
from spgru.forecast import Forecaster

SHOPS, DAYS, HORIZON = 6, 400, 7
FORECAST_ERROR = np.linspace(0.5, 4.0, HORIZON)
"""Standard deviation of the weather forecast in degrees, for each day ahead."""


def shops(seed: int = 0) -> tuple[dict[str, pd.Series], dict[str, pd.DataFrame]]:
    """Sales with a week, promotions and ice cream weather; and what is known of every day."""
    random = np.random.default_rng(seed)
    days: Any = pd.date_range("2024-01-01", periods=DAYS, freq="D")
    year = 12 - 10 * np.cos(2 * np.pi * days.day_of_year.to_numpy() / 365)
    week = 1 + 0.4 * (days.day_of_week.to_numpy() >= 5)
    sales, known = {}, {}
    for number in range(SHOPS):
        degrees = year + 4 * random.standard_normal(DAYS)
        promotion = random.random(DAYS) < 0.15
        level = (10 + 5 * number) * week * (1 + 0.6 * promotion + 0.03 * (degrees - 12))
        y = np.maximum(level * (1 + 0.08 * random.standard_normal(DAYS)), 0)
        y[random.random(DAYS) < 0.03] = np.nan  # nobody wrote it down
        name = f"shop {number}"
        sales[name] = pd.Series(y, days)
        known[name] = pd.DataFrame({"promotion": promotion, "degrees": degrees}, index=days)
    return sales, known


def main() -> None:
    sales, known = shops()
    past = {name: y.iloc[:-HORIZON] for name, y in sales.items()}
    future = np.stack([y.iloc[-HORIZON:] for y in sales.values()])

    settings = {"steps": 150, "mode": "direct", "positive": True, "hidden_size": 16}
    forecaster = Forecaster(HORIZON, 28, **settings).fit(past, known)
    plain = Forecaster(HORIZON, 28, **settings).fit(past)

    # What really comes is known here; a weather forecast is off by its own error.
    random, certain, uncertain = np.random.default_rng(1), {}, {}
    for name, table in known.items():
        days = table.iloc[-HORIZON:].astype(float)
        days["degrees"] += FORECAST_ERROR * random.standard_normal(HORIZON)
        certain[name] = days
        variance = np.stack([np.zeros(HORIZON), FORECAST_ERROR**2], 1)
        uncertain[name] = Moments(torch.tensor(days.to_numpy()), torch.tensor(variance))

    without = plain.predict()
    trusted = forecaster.predict(X=certain)
    doubted = forecaster.predict(X=uncertain, parts=True)
    for name, forecast in (
        ("without covariates", without),
        ("weather forecast trusted", trusted),
        ("weather forecast doubted", doubted),
    ):
        low, high = forecast.interval(0.8)
        seen = ~np.isnan(future)
        inside = ((low <= future) & (future <= high))[seen].mean()
        error = np.abs(forecast.median - future)[seen].mean()
        print(
            f"{name:<26s} mean absolute error {error:.2f}   80 % intervals of width "
            f"{(high - low).mean():.1f} hold for {inside:.0%}"
        )
    print("\nshare of the variance, by days ahead:")
    for name, part in doubted.parts.items():
        shares = (part / doubted.var).mean(0)
        print(f"  {name:<8s} " + " ".join(f"{share:5.1%}" for share in shares))


if __name__ == "__main__":
    main()
