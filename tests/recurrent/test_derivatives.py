"""Gradients beyond one backward pass: again, several at once, through checkpoints and copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, KERNELS
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import spgru
from spgru.nn.contexts import at_mean

pytest.importorskip("triton")

LAYERS: dict[str, Callable[..., Any]] = {
    "GRU": lambda **options: spgru.GRU(3, 4, bidirectional=True, **options),
    "GRU-at-once": lambda **options: spgru.GRU(3, 16, **options),
    "LSTM": lambda **options: spgru.LSTM(3, 4, **options),
    "RNN": lambda **options: spgru.RNN(3, 4, **options),
    "reset-before": lambda **options: spgru.GRU(3, 4, reset_after=False, **options),
}
CASES = [
    (name, backend)
    for name in LAYERS
    for backend in KERNELS
    if (name, backend) != ("reset-before", "triton")
]


def pair(name: str, backend: str) -> tuple[Any, Any]:
    """A layer on a kernel, and its float64 reference."""
    make = LAYERS[name]
    layer = make(backend=backend, device=DEVICE)
    truth = make(backend="reference", dtype=torch.float64, device=DEVICE)
    truth.load_state_dict(layer.state_dict())
    return layer, truth


def total(layer: Any, x: torch.Tensor) -> torch.Tensor:
    output, final = layer(x)
    states = final if isinstance(final, tuple) else (final,)
    parts = [*output, *(part for state in states for part in state)]
    return sum(((k + 1) * part.square().sum() for k, part in enumerate(parts)), x.new_zeros(()))


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_second_derivatives_are_those_of_float64(name: str, backend: str) -> None:
    x, found = torch.randn(3, 2, 3), []
    for layer in pair(name, backend):
        weights = list(layer.parameters())
        value = x.to(DEVICE, weights[0].dtype).requires_grad_()
        (first,) = torch.autograd.grad(total(layer, value), value, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), [value, *weights])
        found.append([first.detach(), *second])
    for got, truth in zip(*found, strict=True):
        assert truth.abs().max() > 1e-6
        assert (got - truth).norm() / truth.norm() < 1e-4


@pytest.mark.parametrize("backend", KERNELS)
def test_second_derivatives_of_packed_sequences(backend: str) -> None:
    sequences, found = [torch.randn(n, 3) for n in (3, 1)], []
    for layer in pair("LSTM", backend):
        weights = list(layer.parameters())
        packed = pack_sequence([part.to(DEVICE, weights[0].dtype) for part in sequences])
        output, (_, cell) = layer(packed)
        loss = output.mean.data.square().sum() + output.var.data.sum() + cell.var.square().sum()
        first = torch.autograd.grad(loss, weights, create_graph=True)
        size = sum(part.square().sum() for part in first)
        found.append(torch.autograd.grad(size, weights))
    for got, truth in zip(*found, strict=True):
        assert (got - truth).norm() / truth.norm() < 1e-4


def test_second_derivatives_of_plain_numbers() -> None:
    x, found = torch.randn(3, 2, 3), []
    for layer in pair("GRU", "triton"):
        weight = layer.weight_hh_l0
        with at_mean(layer):
            loss = layer(x.to(DEVICE, weight.dtype))[0].mean.square().sum()
        (first,) = torch.autograd.grad(loss, weight, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), weight)[0])
    assert (found[0] - found[1]).norm() / found[1].norm() < 1e-5


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_several_gradients_at_once(name: str, backend: str) -> None:
    x, found = torch.randn(2, 1, 3), []
    for layer in pair(name, backend):
        dtype = next(layer.parameters()).dtype
        value = x.to(DEVICE, dtype)

        def outputs(v: torch.Tensor, layer: Any = layer) -> torch.Tensor:
            return layer(v)[0].mean[-1, 0, -3:]

        jacobians = [
            torch.autograd.functional.jacobian(outputs, value, vectorize=many)
            for many in (True, False)
        ]
        torch.testing.assert_close(*jacobians, rtol=1e-4, atol=1e-6)
        found.append(jacobians[0])
    assert found[1].abs().max() > 0.01
    torch.testing.assert_close(found[0].double(), found[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("backend", KERNELS)
def test_a_gradient_penalty_trains(backend: str) -> None:
    """What `create_graph` is mostly for: the penalty's gradient reaches every weight."""
    layer, _ = pair("GRU", backend)
    x = torch.randn(3, 2, 3, device=DEVICE, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x)[0].mean.sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.filterwarnings("ignore:.*use_reentrant.*")
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("backend", KERNELS)
def test_checkpoints_change_nothing(backend: str, use_reentrant: bool) -> None:
    layer, _ = pair("LSTM", backend)
    x, found = torch.randn(3, 2, 3, device=DEVICE), []
    for through in (False, True):
        value = x.clone().requires_grad_()

        def loss(v: torch.Tensor) -> torch.Tensor:
            return total(layer, v)

        result = checkpoint(loss, value, use_reentrant=use_reentrant) if through else loss(value)
        layer.zero_grad()
        result.backward()
        found.append([value.grad, *(p.grad.clone() for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_copy_of_a_used_layer_is_its_own(backend: str, frozen: bool) -> None:
    layer = spgru.GRU(3, 4, backend=backend, device=DEVICE).requires_grad_(not frozen)
    x = torch.randn(3, 2, 3, device=DEVICE)
    before = layer(x)[0].mean.detach().clone()
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight_hh_l0.add_(1.0)
    assert torch.equal(layer(x)[0].mean, before)
    assert (twin(x)[0].mean - before).abs().max() > 0.01
