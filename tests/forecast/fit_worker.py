"""Run by torchrun in test_fit_together.py: fits a forecaster and saves it."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from spgru.forecast import Forecaster


def series() -> list[Any]:
    """Several lengths, with gaps that make every part of a batch count differently."""
    random, found = np.random.default_rng(0), []
    for number in range(5):
        steps = np.arange(60 + 12 * number)
        y = np.sin(2 * np.pi * (steps + number) / 12) + 0.2 * random.standard_normal(len(steps))
        y[random.random(len(steps)) < 0.25] = np.nan
        y[20:40] = np.nan if number == 3 else y[20:40]
        found.append(10.0**number * y)
    return found


def fitted() -> Forecaster:
    return Forecaster(4, 16, 6, steps=12, batch_size=6, hidden_size=5, lr=1e-2, kl_weight=20.0).fit(
        series()
    )


if __name__ == "__main__":
    fitted().save(sys.argv[1])
    print(f"fitted by process {os.environ['RANK']}")
