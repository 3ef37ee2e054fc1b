"""Tensors without values (meta, fake), copies, and checkpointing, as with `torch.nn`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import spgru
from spgru import Moments

RECURRENT = [spgru.GRU, spgru.LSTM, spgru.RNN]
LAYERS: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [
    (spgru.Linear, (3, 5), (2, 3)),
    (spgru.Conv2d, (3, 5, 3), (2, 3, 8, 8)),
    (spgru.GRUCell, (3, 5), (2, 3)),
    (spgru.LSTMCell, (3, 5), (2, 3)),
    (spgru.RNNCell, (3, 5), (2, 3)),
    *((cell, (3, 5), (4, 2, 3)) for cell in RECURRENT),
]


def leaves(result: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(result)


@pytest.mark.parametrize(("layer", "arguments", "shape"), LAYERS)
def test_layers_run_on_the_meta_device(
    layer: Any, arguments: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    with torch.device("meta"):
        module = layer(*arguments)
        x = Moments(torch.zeros(shape), torch.zeros(shape))
    found, wanted = leaves(module(x)), leaves(layer(*arguments)(torch.zeros(shape)))
    assert [part.device.type for part in found] == ["meta"] * len(wanted)
    assert [(part.shape, part.dtype) for part in found] == [(p.shape, p.dtype) for p in wanted]
    sum(part.sum() for part in found).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())


@pytest.mark.parametrize("layer", RECURRENT)
def test_layers_of_the_meta_device_come_to_life(layer: Any) -> None:
    with torch.device("meta"):
        module = layer(3, 5)
    original = layer(3, 5)
    module.to_empty(device="cpu").load_state_dict(original.state_dict())
    x = torch.randn(4, 2, 3)
    for got, wanted in zip(leaves(module(x)), leaves(original(x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["auto", "always"])
@pytest.mark.parametrize(("layer", "arguments", "shape"), LAYERS)
def test_layers_run_on_fake_tensors(
    layer: Any, arguments: tuple[int, ...], shape: tuple[int, ...], mode: Any
) -> None:
    spgru.set_value_checks(mode)
    try:
        with FakeTensorMode():
            found = leaves(layer(*arguments)(Moments(torch.zeros(shape), torch.ones(shape))))
            sum(part.sum() for part in found).backward()
    finally:
        spgru.set_value_checks("auto")
    wanted = leaves(layer(*arguments)(torch.zeros(shape)))
    assert [(part.shape, part.dtype) for part in found] == [(p.shape, p.dtype) for p in wanted]
    # Nothing fake was kept: the next call is about real numbers.
    assert all(part.isfinite().all() for part in leaves(layer(*arguments)(torch.randn(shape))))


@pytest.mark.parametrize("layer", RECURRENT)
@pytest.mark.parametrize("frozen", [False, True])
def test_copies_are_equal_and_independent(layer: Any, frozen: bool) -> None:
    module = layer(3, 5).requires_grad_(not frozen)
    x = torch.randn(4, 2, 3)
    before = leaves(module(x))
    other = copy.deepcopy(module)
    for got, wanted in zip(leaves(other(x)), before, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    nn.init.zeros_(next(other.parameters()))
    for got, wanted in zip(leaves(module(x)), before, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert not torch.equal(leaves(other(x))[0], before[0])


@pytest.mark.parametrize("layer", RECURRENT)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(layer: Any, reentrant: bool) -> None:
    module = layer(3, 5)
    x = torch.randn(4, 2, 3, requires_grad=True)

    # Tensors: the reentrant kind does not look for gradients inside of other objects.
    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(leaves(module(x)))

    def gradients(results: tuple[Tensor, ...]) -> list[Tensor]:
        module.zero_grad()
        x.grad = None
        sum(result.sum() for result in results).backward()
        return [leaf.grad.clone() for leaf in (x, *module.parameters())]  # type: ignore[union-attr]

    found = gradients(checkpoint(run, x, use_reentrant=reentrant))
    for got, wanted in zip(found, gradients(run(x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
