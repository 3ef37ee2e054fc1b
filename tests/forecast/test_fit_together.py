"""A forecaster fitted by two processes with gloo, started by torchrun as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fit_worker import fitted, series

from spgru.forecast import Forecaster
from spgru.forecast.training import _observed, _part
from spgru.forecast.windows import Windows
from spgru.runtime.distributed import Processes, is_first_process

WORKER = Path(__file__).with_name("fit_worker.py")
CPU = torch.device("cpu")


def test_two_processes_fit_what_one_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(WORKER), str(tmp_path),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fitted by process") == 2
    one, pair = fitted(), Forecaster.load(tmp_path, "cpu")
    assert one.mode == pair.mode
    # Sums of two halves are rounded differently. Measured: 1.3e-7 of the scores, 1e-7 of the
    # forecasts, 1.5e-8 in weights.
    for mode, record in one.records.items():
        assert pair.records[mode].steps == record.steps
        assert pair.records[mode].best_step == record.best_step > 0
        np.testing.assert_allclose(pair.records[mode].scores, record.scores, rtol=2e-6)
    weights = pair.network.state_dict()
    for name, tensor in one.network.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-6)
    a, b = one.predict(), pair.predict()
    np.testing.assert_allclose(a.mean, b.mean, rtol=2e-6)
    np.testing.assert_allclose(a.std, b.std, rtol=2e-6)


@pytest.mark.parametrize("batch", [1, 7])
def test_parts_make_up_the_batch(batch: int) -> None:
    """Windows in which nothing was observed leave batches that do not divide."""
    windows = Windows(series(), None, None, 16, 4, 6, False, CPU)
    random = np.random.default_rng(1)
    which = random.integers(5, size=batch), random.integers(16, 50, size=batch)
    observed = _observed(windows, *which)
    parts = [_part(windows, *observed, Processes(rank, 3, CPU, False)).target for rank in range(3)]
    assert all(len(part) for part in parts)
    joined = torch.cat([part for part in parts if not part.isnan().all()])
    torch.testing.assert_close(joined, windows.batch(*observed).target, equal_nan=True)


def test_processes_with_different_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "largest", lambda self, value: max(value, 5))
    with pytest.raises(ValueError, match="y differs between the processes; give all of them"):
        Processes(0, 2, CPU, False).require_equal(3, "y")


def test_only_the_first_process_saves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert is_first_process()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    Forecaster(4).save(tmp_path / "there")  # would refuse, not being fitted
    assert not (tmp_path / "there").exists()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RuntimeError, match="has not been fitted"):
        Forecaster(4).save(tmp_path / "there")
