"""The range of training on the page: writes src/spgru/weights/NAME.json.

    python tools/serve_ranges.py one-digit --sequences 500

Quantiles, over sequences of the kind that the network was trained on, of the predicted variance
summed over the pixels of a frame; and the last of them of the largest standard deviation of a
pixel. The digits are those of training, drawn anew; a network that samples has 50 draws.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext

import torch

from spgru.calibration import is_calibrated, uncalibrated
from spgru.serve.networks import NETWORKS
from spgru.serve.prediction import VARIANCES
from spgru.training import load_model
from spgru.training.evaluation import make_data
from spgru.training.packaged import WEIGHTS

QUANTILES = (0.05, 0.5, 0.95)
SEED = 3_000_017
DRAWS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NETWORKS)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=10)
    options = parser.parse_args()
    loaded = load_model(options.name)
    model, drawn = loaded.model, NETWORKS[options.name].kind == "draws"
    forms = ("draws",) if drawn else VARIANCES
    sums: dict[str, list[torch.Tensor]] = {form: [] for form in forms}
    tops: dict[str, list[torch.Tensor]] = {form: [] for form in forms}
    data = make_data(loaded.config.data, options.batch_size, split="train", seed=SEED)
    generator = torch.Generator().manual_seed(0)
    extra = {"draws": DRAWS, "generator": generator} if drawn else {}
    for k in range(-(-options.sequences // options.batch_size)):
        seen = data.batch(k).chunk(2)[0]
        for form in forms:
            plain = form == "plain" and is_calibrated(model)
            with torch.no_grad(), uncalibrated(model) if plain else nullcontext():
                var = model.predict(seen, **extra).var.double()
            sums[form].append(var.sum((2, 3)))
            tops[form].append(var.amax((0, 2, 3)).sqrt())
    document = {
        "unit": "variance of a pixel's brightness, summed over a frame",
        "command": " ".join(["python tools/serve_ranges.py", *sys.argv[1:]]),
        "sequences": len(torch.cat(sums[forms[0]], 1)[0]),
        "quantiles": list(QUANTILES),
        "forms": {form: _quantiles(torch.cat(parts, 1)) for form, parts in sums.items()},
        "std_top": {
            form: float(f"{torch.cat(parts).quantile(QUANTILES[-1]).item():.4g}")
            for form, parts in tops.items()
        },
    }
    path = WEIGHTS / f"{options.name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path.name}")


def _quantiles(sums: torch.Tensor) -> list[list[float]]:
    """(frames, sequences) -> for every quantile a number for every frame"""
    found = torch.quantile(sums, torch.tensor(QUANTILES, dtype=sums.dtype), dim=1)
    return [[float(f"{value:.4g}") for value in row] for row in found.tolist()]


if __name__ == "__main__":
    main()
