"""What has no kernel of its own gives on a GPU what it gives on a CPU in float64, gradients too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.forecast import Forecaster

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
F64 = {"dtype": torch.float64}
TOLERANCES = {torch.float64: (1e-9, 1e-11), torch.float32: (2e-3, 2e-5)}
"""Relative and absolute; float32 rounds sums over time and features, and so do its gradients."""


class Tagger(nn.Module):
    """All new layers in a row: integers to embeddings, filters, a norm, a state, a noisy value."""

    def __init__(self) -> None:
        super().__init__()
        self.words = spgru.Embedding(7, 6, padding_idx=0, **F64)
        self.filters = spgru.Conv1d(6, 8, 3, padding=1, padding_mode="circular", **F64)
        self.norm = spgru.LayerNorm(8, **F64)
        self.gru = spgru.GRU(8, 5, batch_first=True, **F64)
        self.head = spgru.nn.GaussianHead(5, 2, **F64)

    def forward(self, index: Tensor) -> Moments:
        x = self.filters(self.words(index).transpose(1, 2)).transpose(1, 2)
        return self.head(self.gru(self.norm(x))[0])


class Tracker(nn.Module):
    """A step with a state, a head and noise, for streams."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = spgru.LSTM(3, 6, weight_std=0.1, **F64)
        self.head = spgru.nn.GaussianHead(6, 2, weight_std=0.1, **F64)

    def forward(self, x: Tensor | Moments) -> Moments:
        return self.head(self.lstm(x)[0])

    def step(self, x_t: Any, state: Any = None) -> tuple[Moments, Any]:
        output, state = self.lstm.step(x_t, state)
        return self.head(output), state


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


def uncertain(*shape: int) -> Moments:
    return Moments(numbers(*shape), numbers(*shape, seed=1).square())


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "conv1d": (lambda: spgru.Conv1d(4, 6, 3, 2, 1, groups=2, **F64), lambda: numbers(3, 4, 9)),
    "conv1d of moments": (
        lambda: spgru.Conv1d(4, 5, 3, padding="same", dilation=2, padding_mode="reflect", **F64),
        lambda: uncertain(3, 4, 9),
    ),
    "embedding": (
        lambda: spgru.Embedding(7, 5, padding_idx=2, **F64),
        lambda: torch.arange(12).view(3, 4) % 7,
    ),
    "layer norm": (lambda: spgru.LayerNorm((4, 6), **F64), lambda: numbers(3, 4, 6)),
    "layer norm of moments": (lambda: spgru.LayerNorm(6, **F64), lambda: uncertain(3, 4, 6)),
    "gaussian head": (lambda: spgru.nn.GaussianHead(6, 2, **F64), lambda: uncertain(5, 6)),
    "all together": (Tagger, lambda: torch.arange(30).view(3, 10) % 7),
}


def moved(value: Any, dtype: torch.dtype) -> Any:
    """To the GPU; floating point of that type."""
    if isinstance(value, Moments):
        return Moments(*(moved(part, dtype) for part in value))
    return value.to(DEVICE, dtype) if value.is_floating_point() else value.to(DEVICE)


def differentiable(value: Any) -> list[Tensor]:
    parts = list(value) if isinstance(value, Moments) else [value]
    return [part.requires_grad_() for part in parts if part.is_floating_point()]


