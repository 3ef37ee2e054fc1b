"""`spgru.to_onnx`: the same numbers in onnxruntime, at any length and batch size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.nn.output_scale import attach_scale
from spgru.nn.scale import Scale

runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIZES = [(6, 4), (1, 1), (9, 2)]
"""Length and batch, that of the example first."""


class Unpacking(nn.Module):
    """Written for tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 4, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        forward, backward = self.rnn(x)[1]
        return forward - backward


class Forecaster(nn.Module):
    """Reads a series, and then its own forecasts."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.gru, self.head, self.horizon = spgru.GRU(1, 8), spgru.Linear(8, 1), horizon

    def forward(self, x: Tensor) -> Moments:
        _, state = self.gru(x)
        y = self.head(state[0])
        found = [y]
        for _ in range(self.horizon - 1):
            out, state = self.gru.step(y, state)
            y = self.head(out)
            found.append(y)
        return spgru.stack(found)


MODULES: dict[str, Any] = {
    # Weights as uncertain as these lead through both forms of the activations' moments.
    "gru": lambda: spgru.GRU(3, 5, weight_std=0.8),
    "lstm": lambda: spgru.LSTM(3, 5, weight_std=0.8),
    # How layers and directions are put together does not depend on the cell; this one is small.
    "rnn, stacked, both directions": lambda: spgru.RNN(
        3, 5, nonlinearity="relu", num_layers=2, bidirectional=True, weight_std=0.8
    ),
    "gru, stacked, both directions": lambda: spgru.GRU(3, 5, 2, bidirectional=True, weight_std=0.8),
    "lstm, stacked, both directions": lambda: spgru.LSTM(
        3, 5, 2, bidirectional=True, weight_std=0.8
    ),
    "converted, unpacking its state": lambda: spgru.convert(Unpacking(), weight_std=0.1),
    "layers": lambda: nn.Sequential(spgru.Linear(3, 6), nn.ReLU(), spgru.Linear(6, 2)),
}


def run(path: Path, x: Tensor | Moments) -> list[Tensor]:
    tensors = {"x": x} if isinstance(x, Tensor) else {"x": x.mean, "x_var": x.var}
    found = runtime.InferenceSession(path).run(None, {k: v.numpy() for k, v in tensors.items()})
    return [torch.from_numpy(part) for part in found]


SLOW = ("gru, stacked, both directions", "lstm, stacked, both directions")
"""Their export takes half a minute: with --full."""


@pytest.mark.parametrize("name", MODULES)
def test_parity_at_every_size(name: str, tmp_path: Path, full: bool) -> None:
    if name in SLOW and not full:
        pytest.skip("runs with --full")
    module = MODULES[name]()
    uncertain = name == "gru"
    if uncertain:  # calibrated, too
        found = {key: torch.rand(shape) for key, shape in module.gain_shapes().items()}
        module.set_gains_({**found, "weight_ih_l0": 1 + torch.rand(15)})

    def example(length: int, batch: int) -> Tensor | Moments:
        x = 3 * torch.randn(length, batch, 3)
        return Moments(x, torch.rand_like(x)) if uncertain else x

    path = spgru.to_onnx(module, tmp_path / "module.onnx", example(*SIZES[0]))
    assert module.training
    for size in SIZES:
        x = example(*size)
        with torch.no_grad():
            result = module(x)
        output = result[0] if isinstance(result, tuple) else result
        for got, wanted in zip(run(path, x), output, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_forecaster_that_reads_itself_back(tmp_path: Path) -> None:
    model = Forecaster(2)
    attach_scale(model).set_(Scale(torch.tensor([1.0, 2.0])))
    path = spgru.to_onnx(model, tmp_path / "model.onnx", torch.randn(6, 4, 1))
    for length, batch in SIZES:
        x = torch.randn(length, batch, 1)
        with torch.no_grad():
            expected = model(x)
        for got, wanted in zip(run(path, x), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = spgru.nn.Embedding(7, 3), spgru.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.embedding(tokens))


OTHER_INPUTS: dict[str, tuple[Any, dict[str, Any], list[Tensor]]] = {
    # It computes a "mean" of its own, beside the output of that name.
    "normalised": (
        lambda: nn.Sequential(spgru.Linear(3, 4), spgru.nn.LayerNorm(4)),
        {},
        [torch.randn(5, 3), torch.randn(2, 3)],
    ),
    "tokens, any length": (Tokens, {}, [torch.randint(7, (2, 5)), torch.randint(7, (3, 9))]),
    "far from the bend of relu": (
        lambda: nn.Sequential(spgru.Linear(3, 6, weight_std=0.1), nn.ReLU()),
        {},
        [torch.randn(5, 3), torch.linspace(-200, 200, 60).reshape(20, 3)],
    ),
    "time last": (
        lambda: spgru.nn.Conv1d(2, 3, 3, padding=1),
        {"free": (0, 2)},
        [torch.randn(4, 2, 5), torch.randn(3, 2, 9)],
    ),
}


@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_other_inputs(name: str, tmp_path: Path) -> None:
    make, options, inputs = OTHER_INPUTS[name]
    module = make()
    path = spgru.to_onnx(module, tmp_path / "module.onnx", inputs[0], **options)
    for x in inputs:
        with torch.no_grad():
            expected = module(x)
        for got, wanted in zip(run(path, x), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


STEP = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
data = numpy.load(sys.argv[2])
names = [item.name for item in session.get_inputs()][1:]
state = {name: numpy.zeros((2, 3, 5), "float32") for name in names}
for x in data:
    mean, var, *after = session.run(None, {"x": x, **state})
    state = dict(zip(names, after))
numpy.savez(sys.argv[3], mean=mean, var=var, **state)
assert "torch" not in sys.modules
"""


