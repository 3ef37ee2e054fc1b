"""Time of a calibrated pass over that of the plain closed form, of networks that are calibrated.

    python accuracy/pass_times.py RUN ... --device cuda

RUN is a folder of `spgru train`, calibrated by `spgru reproduce`, or the name of a network that
comes with the package; "untrained" is the network of the controlled study at the size of the paper
before any training, with every gain that there is and factors by level, whose time does not depend
on what the numbers are. Within `spgru.frozen`, 30 sequences of ten frames. The plain form is timed
twice: how far that ratio is from 1 is the error of the other.
"""

from __future__ import annotations

import argparse
import copy
import shlex
import sys
from pathlib import Path

import torch
from common import save
from safetensors.torch import load_file
from torch import nn

import spgru
from calibration import pass_times
from spgru import studies
from spgru.calibration import is_calibrated, load_calibration
from spgru.models import build
from spgru.nn.layer import layers_of
from spgru.nn.scale import Scale
from spgru.reporting.markdown import table
from spgru.studies.calibrated import FILE
from spgru.training import load_model
from spgru.training.config import load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="folders of runs, or names of packaged networks")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sequences", type=int, default=30)
    parser.add_argument("--output", type=Path, default=None, help="in place of accuracy/results")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    rows = []
    for run in arguments.runs:
        model = _untrained() if run == "untrained" else load_model(run).model
        kept = Path(run, FILE)
        if kept.is_file():
            load_calibration(model, {**model.state_dict(), **load_file(kept)})
        if not is_calibrated(model):
            parser.error(f"{run} is not calibrated; `spgru reproduce` and `spgru calibrate` do it")
        model = model.to(arguments.device)
        plain = copy.deepcopy(model)
        spgru.uncalibrate(plain)
        shape = (10, arguments.sequences, model.config.height, model.config.width)
        frames = torch.rand(shape, device=arguments.device)
        models = {"plain": plain, "calibrated": model, "plain again": copy.deepcopy(plain)}
        found = pass_times(models, frames)
        ratios = {
            f"{name} / plain": round(found[name] / found["plain"], 3) for name in list(models)[1:]
        }
        rows.append({"network": Path(run).name, **found, **ratios})
        save("pass_times", shlex.join(["python", *sys.argv]), rows, arguments.output)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))


def _untrained() -> nn.Module:
    """The network of the controlled study as it is built, with the largest form of calibration."""
    torch.manual_seed(0)
    path = Path(studies.__file__).parent / "configs" / "paper" / "controlled_sp_gru.yaml"
    model = build(load_config(path).model)
    for _, layer in layers_of(model):
        shapes = layer.gain_shapes()
        layer.set_gains_({name: torch.full(shape, 0.9) for name, shape in shapes.items()})
    by_step = torch.ones(10)
    model.pixel_scale.set_(Scale(1.1 * by_step, 0.1 * by_step, low=1e-9 * by_step, high=by_step))
    return model


if __name__ == "__main__":
    main()
