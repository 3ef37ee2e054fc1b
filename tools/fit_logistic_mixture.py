"""Derive the constants of `spgru.functional.activation`: the logistic-normal step as Gaussians.

For X ~ N(m, 1), let a(m) = E sigmoid(X).  We look for K widths t_k and two sets of weights with

    step(m)  = sum_k w_k Phi(m / sqrt(t_k))     close to  a(m)
    slope(m) = sum_k d_k N(m; 0, t_k)           close to  a'(m) = E sigmoid'(X)

in the maximum norm, under the constraint, at every m,

    slope <= (1 - MARGIN) * step * (1 - step).

A larger variance only smooths both functions further, so the error at variance 1 bounds the error
at every variance above 1, and the constraint survives smoothing: it is what makes the variance
E sigmoid(X) (1 - E sigmoid(X)) - E sigmoid'(X) positive by construction (see docs/mathematics.md).

For given widths the best weights are a linear programme; the widths are found by Nelder-Mead.

Run:  python tools/fit_logistic_mixture.py            (about ten seconds)
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.optimize import linprog, minimize
from scipy.special import expit, ndtr

MARGIN = 1e-4
# The linear programme is solved in units of UNIT because the solver's own tolerance is 1e-7.
UNIT = 1e-5

# Half the line is enough: step(-m) = 1 - step(m) and slope(-m) = slope(m).
GRID = -np.concatenate([np.linspace(0, 12, 241), np.linspace(12.1, 38, 140)])


def truth() -> tuple[np.ndarray, np.ndarray]:
    """a(m) and a'(m) on GRID by the trapezoidal rule, which is exact to rounding here."""
    z = np.linspace(-12, 12, 4801)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    x = GRID[:, None] + z
    return expit(x) @ density, (expit(x) * expit(-x)) @ density


STEP, SLOPE = truth()


def best_weights(widths: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Largest error, w and d for the given widths."""
    count, points = len(widths), len(GRID)
    cdf = ndtr(GRID[:, None] / np.sqrt(widths))
    pdf = np.exp(-(GRID[:, None] ** 2) / (2 * widths)) / np.sqrt(2 * np.pi * widths)
    nothing, error = np.zeros((points, count)), -UNIT * np.ones((points, 1))
    rows = [
        np.hstack([cdf, nothing, error]),
        np.hstack([-cdf, nothing, error]),
        np.hstack([nothing, pdf, error]),
        np.hstack([nothing, -pdf, error]),
    ]
    bounds = [STEP, -STEP, SLOPE, -SLOPE]
    # step (1 - step) is concave in step; its tangent at the truth errs by the error squared.
    tangent = (1 - 2 * STEP)[:, None] * cdf
    rows.append(np.hstack([-(1 - MARGIN) * tangent, pdf, np.zeros((points, 1))]))
    bounds.append((1 - MARGIN) * STEP**2)
    scale = [np.full(points, 1 / UNIT)] * 4 + [1 / cdf.max(axis=1)]
    result = linprog(
        c=np.eye(2 * count + 1)[-1],
        A_ub=np.vstack([row * s[:, None] for row, s in zip(rows, scale, strict=True)]),
        b_ub=np.concatenate([bound * s for bound, s in zip(bounds, scale, strict=True)]),
        A_eq=np.concatenate([np.ones(count), np.zeros(count + 1)])[None],
        b_eq=[1.0],
        # The widest Gaussian carries no slope, so that the constraint also holds beyond the grid:
        # far out, step is the heavier tail.
        bounds=[(0, 1)] * (2 * count - 1) + [(0, 0), (0, None)],
        method="highs",
    )
    if result.x is None:
        return 1.0, np.zeros(count), np.zeros(count)
    return result.x[-1] * UNIT, result.x[:count], result.x[count : 2 * count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terms", type=int, default=6, help="number of Gaussians (default 6)")
    terms = parser.parse_args().terms
    search = minimize(
        lambda log_widths: np.log(best_weights(np.exp(np.sort(log_widths)))[0]),
        np.log(np.geomspace(2.0, 24.0, terms)),
        method="Nelder-Mead",
        options={"maxfev": 400 * terms, "xatol": 1e-6, "fatol": 1e-6, "adaptive": True},
    )
    widths = np.exp(np.sort(search.x))
    error, step_weights, slope_weights = best_weights(widths)
    step_weights /= step_weights.sum()  # to all digits: the solver stops at 1e-7
    print(f"# largest error of step and slope: {error:.2e}")
    for name, values in [
        ("WIDTHS", widths),
        ("STEP_WEIGHTS", step_weights),
        ("SLOPE_WEIGHTS", slope_weights),
    ]:
        print(f"{name} = ({', '.join(map(repr, values.tolist()))})")


if __name__ == "__main__":
    main()
