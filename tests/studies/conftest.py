from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("yaml")

from spgru.data import evaluation
from spgru.studies import SCALES, StudyConfig

TINY = dataclasses.replace(
    SCALES["small"],
    seeds=2,
    sequences=3,
    draws=2,
    audit_sequences=1,
    audit_draws=2,
    test_sequences=3,
    calibration_sequences=4,
    calibration_draws=3,
    calibration_steps=1,
    timed=1,
    timed_draws=2,
)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., StudyConfig]:
    """Configurations of studies that take seconds."""
    overrides = {
        "model.hidden_size": 4,
        "steps": 2,
        "controlled_sp_gru.mean_steps": 1,
        "batch_size": 2,
        "schedule.warmup": 1,
    }
    base = StudyConfig(TINY, tmp_path / "studies", "cpu", overrides=overrides)

    def make(**changes: Any) -> StudyConfig:
        return dataclasses.replace(base, **changes)

    return make


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that passes for the official test set, of three sequences."""
    path = tmp_path / "mnist_test_seq.npy"
    frames = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64), np.uint8)
    np.save(path, frames)
    monkeypatch.setattr(evaluation, "SEQUENCES", 3)
    monkeypatch.setattr(evaluation, "OFFICIAL_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path
