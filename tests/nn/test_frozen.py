"""What frozen weights imply is worked out once, and anew whenever they change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import spgru
from spgru.nn.weight import at_mean

LAYERS: list[Any] = [
    lambda: spgru.GRU(4, 5),
    lambda: spgru.LSTM(4, 5, num_layers=2, bidirectional=True),
    lambda: spgru.RNN(4, 5, bias=False),
    lambda: spgru.GRUCell(4, 5),
]


def first(output: Any) -> spgru.Moments:
    while isinstance(output, tuple):
        output = output[0]
    return output


@pytest.mark.parametrize("make", LAYERS, ids=["gru", "lstm", "rnn", "cell"])
def test_frozen_is_equal_and_follows_changes(make: Any) -> None:
    layer = make()
    x = torch.randn(2, 4) if isinstance(layer, spgru.GRUCell) else torch.randn(6, 2, 4)
    expected = first(layer(x))
    layer.requires_grad_(False)
    for _ in range(2):
        assert torch.equal(first(layer(x)).var, expected.var)
    assert layer._frozen

    other = make()
    layer.load_state_dict(other.state_dict())
    assert torch.equal(first(layer(x)).var, first(other(x)).var)
    with torch.no_grad():
        for module in (layer, other):
            next(module.parameters()).add_(0.1)
    assert torch.equal(first(layer(x)).mean, first(other(x)).mean)
    assert first(layer.double()(x.double())).dtype == torch.float64


def test_frozen_layers_still_pass_gradients_on_and_can_be_drawn() -> None:
    layer = spgru.GRU(4, 5).requires_grad_(False)
    with torch.inference_mode():
        layer(torch.randn(6, 2, 4))
    x = torch.randn(6, 2, 4, requires_grad=True)
    layer(x)[0].var.sum().backward()
    assert x.grad is not None
    assert x.grad.any()
    with at_mean(layer):
        assert not layer(x)[0].var.any()
    assert spgru.audit(layer, x.detach(), draws=2) is not None


def test_copies_do_not_carry_what_was_kept() -> None:
    layer = spgru.GRU(4, 5).requires_grad_(False)
    x = torch.randn(6, 2, 4)
    output = layer(x)[0]
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert not twin._frozen
        assert torch.equal(twin(x)[0].var, output.var)


def test_a_captured_graph_uses_what_is_kept_and_adds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During a capture nothing is computed yet, so what is made then must not be used later."""
    layer = spgru.GRU(3, 4).requires_grad_(False)
    x = torch.randn(2, 5, 3)
    with monkeypatch.context() as capture:
        capture.setattr("spgru.nn.layer._is_captured", lambda _: True)
        layer(x)
        assert not layer._frozen
    layer(x)
    kept = {name: affine for name, (_, _, affine) in layer._frozen.items()}
    before = {name: dict(affine.cache) for name, affine in kept.items()}
    with monkeypatch.context() as capture:
        capture.setattr("spgru.nn.layer._is_captured", lambda _: True)
        copy = layer._affine("weight_hh_l0", "bias_hh_l0")
        assert copy.weight_var is kept["weight_hh_l0"].weight_var
        copy.keep("made during the capture", lambda: 1)
        layer(x)
    # The graph has no reference of its own to what it reads.
    assert all(any(a is b for b in layer._captured) for a in kept.values())
    assert {name: affine for name, (_, _, affine) in layer._frozen.items()} == kept
    assert {name: affine.cache for name, affine in kept.items()} == before


def test_what_was_kept_is_let_go_with_the_weights() -> None:
    layer = spgru.GRU(3, 4).requires_grad_(False)
    layer(torch.randn(2, 5, 3))
    assert layer._frozen
    layer.double()
    assert not layer._frozen
