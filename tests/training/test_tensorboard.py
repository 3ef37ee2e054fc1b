"""What TensorBoard is told is what the file of metrics says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spgru.training import TrainConfig, train
from spgru.training.progress import read_metrics


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_are_the_metrics_also_after_resuming(tiny: Callable[..., TrainConfig]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny(tensorboard=True, steps=3, checkpoint_every=1, image_every=2)
    train(config, resume=True, max_seconds=0, show="none")
    result = train(config, resume=True, show="none")
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    rows = read_metrics(result.folder)
    assert [row["step"] for row in rows] == [1, 2, 3]
    # Every second step, and the last.
    assert [image.step for image in events.Images("prediction")] == [2, 3]
    for name in ("total", "nll", "kl", "lr", "grad_norm"):
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2, 3]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[name] for row in rows])
