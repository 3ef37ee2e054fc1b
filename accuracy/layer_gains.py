"""A layer alone after `spgru.calibrate`: are gains of rows enough for the variance of its states?

    python accuracy/layer_gains.py

Layers as they are built, and layers of small networks that have learned a walk (`noisy_heads.py`).
The ratio is that of the variance of states, mean over units and sequences, to that of 1,000 drawn
networks, on sequences that no fit has seen; least and largest over all steps and seeds.
"""

from __future__ import annotations

import argparse

import torch
from common import publish, save
from noisy_heads import trained
from torch import Tensor, nn

import spgru
from spgru.reporting.markdown import table

SEEDS, DRAWS, FIT_DRAWS = 3, 1000, 400
STEPS, SEQUENCES, INPUTS, HIDDEN = 24, 32, 8, 32


def cases(seed: int) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """Layer, inputs of the fit, inputs of the test."""
    torch.manual_seed(seed)
    built = {
        "GRU": spgru.GRU(INPUTS, HIDDEN),
        "GRU, reset before (the paper's)": spgru.GRU(INPUTS, HIDDEN, reset_after=False),
        "LSTM": spgru.LSTM(INPUTS, HIDDEN),
        "RNN": spgru.RNN(INPUTS, HIDDEN),
    }
    x = torch.randn(2, STEPS, SEQUENCES, INPUTS)
    found = {f"{name}, as built": (layer, x[0], x[1]) for name, layer in built.items()}
    for kind in ("GRU", "LSTM"):
        x = torch.randn(12, 160, 2)
        layer = trained(kind, x[:, :128]).recurrent
        found[f"{kind}, trained"] = layer, x[:, :SEQUENCES], x[:, 128:]
    return found


def ratio(layer: nn.Module, x: Tensor) -> Tensor:
    """(T,)"""
    (found,) = spgru.audit(layer, x, draws=DRAWS, seed=1, redraw=False).layers.values()
    return found.ratio


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = []
    for seed in range(SEEDS):
        for name, (layer, x, x_test) in cases(seed).items():
            before = ratio(layer, x_test)
            report = spgru.calibrate(layer, x, draws=FIT_DRAWS, progress=False)
            after = ratio(layer, x_test)
            results.append(
                {
                    "layer": name,
                    "seed": seed,
                    "chosen": report.chosen,
                    "before": [round(value, 3) for value in before.tolist()],
                    "after": [round(value, 3) for value in after.tolist()],
                    "spread_before": round(report.plain_spread, 3),
                    "spread_after": round(report.spread, 3),
                }
            )
            print(results[-1], flush=True)
    save("layer_gains", "python accuracy/layer_gains.py", results)
    publish("docs/mathematics.md", "layer_gains", as_table(results))


def as_table(results: list[dict[str, object]]) -> str:
    rows = []
    for name in dict.fromkeys(result["layer"] for result in results):
        own = [result for result in results if result["layer"] == name]
        row = [str(name), ", ".join(dict.fromkeys(str(one["chosen"]) for one in own))]
        for key in ("before", "after", "spread_before", "spread_after"):
            values = [one[key] for one in own]
            flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
            row.append(f"{min(flat):.2f} to {max(flat):.2f}")
        rows.append(row)
    header = ["layer", "chosen", "closed / true, before", "after"]
    return table([*header, "spread of the log ratio, before", "after"], rows)


if __name__ == "__main__":
    main()
