"""Calibrate a network to drawn networks and write it in 16 bits, with its calibration.

    python experiments/two-digits-5x128/calibrate.py SOURCE OUTPUT.safetensors [SEQUENCES] [DRAWS]

The sequences are of training digits that no training of this network has used (seed 505). Factors
on the output alone are tried: gains were measured to be worse for networks that read their own
frames back.
"""
import sys

import spgru
from spgru.calibration import calibration_state
from spgru.data import MovingMNIST
from spgru.runtime.device import choose_device
from spgru.training import export, load_model

source, output, sequences, draws = *sys.argv[1:3], *(*map(int, sys.argv[3:]), 64, 200)[:2]
device = choose_device("auto")
model = load_model(source).model.to(device)
seen = MovingMNIST(sequences, seed=505, device=device).batch(0)[:10]
print(spgru.calibrate(model, seen, form="scale", draws=draws))
path = export(source, output, "float16", calibration=calibration_state(model))
print(f"wrote {path} ({path.stat().st_size} bytes)")