def loss_of(y: Moments) -> Tensor:
    """Every entry of mean and variance counts, each differently."""
    count = torch.arange(1, y.mean.numel() + 1, device=y.device, dtype=y.dtype).view(y.shape)
    return (y.mean * count.sin()).sum() + (y.var * count.cos()).sum()


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    relative, absolute = TOLERANCES[dtype]
    assert found.device.type == torch.device(DEVICE).type
    scale = max(expected.abs().max().item(), 1e-30)
    torch.testing.assert_close(
        found.detach().cpu().double(), expected.detach(), rtol=relative, atol=absolute * scale
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    make, example = CASES[name]
    layer, x = make(), example()
    other, x_other = copy.deepcopy(layer).to(DEVICE, dtype), moved(x, dtype)
    leaves = [*differentiable(x), *layer.parameters()]
    others = [*differentiable(x_other), *other.parameters()]
    y, y_other = layer(x), other(x_other)
    close(y_other.mean, y.mean, dtype)
    close(y_other.var, y.var, dtype)
    expected = torch.autograd.grad(loss_of(y), leaves)
    found = torch.autograd.grad(loss_of(y_other), others)
    for one, two in zip(found, expected, strict=True):
        close(one, two, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ["moments", "integers"])
def test_the_response_and_its_gradients(name: str, dtype: torch.dtype) -> None:
    model: nn.Module = Tracker() if name == "moments" else Tagger()
    x: Any = uncertain(6, 3, 3) if name == "moments" else torch.arange(18).view(3, 6) % 7
    other, x_other = copy.deepcopy(model).to(DEVICE, dtype), moved(x, dtype)
    y, sources = spgru.respond(model, x, sources=True)
    y_other, sources_other = spgru.respond(other, x_other, sources=True)
    close(y_other.mean, y.mean, dtype)
    close(y_other.var, y.var, dtype)
    assert set(sources) == set(sources_other)
    for source, part in sources.items():
        # A source that matters little may round in the digits of those that matter.
        relative, absolute = TOLERANCES[dtype]
        torch.testing.assert_close(
            sources_other[source].detach().cpu().double(), part.detach(),
            rtol=relative, atol=max(absolute, 1e-12) * y.var.max().item(),
        )  # fmt: skip
    expected, found = (
        torch.autograd.grad(
            loss_of(spgru.respond(m, inputs, create_graph=True)), list(m.parameters())
        )
        for m, inputs in ((model, x), (other, x_other))
    )
    for one, two in zip(found, expected, strict=True):
        close(one, two, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("learned", [0, 3])
def test_a_stream(learned: int, dtype: torch.dtype) -> None:
    """Of certain inputs: signs of uncertain ones are drawn on the device."""
    model, x = Tracker(), numbers(8, 2, 3)
    other, x_other = copy.deepcopy(model).to(DEVICE, dtype), moved(x, dtype)
    streams = spgru.Stream(model, directions=8), spgru.Stream(other, directions=8)
    if learned:
        for stream, sequences in zip(streams, (x, x_other), strict=True):
            stream.learn(sequences, learned)
    (y, _), (y_other, state) = streams[0](x), streams[1](x_other)
    close(y_other.mean, y.mean, dtype)
    if learned and dtype == torch.float32:
        # Principal directions of nearly equal weight may turn by rounding.
        torch.testing.assert_close(y_other.var.cpu().double(), y.var, rtol=0.2, atol=1e-4)
    else:
        close(y_other.var, y.var, dtype)
    assert all(way.device.type == torch.device(DEVICE).type for way in state.tangents)


def test_a_stream_of_uncertain_inputs() -> None:
    model = copy.deepcopy(Tracker()).to(DEVICE, torch.float32)
    x = moved(uncertain(20, 4, 3), torch.float32)
    y, _ = spgru.Stream(model, directions=256)(x)
    expected = spgru.respond(model, x)
    # 256 directions have a relative standard error of at most 0.09 in an entry.
    assert 0.85 < (y.var.mean() / expected.var.mean()).item() < 1.15


def series() -> dict[str, Any]:
    random, steps = np.random.default_rng(0), np.arange(120)
    found = {
        f"s{k}": 5 + np.sin(2 * np.pi * (steps + k) / 12) + 0.2 * random.standard_normal(120)
        for k in range(4)
    }
    found["s1"][[7, 30, 31]] = np.nan
    return found


@pytest.mark.parametrize("mode", ["direct", "fed-back"])
def test_a_forecaster_changes_devices(mode: Any, tmp_path: Path) -> None:
    y, random = series(), np.random.default_rng(1)
    known = {name: random.standard_normal((126, 1)) for name in y}
    settings: Any = {"steps": 20, "hidden_size": 8, "mode": mode, "progress": False}
    past = {name: x[:120] for name, x in known.items()}
    future = {
        name: Moments(torch.tensor(x[120:]), torch.full((6, 1), 0.3, **F64))
        for name, x in known.items()
    }
    forecaster = Forecaster(6, 36, 12, device="cpu", **settings).fit(y, past)
    forecaster.save(tmp_path / "cpu")
    other = Forecaster.load(tmp_path / "cpu", DEVICE)
    assert next(other.network.parameters()).device.type == torch.device(DEVICE).type
    a, b = (f.predict(X=future, parts=True) for f in (forecaster, other))
    np.testing.assert_allclose(b.mean, a.mean, rtol=1e-4)
    np.testing.assert_allclose(b.std, a.std, rtol=1e-3)
    for name, part in a.parts.items():
        np.testing.assert_allclose(b.parts[name], part, rtol=1e-2, atol=1e-4 * a.var.max())
    fitted = Forecaster(6, 36, 12, device=DEVICE, **settings).fit(y, past)
    assert fitted.report is not None
    assert str(fitted.report)
    c = fitted.predict(X=future)
    # The same windows in the same order; training magnifies rounding.
    np.testing.assert_allclose(c.mean, a.mean, rtol=0.05)
    fitted.save(tmp_path / "gpu")
    d = Forecaster.load(tmp_path / "gpu", "cpu").predict(X=future)
    np.testing.assert_allclose(d.mean, c.mean, rtol=1e-4)
    np.testing.assert_allclose(d.std, c.std, rtol=1e-3)
