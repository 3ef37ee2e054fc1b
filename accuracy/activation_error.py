"""Largest errors of the activations' moments against quadrature, for both rules."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from common import ROOT, publish, save

import spgru.functional as F
from spgru import Moments
from spgru.reporting.markdown import table

sys.path.insert(0, str(ROOT / "tests"))
from oracles import gaussian_moments

MEANS = np.linspace(-20, 20, 801)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results, rows = [], []
    for name in ("sigmoid", "tanh"):
        for rule in ("exact", "paper"):
            for dtype in (torch.float64, torch.float32):
                worst = {"mean": 0.0, "var": 0.0, "relative": 0.0}
                for std in np.geomspace(1e-4, 1e2, 121):
                    true_mean, true_var = gaussian_moments(name, MEANS, std)
                    x = Moments(
                        torch.tensor(MEANS, dtype=dtype),
                        torch.full((len(MEANS),), std**2, dtype=dtype),
                    )
                    got = getattr(F, name)(x, rule=rule).to(torch.float64)
                    mean, var = got.mean.numpy(), got.var.numpy()
                    worst["mean"] = max(worst["mean"], np.abs(mean - true_mean).max())
                    worst["var"] = max(worst["var"], np.abs(var - true_var).max())
                    if std <= 0.5:
                        some = np.abs(MEANS) <= 5
                        relative = np.abs(var[some] / true_var[some] - 1).max()
                        worst["relative"] = max(worst["relative"], relative)
                precision = str(dtype).removeprefix("torch.")
                results.append({"function": name, "rule": rule, "dtype": precision, **worst})
                figures = [f"{value:.1e}" for value in worst.values()]
                rows.append([name, rule, precision, *figures])
    header = [
        "function",
        "rule",
        "dtype",
        "error of mean",
        "error of variance",
        "relative error of variance, mean within 5, sd 1e-4 to 0.5",
    ]
    text = table(header, rows)
    print(text)
    save("activation_error", "python accuracy/activation_error.py", results)
    publish("docs/mathematics.md", "activation_error", text)


if __name__ == "__main__":
    main()
