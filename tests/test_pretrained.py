"""Modules as folders, saved and loaded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru.families import Gamma
from spgru.models import ModelConfig, Predictor
from spgru.models.conv_recurrent import ConvGRUCell
from spgru.nn.output_scale import attach_scale
from spgru.nn.scale import Scale
from spgru.pretrained import PretrainedError

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gru": (lambda: spgru.GRU(3, 5, 2, batch_first=True, bidirectional=True), (2, 4, 3)),
    "gru, reset before": (lambda: spgru.GRU(3, 5, reset_after=False, rule="paper"), (4, 2, 3)),
    "lstm": (lambda: spgru.LSTM(3, 5, proj_size=2, weight_std=torch.rand(())), (4, 2, 3)),
    "rnn": (lambda: spgru.RNN(3, 5, nonlinearity="relu", bias=False), (4, 2, 3)),
    "cell": (lambda: spgru.RNNCell(3, 5), (2, 3)),
    "linear": (lambda: spgru.Linear(3, 4, parameterization="natural"), (2, 3)),
    "gamma": (lambda: spgru.GRU(3, 5, family=Gamma(c=0.7, gamma=1.5)), (4, 2, 3)),
    "convolution": (lambda: spgru.Conv2d(2, 3, (3, 1), padding="same"), (1, 2, 5, 5)),
    "along time": (lambda: spgru.nn.Conv1d(2, 3, 3, padding=1), (1, 2, 6)),
    "normalisation": (lambda: spgru.nn.LayerNorm(3), (2, 3)),
    "head": (lambda: spgru.nn.GaussianHead(3, 2, bias=False), (2, 3)),
    "float64": (lambda: spgru.Linear(3, 4, dtype=torch.float64), (2, 3)),
}


class Model(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gru, self.head = spgru.GRU(3, size), spgru.Linear(size, 1)

    def forward(self, x: Tensor) -> spgru.Moments:
        result: spgru.Moments = self.head(self.gru(x)[0])
        return result


def leaves(value: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_same_again(name: str, tmp_path: Path) -> None:
    make, shape = LAYERS[name]
    layer = make().eval()
    found = spgru.from_pretrained(spgru.save_pretrained(layer, tmp_path / "layer"))
    assert type(found) is type(layer)
    assert repr(found) == repr(layer)
    x = torch.rand(shape, dtype=next(layer.parameters()).dtype)
    for a, b in zip(leaves(found(x)), leaves(layer(x)), strict=True):
        assert torch.equal(a, b)
    assert not found.training


def test_a_calibration_is_saved_too(tmp_path: Path) -> None:
    model, x = Model(4), torch.rand(5, 2, 3)
    model.gru.set_gains_({"weight_hh_l0": torch.full((12,), 2.0)})
    attach_scale(model).set_(Scale(torch.tensor([3.0])))
    spgru.save_pretrained(model, tmp_path / "model", config={"size": 4})
    found = spgru.from_pretrained(tmp_path / "model", Model)
    assert torch.equal(found(x).var, model(x).var)
    spgru.uncalibrate(model)
    assert not torch.equal(found(x).var, model(x).var)


def test_parts_keep_their_own_precisions(tmp_path: Path) -> None:
    model = Model(4)
    model.head.double()
    found = spgru.from_pretrained(
        spgru.save_pretrained(model, tmp_path, config={"size": 4}), cls=Model
    )
    assert found.gru.weight_ih_l0.dtype == torch.float32
    assert found.head.weight.dtype == torch.float64
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


class Plain(nn.Module):
    """Nothing in it knows of spgru; one layer is used twice, one is kept."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, size, 2, batch_first=True, bidirectional=True)
        self.kept = nn.Linear(3, 3)
        twice = nn.Linear(2 * size, 2 * size)
        self.head = nn.Sequential(twice, nn.ReLU(inplace=True), twice, nn.LayerNorm(2 * size))

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(self.kept(x))[0])


def test_a_converted_network_is_the_same_again(tmp_path: Path) -> None:
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    model = Plain(4).double()
    model.lstm.weight_hh_l0.requires_grad_(False)
    y = torch.randn(4, 5, 8, dtype=torch.float64)
    twin = spgru.convert(model, data=[(x, y)], keep=["kept"]).eval()
    spgru.calibrate(twin, x, y, progress=False)
    folder = spgru.save_pretrained(twin, tmp_path / "twin", config={"size": 4})
    found = spgru.from_pretrained(folder, Plain)
    assert type(found.kept) is nn.Linear
    assert found.head[0] is found.head[2]
    with torch.no_grad():
        for got, wanted in zip(found(x), twin(x), strict=True):
            assert torch.equal(got, wanted)
    config = folder / "config.json"
    document = json.loads(config.read_text())
    document["layers"]["lstm"]["config"] = {}
    config.write_text(json.dumps(document))
    with pytest.raises(PretrainedError, match="lstm cannot be built as saved"):
        spgru.from_pretrained(folder, Plain)


