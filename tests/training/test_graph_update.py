"""A step captured in a CUDA graph against the same step called; for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spgru.models import ModelConfig
from spgru.training import TrainConfig, train
from spgru.training.config import OptimizerConfig
from spgru.training.progress import read_metrics

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")


@needs_gpu
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


@needs_gpu
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_a_convolutional_run_in_pieces_is_the_run(
    tiny: Callable[..., TrainConfig], newest: Callable[[str], dict[str, bytes]], precision: str
) -> None:
    """To the bit: without `cudnn_benchmark` convolutions are those of every call."""
    model = ModelConfig(
        kind="next_frame", architecture="convolutional", hidden_size=32, num_layers=2, kernel_size=3
    )
    optimizer = OptimizerConfig("muon", clip=50.0)
    found = []
    for name, pieces in (("whole", 1), ("pieces", 2)):
        config = tiny(
            model=model, optimizer=optimizer, precision=precision, device="cuda", batch_size=8,
            steps=12, mean_steps=6, checkpoint_every=100, log_every=3,
            output=str(Path(tiny().output) / name),
        )  # fmt: skip
        if pieces == 2:
            assert train(config, max_seconds=0, show="none").step < 12
        assert train(config, resume=True, show="none").step == 12
        found.append(newest(config.output))
    assert found[0] == found[1]
