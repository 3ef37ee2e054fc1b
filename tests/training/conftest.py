from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spgru.models import ModelConfig
from spgru.training import TrainConfig
from spgru.training import checkpoint as checkpoints


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., TrainConfig]:
    """Configurations of a run that takes a tenth of a second a step."""
    base = TrainConfig(
        model=ModelConfig(hidden_size=8),
        batch_size=2,
        steps=6,
        checkpoint_every=2,
        log_every=1,
        precision="float32",
        device="cpu",
        output=str(tmp_path / "run"),
    )

    def make(**changes: Any) -> TrainConfig:
        return dataclasses.replace(base, **changes)

    return make


@pytest.fixture
def newest() -> Callable[[Path | str], dict[str, bytes]]:
    """The last checkpoint of a run, byte for byte."""

    def read(folder: Path | str) -> dict[str, bytes]:
        folder = Path(folder) / "checkpoints"
        step = checkpoints.saved_steps(folder)[-1]
        return {path.name: path.read_bytes() for path in folder.glob(f"step-{step:08d}.*")}

    return read
