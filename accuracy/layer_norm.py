"""Layer normalisation of uncertain features against draws: every entry, and all together."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from common import publish, save

from spgru import Moments
from spgru.reporting.markdown import table

SIZES, STDS = (4, 8, 16, 64, 256), (0.1, 0.5, 1.0, 3.0)
SEEDS, DRAWS, AT_ONCE = 4, 200_000, 20_000


def drawn(x: Moments, generator: torch.Generator) -> Moments:
    """Mean and variance over draws."""
    total, squares = torch.zeros_like(x.mean), torch.zeros_like(x.mean)
    for _ in range(DRAWS // AT_ONCE):
        z = F.layer_norm(x.sample((AT_ONCE,), generator), x.shape)
        total += z.sum(0)
        squares += z.square().sum(0)
    mean = total / DRAWS
    return Moments(mean, squares / DRAWS - mean**2)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_default_dtype(torch.float64)
    results, rows = [], []
    for size in SIZES:
        for std in STDS:
            ratios, totals, errors = [], [], []
            for seed in range(SEEDS):
                generator = torch.Generator().manual_seed(seed)
                mean = torch.randn(size, generator=generator)
                var = 2 * std**2 * torch.rand(size, generator=generator)
                x = Moments(mean, var)
                got, truth = F.layer_norm(x, x.shape), drawn(x, generator)
                ratios.append(got.var / truth.var)
                totals.append((got.var.sum() / truth.var.sum()).item())
                errors.append(((got.mean - truth.mean) / truth.std).abs().max().item())
            found = torch.cat(ratios)
            result = {
                "features": size, "std": std, "smallest": found.min().item(),
                "largest": found.max().item(), "total": totals, "mean error": max(errors),
            }  # fmt: skip
            results.append(result)
            rows.append([
                str(size), f"{std:g}", f"{found.min():.2f} to {found.max():.2f}",
                f"{min(totals):.3f} to {max(totals):.3f}", f"{max(errors):.3f}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
    header = [
        "features", "sd of the input", "variance / truth, entries", "summed over entries",
        "error of the mean, in sd",
    ]  # fmt: skip
    save("layer_norm", "python accuracy/layer_norm.py", results)
    publish("docs/mathematics.md", "layer_norm", table(header, rows))


if __name__ == "__main__":
    main()
