"""torch's own test inputs for its modules, through our layers with certain weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_every_input_of_torchs_own_tests_gives_what_torch_gives() -> None:
    pytest.importorskip("expecttest")
    worker = Path(__file__).with_name("torch_inputs_worker.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(worker)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {
        "Linear", "Conv1d", "Conv2d", "RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell",
    }  # fmt: skip
    assert {name: entry["wrong"] for name, entry in report.items() if entry["wrong"]} == {}
    # 188 on torch 2.13; a release may add some, and few would mean that none were tried.
    assert sum(entry["inputs"] for entry in report.values()) >= 150
