"""Time of a calibrated pass over that of the plain closed form, of networks that are calibrated.

    python accuracy/pass_times.py RUN ... --device cuda

RUN is a folder of `spgru train`, calibrated by `spgru reproduce`, or the name of a network that
comes with the package. Within `spgru.frozen`, 30 sequences of ten frames.
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

import spgru
from calibration import pass_times
from spgru.calibration import is_calibrated, load_calibration
from spgru.reporting.markdown import table
from spgru.studies.calibrated import FILE
from spgru.training import load_model


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
        model = load_model(run).model
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
        found = pass_times({"plain": plain, "calibrated": model}, frames)
        ratio = round(found["calibrated"] / found["plain"], 3)
        rows.append({"network": Path(run).name, **found, "ratio": ratio})
        save("pass_times", shlex.join(["python", *sys.argv]), rows, arguments.output)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))


if __name__ == "__main__":
    main()
