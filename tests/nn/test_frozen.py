"""Within `spgru.frozen` what weights imply is computed once, and again whenever they change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import spgru
from spgru.functional import Affine
from spgru.models.conv_recurrent import ConvGRUCell
from spgru.modes import frozen_of
from spgru.nn.contexts import at_mean

IMAGE = 2, 4, 6, 6
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "gru": (lambda: spgru.GRU(4, 5), (6, 2, 4)),
    "lstm": (lambda: spgru.LSTM(4, 5, 2, bidirectional=True, proj_size=3), (6, 2, 4)),
    "rnn": (lambda: spgru.RNN(4, 5, bias=False), (6, 2, 4)),
    "cell": (lambda: spgru.GRUCell(4, 5), (2, 4)),
    "linear": (lambda: spgru.Linear(4, 5), (2, 4)),
    "conv": (lambda: spgru.Conv2d(4, 5, 3), IMAGE),
    "conv gru": (lambda: ConvGRUCell(4, 5, 3), IMAGE),
    "gamma": (lambda: spgru.GRU(4, 5, family="gamma"), (6, 2, 4)),
}


def first(output: Any) -> spgru.Moments:
    while isinstance(output, tuple):
        output = output[0]
    return output


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for every map that is made from weights."""
    calls: list[str] = []
    original = Affine.of

    def counted(*arguments: Any) -> Affine:
        calls.append("made")
        return original(*arguments)

    monkeypatch.setattr(Affine, "of", staticmethod(counted))
    return calls


@pytest.mark.parametrize("name", LAYERS)
def test_the_answer_is_the_same_and_made_once(name: str, made: list[str]) -> None:
    make, shape = LAYERS[name]
    layer, x = make(), torch.rand(shape)
    expected = first(layer(x))
    made.clear()
    with spgru.frozen(layer):
        for _ in range(3):
            got = first(layer(x))
            assert torch.equal(got.mean, expected.mean)
            assert torch.equal(got.var, expected.var)
            assert not got.mean.requires_grad
        once = len(made)
    made.clear()
    layer(x)
    assert once == len(made) > 0
    assert frozen_of(layer) is None


@pytest.mark.parametrize("name", LAYERS)
def test_changes_that_torch_counts_are_followed_within_the_block(name: str) -> None:
    make, shape = LAYERS[name]
    layer, other, x = make(), make(), torch.rand(shape)
    with spgru.frozen(layer):
        layer(x)
        layer.load_state_dict(other.state_dict())
        assert torch.equal(first(layer(x)).var, first(other(x)).var)
        with torch.no_grad():
            for module in (layer, other):
                next(module.parameters()).mul_(1.1)
        assert torch.equal(first(layer(x)).mean, first(other(x)).mean)
        assert first(layer.double()(x.double())).dtype == torch.float64


@pytest.mark.parametrize("frozen", [False, True], ids=["learning", "requires_grad_(False)"])
def test_changes_through_data_are_never_missed_outside_a_block(frozen: bool) -> None:
    """The idiom of moving averages and target networks."""
    layer, other = spgru.GRU(4, 5).requires_grad_(not frozen), spgru.GRU(4, 5)
    x = torch.randn(6, 2, 4)
    with torch.no_grad():
        layer(x)
        for target, source in zip(layer.parameters(), other.parameters(), strict=True):
            target.data.copy_(source.data)
        assert torch.equal(layer(x)[0].mean, other(x)[0].mean)
        assert torch.equal(layer(x)[0].var, other(x)[0].var)


def test_gradients_reach_inputs_and_not_weights() -> None:
    layer = spgru.GRU(4, 5)
    x = torch.randn(6, 2, 4, requires_grad=True)
    layer(x)[0].var.sum().backward()
    expected, x.grad = x.grad, None
    layer.zero_grad()
    with spgru.frozen(layer):
        with torch.inference_mode():
            layer(x)
        for _ in range(2):  # a second backward pass needs no retained graph
            x.grad = None
            layer(x)[0].var.sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_other_modes_have_what_they_need_within_a_block() -> None:
    layer, x = spgru.GRU(4, 5), torch.randn(6, 2, 4)
    with spgru.frozen(layer):
        var = layer(x)[0].var
        with at_mean(layer):
            assert not layer(x)[0].var.any()
        assert torch.equal(layer(x)[0].var, var)
        inside = spgru.audit(layer, x, draws=3).to_dict()
    assert inside == spgru.audit(layer, x, draws=3).to_dict()


def test_blocks_nest() -> None:
    layer, x = spgru.GRU(4, 5), torch.randn(6, 2, 4)
    with spgru.frozen(layer):
        layer(x)
        outer = frozen_of(layer)
        with spgru.frozen(layer):
            assert frozen_of(layer) is outer
        assert frozen_of(layer) is outer
    assert frozen_of(layer) is None


def test_copies_made_within_a_block_are_not_frozen() -> None:
    layer, x = spgru.GRU(4, 5), torch.randn(6, 2, 4)
    with spgru.frozen(layer):
        output = layer(x)[0]
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert frozen_of(twin) is None
            assert torch.equal(twin(x)[0].var, output.var)


def test_a_captured_graph_uses_what_is_kept_and_keeps_nothing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During a capture nothing is computed yet, so what is made then must not be used later."""
    layer, x = spgru.GRU(3, 4), torch.randn(2, 5, 3)
    with torch.no_grad(), spgru.frozen(layer):
        state = frozen_of(layer)
        assert state is not None
        with monkeypatch.context() as capture:
            capture.setattr("spgru.nn.cache._is_captured", lambda _: True)
            layer(x)
            assert not state.cache
        layer(x)
        kept = {key: entry.affine for key, entry in state.cache.items()}
        with monkeypatch.context() as capture:
            capture.setattr("spgru.nn.cache._is_captured", lambda _: True)
            copied = layer._affine("weight_hh_l0", "bias_hh_l0")
            assert any(copied.weight_var is affine.weight_var for affine in kept.values())
            layer(x)
        # The graph has no reference of its own to what it reads.
        assert all(any(a is b for b in layer._captured) for a in kept.values())
        assert {key: entry.affine for key, entry in state.cache.items()} == kept


def test_changes_through_data_leave_the_kept_weights_whole() -> None:
    """Nothing tells of them, so the answer within the block is that of the weights before."""
    layer, x = spgru.GRU(4, 5), torch.randn(6, 2, 4)
    with torch.no_grad(), spgru.frozen(layer):
        before = layer(x)[0]
        for parameter in layer.parameters():
            parameter.data.mul_(3)
        after = layer(x)[0]
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.var, before.var)
    assert not torch.equal(layer(x)[0].mean, before.mean)


def test_drawn_weights_are_not_kept_within_a_block() -> None:
    layer, x = spgru.GRU(4, 5), torch.randn(6, 2, 4)
    with torch.no_grad(), spgru.frozen(layer):
        layer(x)
        state = frozen_of(layer)
        assert state is not None
        count = len(state.cache)
        spgru.audit(layer, x, draws=5)
        assert len(state.cache) == count
