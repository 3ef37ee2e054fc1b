"""Networks that come with the package, by name."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest
import torch

from spgru.calibration import is_calibrated
from spgru.data import MovingMNIST
from spgru.models import ModelConfig
from spgru.training import (
    CheckpointError,
    TrainConfig,
    export,
    load_exported,
    load_model,
    packaged,
    packaged_names,
    train,
)
from spgru.training.evaluation import evaluation_sets, score

NAME = "small-one"
MEGABYTE = 1_000_000


@pytest.fixture
def run(tiny: Callable[..., TrainConfig]) -> Path:
    """A run of one step."""
    return train(tiny(steps=1), show="none").folder


@pytest.fixture
def weights(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one network in it; the current folder is empty."""
    folder, here = tmp_path / "weights", tmp_path / "here"
    monkeypatch.setattr(packaged, "WEIGHTS", folder)
    export(run, folder / f"{NAME}.safetensors", "float16")
    here.mkdir()
    monkeypatch.chdir(here)
    return folder


def test_a_name_is_the_packaged_file(weights: Path, tiny: Callable[..., TrainConfig]) -> None:
    assert packaged_names() == [NAME]
    expected = load_model(weights / f"{NAME}.safetensors")
    found = load_model(NAME)
    assert (found.config, found.step) == (expected.config, 1)
    again = export(NAME, "again.safetensors")
    started = train(tiny(initial=NAME, steps=1, output="started"), max_seconds=0, show="none")
    first = load_model(started.folder / "checkpoints" / "step-00000000.json")
    for model in (found.model, load_exported(NAME), load_exported(again), first.model):
        for name, tensor in expected.model.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name


def test_a_file_or_folder_comes_before_a_name(
    weights: Path, tiny: Callable[..., TrainConfig]
) -> None:
    train(tiny(model=ModelConfig(hidden_size=4), steps=2, output=NAME), show="none")
    assert load_model(NAME).step == 2
    assert packaged_names() == [NAME]


def test_an_unknown_name_lists_the_known_ones(weights: Path) -> None:
    export(NAME, weights / "another.safetensors")
    message = (
        rf"^large-one does not exist; .*, or the name of a packaged network \(another, {NAME}\)$"
    )
    for load in (load_model, load_exported):
        with pytest.raises(CheckpointError, match=message):
            load("large-one")
    # A name is a name, not a way to a file.
    for wrong in (f"{NAME}.safetensors", f"../here/{NAME}"):
        with pytest.raises(CheckpointError, match="does not exist"):
            load_model(wrong)


@pytest.mark.parametrize("exists", [True, False])
def test_a_package_without_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    folder = tmp_path / "weights"
    monkeypatch.setattr(packaged, "WEIGHTS", folder)
    if exists:
        folder.mkdir()
        (folder / "README.md").touch()
    assert packaged_names() == []
    with pytest.raises(CheckpointError, match=r"a checkpoint or an exported file$"):
        load_model(NAME)


def test_any_json_may_stand_beside_an_export(weights: Path) -> None:
    (weights / f"{NAME}.json").write_text('{"scores": []}')
    assert load_model(NAME).step == load_model(weights / f"{NAME}.safetensors").step == 1


def test_what_the_package_holds() -> None:
    """Small, whole, and told how it was made."""
    readme = (packaged.WEIGHTS / "README.md").read_text()
    for name in packaged_names():
        assert (packaged.WEIGHTS / f"{name}.safetensors").stat().st_size < 16 * MEGABYTE
        assert f"\n| {name} | `spgru " in readme
        load_model(name)


def test_the_folder_is_in_the_wheel() -> None:
    project = Path(__file__).parents[2]
    assert packaged.WEIGHTS.samefile(project / "src" / "spgru" / "weights")
    settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"]
    file = PurePath("weights", f"{NAME}.safetensors")
    assert any(file.match(pattern) for pattern in settings["package-data"]["spgru"])


@pytest.mark.long
def test_the_packaged_predictor_of_two_digits() -> None:
    """As good as its scores say, less sure of later frames and of three digits than of two.

    On all 10,000 sequences it has 168.4 nats; here there are 2.
    """
    model = load_model("two-digits-conv").model
    assert is_calibrated(model)
    _, batches = next(evaluation_sets("two-digits", 2, 2, torch.device("cpu")))
    two = score(model, batches)
    assert two.cross_entropy < 180
    assert two.by_frame["variance"] == sorted(two.by_frame["variance"])
    assert two.variance > 5 * two.closed_variance
    three = score(model, [MovingMNIST(2, 3, split="test", seed=1).batch(0)])
    assert three.closed_variance > 1.2 * two.closed_variance
    assert three.variance > 1.05 * two.variance
