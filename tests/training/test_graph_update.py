"""A step captured in a CUDA graph against the same step called; for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spgru.training import TrainConfig, train
from spgru.training.config import OptimizerConfig
from spgru.training.progress import read_metrics


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_captured_step_is_the_step(tiny: Callable[..., TrainConfig], name: str) -> None:
    """Both phases, each captured anew; what warming up changed is undone."""
    rows, weights = [], []
    for graph in ("never", "always"):
        config = tiny(
            device="cuda", cuda_graph=graph, mean_steps=3, optimizer=OptimizerConfig(name=name),
            output=str(Path(tiny().output) / graph),
        )  # fmt: skip
        result = train(config, show="none")
        rows.append(read_metrics(result.folder))
        weights.append(list(result.model.parameters()))
    assert len(rows[0]) == 6
    for called, captured in zip(*rows, strict=True):
        for part in ("total", "nll", "kl", "grad_norm", "lr"):
            assert captured[part] == pytest.approx(called[part], rel=1e-4)
    for called, captured in zip(*weights, strict=True):
        torch.testing.assert_close(captured, called, rtol=1e-4, atol=1e-6)
