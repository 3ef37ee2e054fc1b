"""Two processes with gloo, started by torchrun as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spgru.objectives import Objective
from spgru.runtime.distributed import Processes
from spgru.training import ConfigError, TrainConfig, load_model, train
from spgru.training import checkpoint as checkpoints
from spgru.training.loop import check_group
from spgru.training.model import DropoutConfig
from spgru.training.progress import read_metrics
from spgru.training.schema import to_mapping

Make = Callable[..., TrainConfig]
Newest = Callable[[Path | str], dict[str, bytes]]
DYING = Path(__file__).with_name("dying_worker.py")


def torchrun(*configs: TrainConfig) -> str:
    """Train with two processes, one of which dies in the last training; standard error.

    One launch for all: each of its three processes imports torch.
    """
    paths = [Path(config.output).with_suffix(".json") for config in configs]
    for path, config in zip(paths, configs, strict=True):
        path.write_text(json.dumps(to_mapping(config)))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, "--max-restarts=1", str(DYING), *map(str, paths)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished at step") == len(configs)
    return done.stderr


@pytest.fixture
def joint(tiny: Make) -> TrainConfig:
    """A divergence heavy enough to be missed, or noticed twice."""
    return tiny(
        objective=Objective(beta=300.0), batch_size=4, steps=8, mean_steps=2, checkpoint_every=3
    )


@pytest.mark.long
def test_two_processes_are_one_and_survive_the_death_of_either(
    joint: TrainConfig, newest: Newest, tmp_path: Path
) -> None:
    one = train(joint, show="none")

    values = vars(joint)
    pair = TrainConfig(**{**values, "output": str(tmp_path / "pair")})
    killed = TrainConfig(**{**values, "output": str(tmp_path / "killed")})
    errors = torchrun(pair, killed)
    rows = read_metrics(one.folder), read_metrics(tmp_path / "pair")
    assert [row["step"] for row in rows[1]] == list(range(1, 9))
    for single, double in zip(*rows, strict=True):
        assert single["step"] <= joint.mean_steps or single["kl"] * 300e-5 > 0.2 * single["total"]
        for part in ("total", "nll", "kl", "grad_norm"):
            # The mean of two halves is rounded differently; measured 9e-8.
            assert double[part] == pytest.approx(single[part], rel=1e-6), part
    for name, tensor in load_model(tmp_path / "pair").model.state_dict().items():
        # Of up to 8e-3 walked; measured 5e-7.
        assert torch.allclose(one.model.state_dict()[name], tensor, rtol=0, atol=5e-6), name

    assert errors.count("process 1 dies") == 1
    assert newest(tmp_path / "killed") == newest(tmp_path / "pair")
    assert checkpoints.saved_steps(tmp_path / "killed" / "checkpoints") == [6, 8]


@pytest.mark.brute
def test_random_masks_survive_a_death_too(
    tiny: Make, newest: Newest, tmp_path: Path, full: bool
) -> None:
    if not full:
        pytest.skip("two more runs of two processes; use --full")
    base = vars(tiny(model=DropoutConfig(hidden_size=8), batch_size=4, steps=8))
    torchrun(*(TrainConfig(**{**base, "output": str(tmp_path / k)}) for k in ("whole", "killed")))
    assert newest(tmp_path / "killed") == newest(tmp_path / "whole")


def test_no_process_has_the_variance_of_the_batch(tiny: Make) -> None:
    config = tiny(objective=Objective("paper"))
    check_group(config, Processes(0, 1, torch.device("cpu"), False))
    with pytest.raises(ConfigError, match="2 processes have a part of it each; use one process"):
        check_group(config, Processes(0, 2, torch.device("cpu"), False))


def test_a_batch_must_divide() -> None:
    group = Processes(0, 3, torch.device("cpu"), False)
    assert group.share(9) == 3
    with pytest.raises(ConfigError, match="batch_size is 10, which 3 processes cannot share even"):
        group.share(10)