def test_a_stream_in_a_process_without_torch(tmp_path: Path) -> None:
    lstm, x = spgru.LSTM(3, 5, num_layers=2), torch.randn(7, 3, 3)
    spgru.to_onnx(lstm, tmp_path / "step.onnx", torch.randn(2, 3), stream=True)
    np.save(tmp_path / "x.npy", x.numpy())
    arguments = [str(tmp_path / name) for name in ("step.onnx", "x.npy", "out.npz")]
    subprocess.run([sys.executable, "-c", STEP, *arguments], check=True)
    found = np.load(tmp_path / "out.npz")
    with torch.no_grad():
        output, (h, c) = lstm(x)
    expected = {"mean": output.mean[-1], "var": output.var[-1]}
    expected |= {"h_mean": h.mean, "h_var": h.var, "c_mean": c.mean, "c_var": c.var}
    for name, wanted in expected.items():
        torch.testing.assert_close(torch.from_numpy(found[name]), wanted, rtol=1e-5, atol=1e-6)


class Remembering(nn.Module):
    """A step whose state has parts of several layouts, the last forecasts among them."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.gru, self.head, self.parts = spgru.GRU(2, 4), spgru.Linear(4, 2), parts

    def step(self, x: Any, state: Any = None) -> Any:
        before = (None,) * self.parts if state is None else state
        last = before[1] if before[1] is not None else Moments(0 * x, 0 * x)
        output, hidden = self.gru.step(x + last, before[0])
        value = self.head(output)
        return value, (hidden, value, value * 0.5)[: self.parts]


@pytest.mark.parametrize("parts", [2, 3])
def test_a_stream_of_any_batch_whatever_its_state(tmp_path: Path, parts: int) -> None:
    model = Remembering(parts)
    path = spgru.to_onnx(model, tmp_path / "step.onnx", torch.randn(3, 2), stream=True)
    session = runtime.InferenceSession(path)
    names = [item.name for item in session.get_inputs()][1:]
    assert names[0] == ("h_mean" if parts == 2 else "state0_mean")
    for batch in (1, 5):
        shapes = [(1, batch, 4)] * 2 + [(batch, 2)] * (2 * parts - 2)
        given = {n: np.zeros(s, "float32") for n, s in zip(names, shapes, strict=True)}
        state = None
        for x in torch.randn(3, batch, 2):
            mean, var, *after = session.run(None, {"x": x.numpy(), **given})
            given = dict(zip(names, after, strict=True))
            with torch.no_grad():
                expected, state = model.step(x, state)
            torch.testing.assert_close(torch.from_numpy(mean), expected.mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(torch.from_numpy(var), expected.var, rtol=1e-5, atol=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"must end in \.onnx"):
        spgru.to_onnx(spgru.Linear(3, 2), tmp_path / "model", x)
    with pytest.raises(TypeError, match="Linear has no step"):
        spgru.to_onnx(spgru.Linear(3, 2), tmp_path / "model.onnx", x, stream=True)
    with pytest.raises(TypeError, match="without Moments"):
        spgru.to_onnx(nn.Linear(3, 2), tmp_path / "model.onnx", x)
    with pytest.raises(ValueError, match=r"free= \(of \(B, C, T\) 0 and 2\)"):
        spgru.to_onnx(spgru.nn.Conv1d(2, 3, 3), tmp_path / "m.onnx", torch.randn(4, 2, 5))
    with pytest.raises(ValueError, match="free names dimension 3, but x has 2"):
        spgru.to_onnx(spgru.Linear(3, 2), tmp_path / "m.onnx", x, free=(3,))


def test_several_inputs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    x: Any = (torch.randn(4, 5, 1), torch.randn(4, 3))
    with pytest.raises(TypeError, match="x must be a Tensor or Moments, got tuple"):
        spgru.to_onnx(spgru.Linear(1, 1), tmp_path / "a.onnx", x)
