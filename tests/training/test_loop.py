from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spgru.data import MovingMNIST
from spgru.models import ModelConfig
from spgru.nn.contexts import at_mean
from spgru.nn.weight import is_spread
from spgru.objectives import Objective
from spgru.training import (
    CheckpointError,
    CheckpointWarning,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    load_model,
    train,
)
from spgru.training import checkpoint as checkpoints
from spgru.training import loop as loop_module
from spgru.training.images import save_prediction
from spgru.training.model import DeepMarkovConfig, DeterministicConfig, DropoutConfig, make_model
from spgru.training.optimizer import make_optimizer
from spgru.training.progress import read_metrics
from spgru.training.update import MeanLossModule

Make = Callable[..., TrainConfig]
Newest = Callable[[Path | str], dict[str, bytes]]


def test_the_loop_is_the_plain_loop_of_torch(tiny: Make) -> None:
    """Same weights, to the last bit, as the twelve lines anyone would write."""
    config = tiny(
        objective=Objective(beta=3.0),
        optimizer=OptimizerConfig(lr=2e-3, clip=20.0),
        schedule=ScheduleConfig(warmup=2, final=0.1),
    )
    torch.manual_seed(config.seed)
    model = make_model(config.model)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    data, totals = MovingMNIST(config.batch_size, seed=config.seed), []
    for step in range(config.steps):
        progress = max(0, step - 2) / 4
        cosine = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
        optimizer.param_groups[0]["lr"] = 2e-3 * ((step + 1) / 2 if step < 2 else cosine)
        optimizer.zero_grad()
        loss = model.loss(next(data), config.objective)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        totals.append(loss.total.item())

    result = train(config, show="none")
    assert (result.step, result.stopped, result.signal) == (6, "finished", 0)
    assert result.losses["total"] == totals[-1]
    assert [row["total"] for row in read_metrics(result.folder)] == totals
    trained = load_model(config.output).model
    for name, parameter in model.named_parameters():
        assert torch.equal(result.model.get_parameter(name), parameter), name
        assert torch.equal(trained.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": ModelConfig(hidden_size=4, architecture="convolutional", kernel_size=3)},
        {"model": DropoutConfig(hidden_size=8)},
        {"model": DeepMarkovConfig(state_size=4, hidden_size=8, anneal_steps=5)},
        {"precision": "bfloat16", "optimizer": OptimizerConfig("adamw", weight_decay=0.1)},
        {"data": DataConfig(path="controlled", digits=1, noise=0.3)},
        {"mean_steps": 3, "optimizer": OptimizerConfig(spread_rate=5.0)},
        {"optimizer": OptimizerConfig("muon", weight_decay=0.1)},
    ],
    ids=[
        "gru",
        "convolutional",
        "dropout",
        "deep-markov",
        "bfloat16-adamw",
        "noise",
        "means",
        "muon",
    ],
)
def test_resuming_is_never_having_stopped(
    tiny: Make, newest: Newest, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """One step a piece (no time at all), against all in one go: the same bytes."""
    whole = tiny(output=str(tmp_path / "whole"), **changes)
    train(whole, show="none")
    pieces = tiny(output=str(tmp_path / "pieces"), **changes)
    for step in range(1, 7):
        result = train(pieces, resume=True, max_seconds=0, show="none")
        assert result.step == step
        assert result.stopped == ("finished" if step == 6 else "out of time")
    assert newest(pieces.output) == newest(whole.output)
    rows = [read_metrics(Path(config.output)) for config in (whole, pieces)]
    assert [row["total"] for row in rows[0]] == [row["total"] for row in rows[1]]
    # And once more: nothing is left to do, nothing changes.
    assert train(pieces, resume=True, show="none").losses == {}
    assert newest(pieces.output) == newest(whole.output)


def test_means_are_trained_first_as_a_plain_network(tiny: Make) -> None:
    """By hand: cross entropy of the plain network, then the objective, at a rate of its own."""
    config = tiny(mean_steps=4, optimizer=OptimizerConfig(lr=2e-3, spread_rate=5.0))
    torch.manual_seed(config.seed)
    model = make_model(config.model)
    spreads = [p for name, p in model.named_parameters() if is_spread(name)]
    others = [p for name, p in model.named_parameters() if not is_spread(name)]
    optimizer = torch.optim.Adam([{"params": others}, {"params": spreads}], fused=True)
    data, initial = MovingMNIST(config.batch_size, seed=config.seed), spreads[0].detach().clone()
    for step in range(config.steps):
        rate = 2e-3 * 0.5 * (1 + math.cos(math.pi * step / 6))
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, 5 * rate
        optimizer.zero_grad()
        if step < 4:
            with at_mean(model):
                loss = model.loss(next(data), Objective("cross_entropy"))
        else:
            assert step > 4 or torch.equal(spreads[0], initial)
            loss = model.loss(next(data), config.objective)
        loss.total.backward()
        optimizer.step()
    assert not torch.equal(spreads[0], initial)
    trained = train(config, show="none").model
    for name, parameter in model.named_parameters():
        assert torch.equal(trained.get_parameter(name), parameter), name


def test_no_row_of_the_log_mixes_means_and_all(tiny: Make, tmp_path: Path) -> None:
    config = tiny(mean_steps=3, objective=Objective(beta=300.0))
    every = read_metrics(train(config, show="none").folder)
    second = tiny(**{**vars(config), "log_every": 2, "output": str(tmp_path / "second")})
    rows = read_metrics(train(second, show="none").folder)
    assert [row["step"] for row in rows] == [2, 3, 4, 6]
    start = 0
    for row in rows:
        for part in ("total", "nll", "kl", "grad_norm"):
            values = [each[part] for each in every[start : row["step"]]]
            # Rounded to float32 before or after.
            assert row[part] == pytest.approx(sum(values) / len(values), rel=1e-6), part
        start = row["step"]
        assert (row["kl"] == 0) == (row["step"] <= 3)


def test_drawing_and_validating_change_nothing(tiny: Make, newest: Newest, tmp_path: Path) -> None:
    """Random numbers used for a picture are not missed by the next step."""
    plain = tiny(model=DropoutConfig(hidden_size=8), output=str(tmp_path / "plain"))
    train(plain, show="none")
    rich = tiny(
        model=DropoutConfig(hidden_size=8),
        output=str(tmp_path / "rich"),
        image_every=3,
        validate_every=4,
        validate_sequences=3,
    )
    train(rich, show="none")
    weights = "step-00000006.safetensors"
    assert newest(rich.output)[weights] == newest(plain.output)[weights]
    pictures = sorted((tmp_path / "rich" / "images").iterdir())
    assert [path.name for path in pictures] == ["step-00000003.png", "step-00000006.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    tests = [row for row in read_metrics(Path(rich.output)) if "test_cross_entropy" in row]
    assert [(row["step"], row["test_sequences"]) for row in tests] == [(4, 3), (6, 3)]


def test_resuming_after_damage_ends_the_same(
    tiny: Make, newest: Newest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny(output=str(tmp_path / "whole"))
    train(whole, show="none")
    config = tiny(output=str(tmp_path / "damaged"))
    with monkeypatch.context() as patch:
        stop_at(patch, 4, signal.SIGTERM)
        train(config, show="none")
    path = tmp_path / "damaged" / "checkpoints" / "step-00000005.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match="falling back to step 4"):
        train(config, resume=True, show="none")
    assert newest(config.output) == newest(whole.output)
    steps = [row["step"] for row in read_metrics(Path(config.output))]
    assert steps == [1, 2, 3, 4, 5, 6]


def stop_at(patch: pytest.MonkeyPatch, step: int, number: int) -> None:
    """Send this process a signal during that step."""
    real = loop_module.learning_rate

    def rate(peak: float, schedule: ScheduleConfig, at: int, steps: int) -> float:
        if at == step:
            os.kill(os.getpid(), number)
        return real(peak, schedule, at, steps)

    patch.setattr(loop_module, "learning_rate", rate)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves(
    tiny: Make, newest: Newest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.getsignal(number)
    config = tiny(checkpoint_every=100)
    with monkeypatch.context() as patch:
        stop_at(patch, 2, number)
        result = train(config, show="none")
    assert (result.step, result.stopped, result.signal) == (3, "interrupted", number)
    assert signal.getsignal(number) is before
    assert train(config, resume=True, show="none").step == 6
    whole = tiny(output=str(tmp_path / "whole"), checkpoint_every=100)
    train(whole, show="none")
    assert newest(config.output) == newest(whole.output)


def test_starting_from_the_weights_of_another_run(tiny: Make, tmp_path: Path) -> None:
    train(tiny(steps=2), show="none")
    config = tiny(initial=tiny().output, output=str(tmp_path / "second"), seed=5)
    train(config, max_seconds=0, show="none")
    start = checkpoints.load(tmp_path / "second" / "checkpoints" / "step-00000000.json")
    for name, tensor in load_model(tiny().output).model.state_dict().items():
        assert torch.equal(start.model[name], tensor)
    other = tiny(initial=tiny().output, output=str(tmp_path / "third"))
    with pytest.raises(CheckpointError, match=r"has .* of shape .*, but the model's is"):
        train(
            TrainConfig(**{**vars(other), "model": ModelConfig(hidden_size=4)}),
            show="none",
        )


def test_how_a_gpu_multiplies_is_set_and_put_back(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precision and the choice of convolutions are switches of the whole process."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    seen: list[tuple[str, bool, bool, bool]] = []

    def switches() -> tuple[str, bool, bool, bool]:
        cudnn: Any = torch.backends.cudnn
        chosen = cudnn.benchmark, cudnn.deterministic
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, *chosen

    loss = MeanLossModule.forward

    def looking(module: MeanLossModule, frames: torch.Tensor) -> Any:
        seen.append(switches())
        return loss(module, frames)

    monkeypatch.setattr(MeanLossModule, "forward", looking)
    before = switches()
    options = {"mean_steps": 1, "steps": 1, "schedule": ScheduleConfig()}
    train(tiny(cudnn_benchmark=True, precision="tf32", **options), show="none")
    # Without it, convolutions that give the same result in every call.
    train(tiny(output=str(tmp_path / "other"), **options), show="none")
    assert seen == [("high", True, True, False), ("highest", False, False, True)]
    assert switches() == before


def test_only_weight_matrices_decay() -> None:
    model = make_model(ModelConfig(hidden_size=4))
    config = OptimizerConfig("adamw", weight_decay=0.5)
    groups = make_optimizer(model, config, torch.device("cpu")).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim > 1 and not is_spread(name)
        assert decay[id(parameter)] == (0.5 if matrix else 0), name


def test_lines_and_configuration(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(steps=4, log_every=2)
    train(config, show="lines")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("step 4 of 4  loss ")
    assert all(part in lines[1] for part in ("nll", "kl", "lr", "sequences/s"))
    written = json.loads((Path(config.output) / "config.json").read_text())
    assert written["model"]["hidden_size"] == 8


def test_the_bar(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    train(tiny(), show="bar")
    assert "6/6" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["autoencoder", "predictor"])
def test_a_picture_shows_the_target_above_what_the_model_made_of_it(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An autoencoder's target is its input, newest frame first."""
    axes = pytest.importorskip("matplotlib.axes")
    drawn: list[np.ndarray] = []
    real = axes.Axes.imshow

    def imshow(self: Any, image: np.ndarray, **options: Any) -> Any:
        drawn.append(image)
        return real(self, image, **options)

    monkeypatch.setattr(axes.Axes, "imshow", imshow)
    model = make_model(ModelConfig(kind=kind, hidden_size=4))
    frames = MovingMNIST(2).batch(0)
    save_prediction(tmp_path / "a.png", model, frames, columns=2)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    target = frames[:10].flip(0) if kind == "autoencoder" else frames[10:]
    pixels = model.predict(frames[:10, :1])[:, 0]
    rows = (target[:, 0], pixels.mean, pixels.std)
    assert len(drawn) == 6
    for found, want in zip(drawn, [row[t] for row in rows for t in (0, 9)], strict=True):
        torch.testing.assert_close(torch.from_numpy(found), want)


def test_deterministic_models_train_too(tiny: Make) -> None:
    config = tiny(model=DeterministicConfig(hidden_size=4), validate_every=6, validate_sequences=2)
    assert train(config, show="none").losses["kl"] == 0
    assert read_metrics(Path(config.output))[-1]["test_correlation"] is None


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_means_that_stand_still(tiny: Make, newest: Newest, tmp_path: Path, name: Any) -> None:
    """Every variance moves and no mean does, in pieces as in one go."""
    optimizer = OptimizerConfig(name, mean_rate=0.0, lr=1e-2)
    config = tiny(optimizer=optimizer, steps=4)
    torch.manual_seed(config.seed)
    before = make_model(config.model).state_dict()
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 1, signal.SIGTERM)
        assert train(config, show="none").step == 2
    result = train(config, resume=True, show="none")
    assert result.step == 4
    for key, tensor in result.model.named_parameters():
        assert torch.equal(tensor, before[key]) is not is_spread(key), key
    whole = tiny(optimizer=optimizer, steps=4, output=str(tmp_path / "whole"))
    train(whole, show="none")
    assert newest(config.output) == newest(whole.output)


def test_the_rate_of_means_alone(tiny: Make) -> None:
    """Adam's first step moves every parameter by its rate, whatever the gradient."""
    optimizer = OptimizerConfig("adam", lr=1e-2, mean_rate=0.1, spread_rate=0.5)
    config = tiny(optimizer=optimizer, steps=1, schedule=ScheduleConfig(decay="none"))
    torch.manual_seed(config.seed)
    before = make_model(config.model).state_dict()
    moved = train(config, show="none").model.named_parameters()
    for key, tensor in moved:
        largest = (tensor - before[key]).abs().max().item()
        assert largest == pytest.approx(5e-3 if is_spread(key) else 1e-3, rel=1e-2), key
