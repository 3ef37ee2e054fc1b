"""A layer alone after `spgru.calibrate`: how true do gains make the variance of its states?

    python accuracy/layer_gains.py

Layers as they are built, and layers of small networks that have learned a walk (`noisy_heads.py`).
The ratio is that of the variance of states, mean over units and sequences, to that of 1,000 drawn
networks, on sequences that no fit has seen; least and largest over all steps and seeds. Sequences
three times as long as those of the fit show whether gains hold beyond it.
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
LONGER = 3


def cases(seed: int) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """Layer, inputs of the fit, inputs of the test, which are three times as long."""
    torch.manual_seed(seed)
    built = {
        "GRU": spgru.GRU(INPUTS, HIDDEN),
        "GRU, reset before (the paper's)": spgru.GRU(INPUTS, HIDDEN, reset_after=False),
        "LSTM": spgru.LSTM(INPUTS, HIDDEN),
        "RNN": spgru.RNN(INPUTS, HIDDEN),
    }
    x, x_test = (torch.randn(k * STEPS, SEQUENCES, INPUTS) for k in (1, LONGER))
    found = {f"{name}, as built": (layer, x, x_test) for name, layer in built.items()}
    for kind in ("GRU", "LSTM"):
        x, x_test = torch.randn(12, 128, 2), torch.randn(LONGER * 12, SEQUENCES, 2)
        layer = trained(kind, x).recurrent
        found[f"{kind}, trained"] = layer, x[:, :SEQUENCES], x_test
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
                    "before": rounded(before[: len(x)]),
                    "after": rounded(after[: len(x)]),
                    "later_before": rounded(before[len(x) :]),
                    "later_after": rounded(after[len(x) :]),
                    "spread_before": round(report.plain_spread, 3),
                    "spread_after": round(report.spread, 3),
                }
            )
            print(results[-1], flush=True)
    save("layer_gains", "python accuracy/layer_gains.py", results)
    publish("docs/mathematics.md", "layer_gains", as_table(results))


def rounded(values: Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def as_table(results: list[dict[str, object]]) -> str:
    rows = []
    for name in dict.fromkeys(result["layer"] for result in results):
        own = [result for result in results if result["layer"] == name]
        row = [str(name), ", ".join(dict.fromkeys(str(one["chosen"]) for one in own))]
        keys = ("before", "after", "later_before", "later_after", "spread_before", "spread_after")
        for key in keys:
            values = [one[key] for one in own]
            flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
            row.append(f"{min(flat):.2f} to {max(flat):.2f}")
        rows.append(row)
    header = ["layer", "chosen", "closed / true, before", "after", "at later steps, before"]
    return table([*header, "after", "spread of the log ratio, before", "after"], rows)


if __name__ == "__main__":
    main()