def test_models_of_ours(tmp_path: Path) -> None:
    model = Predictor(ModelConfig(hidden_size=4, height=8, width=8))
    found = spgru.from_pretrained(spgru.save_pretrained(model, tmp_path / "model"))
    frames = torch.rand(3, 2, 8, 8)
    assert torch.equal(found.predict(frames).var, model.predict(frames).var)
    with pytest.raises(
        PretrainedError, match=r"holds a spgru\.models\.video\.Predictor, not a Model"
    ):
        spgru.from_pretrained(tmp_path / "model", Model)


def test_what_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(PretrainedError, match="does not say how it was built; pass config="):
        spgru.save_pretrained(Model(4), folder)
    with pytest.raises(PretrainedError, match="JSON cannot"):
        spgru.save_pretrained(Model(4), folder, config={"size": torch.ones(1)})
    with pytest.raises(PretrainedError, match="is no folder; give one"):
        spgru.from_pretrained(folder)
    spgru.save_pretrained(Model(4), folder, config={"size": 4})
    with pytest.raises(PretrainedError, match="not of this package; pass the class"):
        spgru.from_pretrained(folder)
    config = folder / "config.json"
    document = json.loads(config.read_text())
    for change, message in (
        ({"size": 5}, r"weights do not fit test_pretrained\.Model \(.* as built, and 9 more\)$"),
        ({"width": 4}, "cannot be built as saved"),
    ):
        config.write_text(json.dumps({**document, "config": change}))
        with pytest.raises(PretrainedError, match=message):
            spgru.from_pretrained(folder, Model)


@pytest.mark.parametrize(
    ("make", "config", "reason"),
    [
        (
            lambda: nn.Sequential(spgru.Linear(3, 8), nn.Tanh(), spgru.Linear(8, 2)),
            {},
            r"Sequential \(0\.weight: \(8, 3\) saved, none as built, and 11 more\)",
        ),
        (lambda: nn.ModuleList([spgru.GRU(3, 2)]), {}, "do not fit .*ModuleList"),
        (lambda: nn.Sequential(spgru.GRU(3, 2)), {"args": []}, "unexpected keyword argument"),
        (lambda: Model(4), {"size": 5}, r"do not fit test_pretrained\.Model"),
        (lambda: Model(4), {}, "missing 1 required positional argument"),
    ],
)
def test_what_could_not_be_read_again_is_not_saved(
    make: Callable[[], nn.Module], config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(PretrainedError, match=f"^not saved: .*{reason}") as caught:
        spgru.save_pretrained(make(), tmp_path / "model", config=config)
    message = str(caught.value)
    assert "pass config= with which the class builds this module" in message
    assert message.endswith("or save module.state_dict()")
    assert "\n" not in message
    assert not (tmp_path / "model").exists()


class Stack(nn.Sequential):
    """Takes modules, but says how to build them."""

    def pretrained_config(self) -> dict[str, Any]:
        return {"sizes": [layer.in_features for layer in self] + [self[-1].out_features]}

    @classmethod
    def from_pretrained_config(cls, config: dict[str, Any]) -> Stack:
        sizes = config["sizes"]
        return cls(*(spgru.Linear(*pair) for pair in itertools.pairwise(sizes)))


def test_a_class_may_say_how_it_is_built(tmp_path: Path) -> None:
    model, x = Stack(spgru.Linear(3, 4), spgru.Linear(4, 2)), torch.randn(5, 3)
    found = spgru.from_pretrained(spgru.save_pretrained(model, tmp_path / "model"), Stack)
    assert torch.equal(found(x).var, model(x).var)


def test_saving_leaves_random_numbers_alone(tmp_path: Path) -> None:
    model = Model(4)
    state = torch.get_rng_state()
    spgru.save_pretrained(model, tmp_path / "model", config={"size": 4})
    assert torch.equal(torch.get_rng_state(), state)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = spgru.save_pretrained(spgru.Linear(2, 2), tmp_path / "layer")
    config = folder / "config.json"
    document = json.loads(config.read_text())
    for change, message in (
        ({"format": "other"}, "is not of spgru-pretrained-1"),
        ({"module": "os", "class": "system"}, "not of this package"),
        ({"module": "spgru.nn.linear", "class": "Nonlinear"}, "this version does not have"),
        ({"module": "spgru.gone"}, "this version does not have"),
    ):
        config.write_text(json.dumps({**document, **change}))
        with pytest.raises(PretrainedError, match=message):
            spgru.from_pretrained(folder)
    config.write_text("{")
    with pytest.raises(PretrainedError, match="is damaged"):
        spgru.from_pretrained(folder)
    config.write_text(json.dumps(document))
    (folder / "model.safetensors").write_bytes(b"12345678901")
    with pytest.raises(PretrainedError, match="is damaged"):
        spgru.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match="cannot be read"):
        spgru.from_pretrained(folder)


def test_a_convolutional_cell(tmp_path: Path) -> None:
    cell = ConvGRUCell(2, 4, 3)
    found = spgru.from_pretrained(spgru.save_pretrained(cell, tmp_path / "cell"))
    x = torch.rand(1, 2, 5, 5)
    assert torch.equal(found(x).var, cell(x).var)
