from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from spgru.calibration import calibration_state, uncalibrate
from spgru.data import MovingMNIST
from spgru.models import ModelConfig
from spgru.nn.scale import Scale
from spgru.nn.weight import named_weights
from spgru.training import (
    CheckpointError,
    TrainConfig,
    export,
    load_config,
    load_exported,
    load_model,
    train,
)
from spgru.training import checkpoint as checkpoints
from spgru.training.checkpoint import Checkpoint
from spgru.training.config import stored_form
from spgru.training.export import ExportPrecision, load_weights
from spgru.training.model import DeepMarkovConfig, make_model

Make = Callable[..., TrainConfig]


@pytest.fixture
def run(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two steps."""
    monkeypatch.setenv("SPGRU_COMMIT", "abc123")
    return train(tiny(steps=2), show="none").folder


def stored(folder: Path, config: TrainConfig, model: Any) -> Path:
    """The folder of a checkpoint with these weights."""
    state = Checkpoint(0, stored_form(config), {}, model.state_dict(), {})
    return checkpoints.save(folder, state).parent


def test_weights_and_configuration_survive(run: Path, tmp_path: Path) -> None:
    path = export(run, tmp_path / "shared" / "weights.safetensors")
    before, after = load_model(run), load_model(path)
    assert (after.config.model, after.step) == (before.config.model, 2)
    origin = {"commit": "abc123", "torch": torch.__version__, "hardware": "CPU"}
    assert after.origin == before.origin == origin
    state = after.model.state_dict()
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(state[name], tensor), name
    frames = MovingMNIST(2).batch(0)[:10]
    assert torch.equal(load_exported(path).predict(frames).var, before.model.predict(frames).var)
    assert not load_exported(path).training
    # No optimiser: one third of a checkpoint, which has two moments beside every weight.
    checkpoint = run / "checkpoints" / "step-00000002.safetensors"
    assert path.stat().st_size < 0.36 * checkpoint.stat().st_size
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["config"])["model"]["hidden_size"] == 8
    assert metadata["precision"] == "float32"


def test_a_network_carries_its_calibration(run: Path, tmp_path: Path) -> None:
    model, frames = load_model(run).model, MovingMNIST(2).batch(0)[:10]
    plain = model.predict(frames)
    rows = model.future.readout.out_features
    model.future.readout.set_gains_({"weight": torch.linspace(1, 9, rows)})
    model.pixel_scale.set_(Scale(torch.linspace(2, 3, 10)))
    expected, calibration = model.predict(frames), calibration_state(model)
    assert torch.equal(expected.mean, plain.mean) is False  # the logit's variance is in the mean
    assert set(calibration) == {"future.readout.gain_w", "pixel_scale.factor"}
    path = export(run, tmp_path / "weights.safetensors", calibration=calibration)
    loaded = load_model(path).model
    assert torch.equal(loaded.predict(frames).var, expected.var)
    # Exported again it keeps it; or it is taken out.
    again = export(path, tmp_path / "again.safetensors", "float16")
    assert torch.allclose(load_model(again).model.predict(frames).var, expected.var, rtol=0.05)
    without = export(path, tmp_path / "without.safetensors", calibration={})
    assert torch.equal(load_model(without).model.predict(frames).var, plain.var)
    uncalibrate(loaded)
    assert torch.equal(loaded.predict(frames).var, plain.var)
    with pytest.raises(CheckpointError, match="calibration holds nonsense"):
        export(run, tmp_path / "x.safetensors", calibration={"nonsense": torch.ones(1)})


@pytest.mark.parametrize("hidden_size", [8, 64])
def test_rounding_changes_predictions_little(tiny: Make, tmp_path: Path, hidden_size: int) -> None:
    config = tiny(model=ModelConfig(hidden_size=hidden_size), steps=3)
    model = load_model(train(config, show="none").folder).model
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "spread" in name:  # as far apart as those of long training
            parameter.data.uniform_(-3, 8, generator=generator)
    folder = stored(tmp_path / "spread", config, model)
    whole = export(folder, tmp_path / "whole.safetensors")
    half = export(folder, tmp_path / "half.safetensors", "float16")
    compact = export(folder, tmp_path / "compact.safetensors", "compact")
    assert half.stat().st_size < 0.51 * whole.stat().st_size
    assert compact.stat().st_size < 0.385 * whole.stat().st_size
    frames = MovingMNIST(2).batch(0)[:10]
    exact = load_exported(whole).predict(frames)
    # Means lie between 0 and 1. Measured: 6e-5, 0.2 and 0.05 %; compact 3e-4, 1.7 and 0.4 %.
    for path, mean, largest, usual in ((half, 2e-4, 5e-3, 1e-3), (compact, 6e-4, 0.03, 8e-3)):
        rounded = load_exported(path).predict(frames)
        off = (rounded.var - exact.var).abs() / exact.var
        assert (rounded.mean - exact.mean).abs().max() < mean
        assert off.max() < largest
        assert off.mean() < usual


def test_compact_spreads_are_off_by_half_a_step(tiny: Make, tmp_path: Path) -> None:
    config = tiny()
    model = load_model(train(config, max_seconds=0, show="none").folder).model
    spread = model.encoder.rnn.spread_w_ih_l0.data.uniform_(-3, 8)
    source = stored(tmp_path / "spread", config, model)
    found = load_exported(export(source, tmp_path / "c.safetensors", "compact"))
    off = (found.encoder.rnn.spread_w_ih_l0 - spread).abs().max()
    assert 0.01 < off < 1.001 * 11 / 255 / 2
    again = export(tmp_path / "c.safetensors", tmp_path / "again.safetensors", "compact")
    again_spread = load_exported(again).encoder.rnn.spread_w_ih_l0
    torch.testing.assert_close(again_spread, found.encoder.rnn.spread_w_ih_l0, rtol=0, atol=1e-5)
    # Spreads that are all the same have no range.
    model.encoder.rnn.spread_w_ih_l0.data.fill_(0.25)
    same = stored(tmp_path / "same", config, model)
    found = load_exported(export(same, tmp_path / "same.safetensors", "compact"))
    assert bool((found.encoder.rnn.spread_w_ih_l0 == 0.25).all())


@pytest.mark.parametrize("precision", ["float16", "compact"])
def test_rounding_keeps_certain_weights_and_refuses_what_is_too_large(
    tiny: Make, tmp_path: Path, precision: ExportPrecision
) -> None:
    config = tiny()
    model = load_model(train(config, max_seconds=0, show="none").folder).model
    model.encoder.rnn.spread_w_ih_l0.data[0] = -torch.inf
    source = stored(tmp_path / "certain", config, model)
    half = load_exported(export(source, tmp_path / "half.safetensors", precision))
    assert bool((half.encoder.rnn.spread_w_ih_l0[0] == -torch.inf).all())
    assert bool(half.encoder.rnn.spread_w_ih_l0[1].isfinite().all())
    model.encoder.rnn.weight_ih_l0.data[0, 0] = 1e5
    source = stored(tmp_path / "large", config, model)
    with pytest.raises(CheckpointError, match=r"weight_ih_l0 has values beyond float16"):
        export(source, tmp_path / "large.safetensors", precision)
    assert not (tmp_path / "large.safetensors").exists()


def in_old_layout(model: Any) -> dict[str, torch.Tensor]:
    """The state dict that version 0.1 would have written."""
    old = {}
    for name, weight in named_weights(model):
        moments = weight.moments()
        old[f"{name}.mean"] = moments.mean.detach().clone()
        old[f"{name}.log_var"] = moments.var.detach().log()
    return old


def test_runs_of_version_0_1_are_read_and_not_continued(tiny: Make, tmp_path: Path) -> None:
    config = tiny(steps=4)
    folder = train(config, max_seconds=0, show="none").folder
    newest = checkpoints.load_newest(folder / "checkpoints")
    model = load_model(folder).model
    old = dataclasses.replace(newest, model=in_old_layout(model), step=3)
    checkpoints.save(folder / "checkpoints", old)
    frames = MovingMNIST(2).batch(0)[:10]
    for source in (folder, export(folder, tmp_path / "converted.safetensors")):
        got, want = load_model(source).model.predict(frames), model.predict(frames)
        torch.testing.assert_close(got.var, want.var)
    with pytest.raises(CheckpointError, match=r"made by version 0\.1 and cannot be continued"):
        train(config, resume=True, show="none")
    again = tiny(steps=1, initial=str(folder), output=str(tmp_path / "again"))
    assert train(again, show="none").folder == tmp_path / "again"


def test_counts_stay_whole_numbers(tiny: Make, tmp_path: Path) -> None:
    config = tiny(model=DeepMarkovConfig(state_size=4, hidden_size=4), steps=3)
    folder = train(config, show="none").folder
    model = load_exported(export(folder, tmp_path / "w.safetensors", "float16"))
    assert model.annealed_steps.dtype == torch.int64
    assert int(model.annealed_steps) == 3


def test_every_source_is_understood(run: Path, tmp_path: Path) -> None:
    path = export(run, tmp_path / "w.safetensors")
    folder = run / "checkpoints"
    sources = [run, folder, folder / "step-00000002.json", folder / "step-00000002.safetensors"]
    expected = load_exported(path).state_dict()
    for source in (*sources, path, export(path, tmp_path / "again.safetensors")):
        loaded = load_model(source)
        assert loaded.step == 2
        for name, tensor in loaded.model.state_dict().items():
            assert torch.equal(expected[name], tensor)
    assert load_model(folder / "step-00000000.json").step == 0


def test_an_old_file_is_not_overwritten_by_accident(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_text("precious")
    with pytest.raises(CheckpointError, match="exists; remove it, choose another name"):
        export(run, path)
    assert path.read_text() == "precious"
    export(run, path, overwrite=True)
    load_exported(path)
    with pytest.raises(CheckpointError, match=r"must end in \.safetensors"):
        export(run, tmp_path / "weights.bin")
    with pytest.raises(ValueError, match="precision must be one of"):
        export(run, tmp_path / "x.safetensors", "bfloat16")  # type: ignore[arg-type]


def test_damage_is_found(run: Path, tmp_path: Path) -> None:
    path = export(run, tmp_path / "w.safetensors")
    data, rng = path.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(20):
        damaged = bytearray(data)
        damaged[rng.randrange(header, len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is damaged \(SHA-256 differs\)"):
            load_exported(path)
    for cut in (0, 5, header - 3, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(CheckpointError, match="is damaged, or not a safetensors file"):
            load_exported(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "missing does not exist; give the folder of a run"),
        ("empty", "there is no checkpoint in .*empty; train first"),
        ("text.yaml", r"text\.yaml is damaged, or not a safetensors file"),
        ("text.json", r"text\.json is not a checkpoint of this version"),
        ("foreign.safetensors", "is not an export of this version"),
    ],
)
def test_other_things_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.yaml").write_text("steps: 3")
    (tmp_path / "text.json").write_text("{}")
    (tmp_path / "foreign.safetensors").write_bytes(safetensors.torch.save({"a": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path / name)


def test_shapes_that_do_not_fit_their_configuration(tiny: Make, run: Path, tmp_path: Path) -> None:
    other = tiny(model=ModelConfig(hidden_size=4))
    source = stored(tmp_path / "mixed", other, load_model(run).model)
    with pytest.raises(CheckpointError, match=r"has encoder.* of shape \(24, 4096\), but .*\(12, "):
        load_model(source)


def test_a_configuration_of_another_version(tiny: Make, run: Path, tmp_path: Path) -> None:
    config = stored_form(tiny()) | {"novelty": 3}
    state = Checkpoint(0, config, {}, load_model(run).model.state_dict(), {})
    path = checkpoints.save(tmp_path / "newer", state)
    with pytest.raises(CheckpointError, match=r"is of another version \(novelty is not a field"):
        load_model(path)


def plain_means(model: Any, suffix: str) -> dict[str, torch.Tensor]:
    """Drawn means for every parameter that is one, named as a file of means alone may name them."""
    generator = torch.Generator().manual_seed(1)
    return {
        f"{name}{suffix}": torch.randn(parameter.shape, generator=generator).half()
        for name, parameter in model.named_parameters()
        if "spread" not in name
    }


@pytest.mark.parametrize("suffix", ["", ".mean"])
def test_a_training_starts_from_means_alone(tiny: Make, tmp_path: Path, suffix: str) -> None:
    config = tiny(initial=str(tmp_path / "means.safetensors"))
    plain = plain_means(make_model(config.model), suffix)
    safetensors.torch.save_file(plain, tmp_path / "means.safetensors")
    folder = train(config, max_seconds=0, show="none").folder
    start = checkpoints.load(folder / "checkpoints" / "step-00000000.json").model
    torch.manual_seed(config.seed)
    untouched = make_model(config.model).state_dict()
    for name, tensor in start.items():
        given = plain.get(f"{name}{suffix}")
        assert torch.equal(tensor, untouched[name] if given is None else given.float()), name
    assert sum("spread" in name for name in untouched) == len(plain)


def test_means_that_do_not_fit_are_refused(tiny: Make, tmp_path: Path) -> None:
    path = tmp_path / "means.safetensors"
    config = tiny(initial=str(path))
    plain = plain_means(make_model(config.model), "")
    for changed, message in (
        ({**plain, "nonsense": torch.ones(1)}, "holds nonsense, which the model lacks"),
        (dict(list(plain.items())[1:]), r"\(means alone\) lacks encoder"),
        (plain_means(make_model(ModelConfig(hidden_size=4)), ""), "of shape"),
    ):
        safetensors.torch.save_file(changed, path)
        with pytest.raises(CheckpointError, match=message):
            train(config, show="none")
    # A model cannot be made of it: it has no configuration.
    with pytest.raises(CheckpointError, match="is not an export of this version"):
        load_model(path)


def test_the_means_of_the_unfinished_training_fit_its_configuration() -> None:
    pytest.importorskip("yaml")
    root = Path(__file__).parents[2]
    config = load_config(root / "experiments" / "two-digits-5x128" / "spreads.yaml")
    assert config.initial is not None
    model = make_model(config.model)
    load_weights(model, root / config.initial)
    assert model.future.readout.bias.mean().item() == pytest.approx(-3.13, abs=0.1)
    # Means and spreads in 16 bits, with their header, fit 16 MiB.
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 2 * parameters + 20_000 < 2**24


@pytest.mark.parametrize("precision", ["float16", "compact"])
def test_levels_of_a_scale_survive_rounding(
    run: Path, tmp_path: Path, precision: ExportPrecision
) -> None:
    """They are variances of pixels, which 16 bits would round to 0."""
    model, frames = load_model(run).model, MovingMNIST(2).batch(0)[:10]
    low, high = torch.full((10,), 1e-9), torch.full((10,), 1e-8)
    power = torch.linspace(-0.4, 0.4, 10)
    model.pixel_scale.set_(Scale(torch.ones(10), power, low=low, high=high))
    path = export(run, tmp_path / "x.safetensors", precision, calibration=calibration_state(model))
    found, expected = load_model(path).model.predict(frames), model.predict(frames)
    torch.testing.assert_close(found.var.sum((2, 3)), expected.var.sum((2, 3)), rtol=0.05, atol=0)


def test_a_training_leaves_the_calibration_of_its_start_behind(
    tiny: Make, run: Path, tmp_path: Path
) -> None:
    model = load_model(run).model
    model.future.readout.set_gains_({"weight": torch.full((model.future.readout.out_features,), 2)})
    model.pixel_scale.set_(Scale(torch.full((10,), 3.0)))
    start = export(run, tmp_path / "start.safetensors", calibration=calibration_state(model))
    config = tiny(steps=2, output=str(tmp_path / "next"), initial=str(start))
    begun = train(config, max_seconds=0, show="none")
    assert begun.step == 1
    assert not calibration_state(begun.model)
    assert train(config, resume=True, show="none").step == 2


def test_an_export_may_be_named_as_checkpoints_are(run: Path, tmp_path: Path) -> None:
    path = export(run, tmp_path / "step-mine.safetensors")
    path.with_suffix(".json").write_text("{}")
    assert load_model(path).step == 2
