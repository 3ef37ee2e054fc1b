from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spgru.models import ModelConfig
from spgru.objectives import Loss
from spgru.runtime import storage
from spgru.runtime.distributed import Processes
from spgru.training import (
    CheckpointError,
    CheckpointWarning,
    ConfigError,
    ScheduleConfig,
    TrainConfig,
    TrainingError,
    load_model,
    train,
)
from spgru.training import checkpoint as checkpoints
from spgru.training import loop as loop_module
from spgru.training.run import Run

Make = Callable[..., TrainConfig]
Newest = Callable[[Path | str], dict[str, bytes]]


def test_a_run_is_not_overwritten(tiny: Make, newest: Newest) -> None:
    train(tiny(), show="none")
    before = newest(tiny().output)
    with pytest.raises(
        ConfigError, match=r"already holds a run \(step 6\); continue it with --res"
    ):
        train(tiny(), show="none")
    assert newest(tiny().output) == before


def test_a_run_is_not_continued_with_another_configuration(tiny: Make, newest: Newest) -> None:
    train(tiny(), show="none")
    before = newest(tiny().output)
    changed = tiny(model=ModelConfig(hidden_size=4), seed=3)
    message = r"\(model\.hidden_size was 8, now 4; seed was 0, now 3\); set it back"
    with pytest.raises(ConfigError, match=message):
        train(changed, resume=True, show="none")
    assert newest(tiny().output) == before


def test_fewer_steps_than_made_are_refused(tiny: Make) -> None:
    schedule = ScheduleConfig(decay="none")
    train(tiny(schedule=schedule), show="none")
    with pytest.raises(ConfigError, match=r"steps is 3 but the run in .* is at step 6"):
        train(tiny(schedule=schedule, steps=3), resume=True, show="none")
    assert train(tiny(schedule=schedule, steps=8), resume=True, show="none").step == 8


def test_an_output_that_cannot_be_written_is_found_before_training(
    tiny: Make, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"run cannot be made \(Not a directory\); choose"):
        train(tiny(output=str(tmp_path / "file" / "run")), show="none")


def full_disk(start: int) -> Any:
    """`write_whole` that has no room from the checkpoint of step `start` on."""
    real = storage.write_whole

    def write(path: Path, data: bytes) -> None:
        if path.name.startswith("step-") and int(path.name[5:13]) >= start:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data)

    return write


def test_training_outlives_a_full_disk(
    tiny: Make, newest: Newest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns on the way, fails at the end, and goes on once there is room."""
    config, folder = tiny(), Path(tiny().output)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_whole", full_disk(4))
        message = r"step 4 could not be written .*step 2 is intact.*; training goes on"
        with pytest.warns(CheckpointWarning, match=message):  # noqa: SIM117
            with pytest.raises(CheckpointError, match=r"step 6 could not be written .*free space"):
                train(config, show="none")
    assert checkpoints.saved_steps(folder / "checkpoints") == [2]
    train(config, resume=True, show="none")
    train(tiny(output=str(tmp_path / "whole")), show="none")
    assert newest(folder) == newest(tmp_path / "whole")


def test_a_log_that_cannot_be_written_does_not_end_training(tiny: Make) -> None:
    config = tiny(image_every=1, steps=2)
    blocked = Path(config.output) / "images"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("in the way of the folder")
    with pytest.warns(CheckpointWarning, match=r"cannot be written .*; training goes on") as caught:
        assert train(config, show="none").step == 2
    assert len(caught) == 1


def test_a_loss_that_is_no_number_never_reaches_a_checkpoint(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop_module.LossModule.forward
    calls = 0

    def broken(self: Any, frames: torch.Tensor) -> Loss:
        nonlocal calls
        calls += 1
        loss = real(self, frames)
        return loss if calls < 3 else loss._replace(total=loss.total * math.nan)

    monkeypatch.setattr(loop_module.LossModule, "forward", broken)
    for log_every in (1, 100):
        calls = 0
        config = tiny(log_every=log_every, output=f"{tiny().output}{log_every}")
        with pytest.raises(TrainingError, match="not finite at step 3; the checkpoints before are"):
            train(config, show="none")
        assert checkpoints.saved_steps(Path(config.output) / "checkpoints") == [0, 2]
        assert not any(p.isnan().any() for p in load_model(config.output).model.parameters())


def test_weights_that_are_no_numbers_are_not_saved(tiny: Make) -> None:
    """The last guard, for a GPU, whose losses are looked at now and then only."""
    run = Run(tiny(), Processes(0, 1, torch.device("cpu"), False), resume=False)
    next(run.model.parameters()).data[0] = math.nan
    run.step = 2
    with pytest.raises(TrainingError, match="not finite at step 2"):
        run.save()
    assert checkpoints.saved_steps(run.checkpoints) == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "gpu"}, "device is 'gpu'; give auto, cpu, cuda"),
        ({"device": "meta"}, "device is 'meta'; give auto, cpu, cuda"),
        ({"cuda_graph": "always"}, "cuda_graph is always, but a graph needs one process on one"),
        ({"initial": "nowhere"}, "nowhere does not exist; give the folder of a run"),
    ],
)
def test_what_cannot_be_done_here_is_refused(
    tiny: Make, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=message):
        train(tiny(**changes), show="none")


def test_no_gpu(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="GPU number 3 is asked for, but there are 1; set device"):
        train(tiny(device="cuda:3"), show="none")


def test_extras_are_named_before_training(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'spgru\[plot\]'"):
        train(tiny(image_every=1), show="none")
    assert not Path(tiny().output).exists()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'spgru\[tensorboard\]'"):
        train(tiny(tensorboard=True), show="none")
    # A start that came to nothing is not in the way of the next, whatever its configuration.
    assert train(tiny(seed=5), show="none").step == 6
