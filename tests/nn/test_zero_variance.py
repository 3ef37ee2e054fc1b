"""With no variance anywhere, every layer is its counterpart in torch.nn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru import Moments, certain

STEPS = 1000
# Without a kernel a step takes Python a millisecond: long sequences in the simplest case alone.
FEW_STEPS = 60
TOLERANCE = {"rtol": 0, "atol": 1e-6}
OPTIONS = [
    dict(zip(("num_layers", "bidirectional", "batch_first", "bias"), values, strict=True))
    for values in itertools.product((1, 2), (False, True), (False, True), (True, False))
]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("GRU", {}),
    ("LSTM", {}),
    ("LSTM", {"proj_size": 2}),
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu"}),
]


def assert_certain(got: Any, want: Any) -> None:
    if isinstance(got, tuple):
        for g, w in zip(got, want, strict=True):
            assert_certain(g, w)
        return
    mean, var = (part.data if hasattr(part, "batch_sizes") else part for part in got)
    torch.testing.assert_close(mean, getattr(want, "data", want), **TOLERANCE)
    assert torch.equal(var, torch.zeros_like(var))


# torch.nn's own remark on the reference
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("name", "extra"), KINDS, ids=lambda value: str(value))
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items())
)
def test_layers(name: str, extra: dict[str, Any], packed: bool, options: dict[str, Any]) -> None:
    reference = getattr(nn, name)(3, 4, **options, **extra)
    layer = getattr(spgru, name).from_torch(reference, weight_std=0.0)
    steps = STEPS if not extra or options == OPTIONS[0] else FEW_STEPS
    x = torch.randn(steps, 3, 3)
    state_shape = (options["num_layers"] * (1 + options["bidirectional"]), 3)
    sizes = [extra.get("proj_size", 4), 4] if name == "LSTM" else [4]
    state = [0.5 * torch.randn(*state_shape, size) for size in sizes]
    if packed:
        x = pack_padded_sequence(x, [steps // 3, steps, steps // 2], enforce_sorted=False)
    elif options["batch_first"]:
        x = x.transpose(0, 1)
    hx = tuple(state) if name == "LSTM" else state[0]
    uncertain_hx = tuple(map(certain, state)) if name == "LSTM" else certain(state[0])
    with torch.no_grad():
        want = reference(x, hx)
        assert_certain(layer(x, uncertain_hx), want)
        if not packed:
            few = x[:, :9] if options["batch_first"] else x[:9]
            assert_certain(layer(certain(few), None), reference(few))
        # and back again
        assert_equal(layer.to_torch()(x, hx), want)


def assert_equal(got: Any, want: Any) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for g, w in zip(leaves(got), leaves(want), strict=True):
        assert g is w or torch.equal(g, w)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_unbatched_and_default_state(name: str) -> None:
    reference = getattr(nn, name)(3, 4, 2)
    layer = getattr(spgru, name).from_torch(reference, weight_std=0.0)
    x = torch.randn(7, 3)
    assert_certain(layer(x), reference(x))
    _, state = reference(x)
    assert_certain(layer(x, state), reference(x, state))


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (3,)], ids=["batched", "unbatched"])
def test_cells(name: str, bias: bool, shape: tuple[int, ...]) -> None:
    reference = getattr(nn, name)(3, 4, bias=bias)
    cell = getattr(spgru, name).from_torch(reference, weight_std=0.0)
    x = torch.randn(*shape)
    assert_certain(cell(x), reference(x))
    h = torch.randn(*shape[:-1], 4)
    hx = (h, 2 * h) if name == "LSTMCell" else h
    assert_certain(cell(certain(x), hx), reference(x, hx))
    assert_equal(cell.to_torch()(x, hx), reference(x, hx))


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    reference = nn.Linear(3, 4, bias=bias)
    layer = spgru.Linear.from_torch(reference, weight_std=0.0)
    x = torch.randn(2, 5, 3)
    assert_certain(layer(x), reference(x))
    assert_equal(layer.to_torch()(x), reference(x))
    assert (layer.bias is None) == (not bias)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": (1, 2), "bias": False},
        {"groups": 2, "dilation": 2},
        {"padding": "same", "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": 1, "padding_mode": "replicate"},
    ],
    ids=str,
)
def test_conv2d(options: dict[str, Any]) -> None:
    reference = nn.Conv2d(2, 4, 3, **options)
    layer = spgru.Conv2d.from_torch(reference, weight_std=0.0)
    for x in (torch.randn(3, 2, 7, 8), torch.randn(2, 7, 8)):
        assert_certain(layer(x), reference(x))
        assert_certain(layer(certain(x)), reference(x))
        assert_equal(layer.to_torch()(x), reference(x))


def test_reset_before_is_the_textbook_gru() -> None:
    layer = spgru.GRU(3, 4, reset_after=False, weight_std=0.0, dtype=torch.float64)
    w_ih, w_hh, b_ih, b_hh = (weight.moments().mean for weight in layer.weights().values())
    x, h = torch.randn(6, 2, 3).double(), torch.zeros(2, 4).double()
    for x_t in x:
        i_r, i_z, i_c = (x_t @ w_ih.T + b_ih).chunk(3, -1)
        r = torch.sigmoid(i_r + h @ w_hh[:4].T + b_hh[:4])
        z = torch.sigmoid(i_z + h @ w_hh[4:8].T + b_hh[4:8])
        c = torch.tanh(i_c + (r * h) @ w_hh[8:].T + b_hh[8:])
        h = (1 - z) * c + z * h
    _, h_n = layer(x)
    torch.testing.assert_close(h_n.mean[0], h)
    assert (h_n.var == 0).all()
    with pytest.raises(ValueError, match="reset_after=False"):
        layer.to_torch()


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_same_seed_same_means_same_order_as_torch(name: str) -> None:
    arguments = (3, 4, 2, True) if name != "RNN" else (3, 4, 2)
    torch.manual_seed(5)
    reference = getattr(nn, name)(*arguments, bidirectional=True)
    torch.manual_seed(5)
    layer = getattr(spgru, name)(*arguments, bidirectional=True)
    names = list(layer.weights())
    assert names == [name for name, _ in reference.named_parameters()]
    for weight, parameter in zip(layer.weights().values(), reference.parameters(), strict=True):
        assert torch.equal(weight.moments().mean, parameter)


def test_from_torch_keeps_dtype_mode_and_refuses_others() -> None:
    reference = nn.GRU(2, 3).double().eval()
    layer = spgru.GRU.from_torch(reference)
    assert layer.weight_hh_l0.dtype == torch.float64
    assert not layer.training
    with pytest.raises(TypeError, match=r"takes a torch\.nn.GRU, got LSTM"):
        spgru.GRU.from_torch(nn.LSTM(2, 3))
    with pytest.raises(TypeError, match=r"takes a torch\.nn.GRUCell, got RNNCell"):
        spgru.GRUCell.from_torch(nn.RNNCell(2, 3))
    with pytest.raises(ValueError, match=r"no counterpart in torch\.nn"):
        spgru.GRU(2, 3, family="gamma").to_torch()
    with pytest.raises(ValueError, match="outside the domain"):
        spgru.GRU.from_torch(nn.GRU(2, 3), family="gamma")


def test_weight_std_is_the_standard_deviation() -> None:
    layer = spgru.GRU.from_torch(nn.GRU(2, 3), weight_std=0.05)
    for weight in layer.weights().values():
        std = weight.moments().std
        torch.testing.assert_close(std, torch.full_like(std, 0.05))
    x = Moments(torch.randn(4, 1, 2), torch.rand(4, 1, 2))
    assert (layer(x)[0].var > 0).all()
