"""Derive the variances of the mixture in `spgru.objectives`: softplus as smoothed ramps.

softplus(x) = max(x, 0) + log(1 + exp(-|x|)), and the second part is approximated by

    sum_k w_k tail(x, c_k),    tail(x, c) = c N(x; 0, c) - |x| Q(|x| / sqrt(c))

with weights that sum to 1, least squares for the variances c_k, and variances in geometric
progression. The two ends of the progression minimise the largest error; they are found by
Nelder-Mead from several starts.

Run:  python tools/fit_softplus_mixture.py            (a few seconds)
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr

X = np.linspace(0, 40, 801)  # both sides are even in x, and below 1e-17 beyond


def largest_error(variances: np.ndarray) -> float:
    """Of the mixture with these variances and the best weights."""
    x = X[:, None]
    densities = np.exp(-(x**2) / (2 * variances)) / np.sqrt(2 * np.pi * variances)
    tails = variances * densities - x * ndtr(-x / np.sqrt(variances))
    last, wanted = tails[:, -1], np.log1p(np.exp(-X))
    weights, *_ = np.linalg.lstsq(tails[:, :-1] - last[:, None], wanted - last, rcond=None)
    found = tails @ np.append(weights, 1 - weights.sum())
    return float(np.abs(found - wanted).max())


def fit(terms: int) -> tuple[float, np.ndarray]:
    """The smallest largest error, and the ends of the progression that reach it."""

    def objective(logs: np.ndarray) -> float:
        low, high = np.exp(logs)
        return largest_error(np.geomspace(low, high, terms))

    starts = [(low, high) for low in (0.5, 0.8, 1.2) for high in (8.0, 12.0, 20.0)]
    options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 2000}
    fits = [
        minimize(objective, np.log(start), method="Nelder-Mead", options=options)
        for start in starts
    ]
    best = min(fits, key=lambda found: found.fun)
    return float(best.fun), np.exp(best.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terms", type=int, default=5)
    error, (low, high) = fit(parser.parse_args().terms)
    print(f"variances from {low:.6g} to {high:.6g}, largest error {error:.2g}")


if __name__ == "__main__":
    main()
