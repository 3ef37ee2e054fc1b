"""Gains of rows, W.var + g W^2, and coherences of states: in every backend, in a stream, packed,
compiled, exported, saved."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, KERNELS, gradients
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves

import spgru
from spgru import Moments
from spgru.functional import Affine
from spgru.functional.algebra import coherent, lerp
from spgru.models import ConvGRUCell
from spgru.modes import enter_gains

LAYERS = {
    "GRU": (spgru.GRU, {}),
    "GRU, reset before": (spgru.GRU, {"reset_after": False}),
    "LSTM": (spgru.LSTM, {}),
    "RNN": (spgru.RNN, {}),
    "two layers, both ways": (spgru.GRU, {"num_layers": 2, "bidirectional": True}),
    "projected LSTM": (spgru.LSTM, {"proj_size": 5}),
}


def _random_gains(layer: Any) -> dict[str, Tensor]:
    found = {key: torch.rand(shape) for key, shape in layer.gain_shapes().items()}
    return {key: g if key.startswith("coherence") else 4 * g for key, g in found.items()}


def _calibrated(kind: str, size: int = 16, **options: Any) -> Any:
    cls, own = LAYERS[kind]
    layer = cls(3, size, weight_std=0.1, **own, **options)
    layer.set_gains_(_random_gains(layer))
    return layer


def _reference(kind: str, layer: Any, size: int = 16) -> Any:
    cls, own = LAYERS[kind]
    truth = cls(3, size, dtype=torch.float64, backend="reference", device=DEVICE, **own)
    truth.load_state_dict(layer.state_dict())
    return truth


def _uncertain(*shape: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> Moments:
    x = Moments(torch.randn(shape), torch.rand(shape)).to(dtype)
    return Moments(x.mean.to(device), x.var.to(device))


def test_second_moment_with_a_gain_by_definition() -> None:
    weight = Moments(torch.randn(4, 3).double(), torch.rand(4, 3).double())
    gain, x = torch.rand(4).double(), Moments(torch.randn(3).double(), torch.rand(3).double())
    found = Affine.of(weight, gain=gain)(x)
    for row in range(4):
        mean, var = weight.mean[row], weight.var[row]
        expected = sum(
            var[i] * x.mean[i] ** 2 + (var[i] + gain[row] * mean[i] ** 2) * x.var[i]
            for i in range(3)
        )
        assert found.var[row].item() == pytest.approx(float(expected), rel=1e-12)
    certain = Affine.of(weight.mean, gain=gain)(x)
    assert torch.allclose(certain.var, gain * (weight.mean**2 @ x.var))
    # Rows of the map have rows of the gains.
    assert torch.equal(Affine.of(weight, gain=gain).rows(1, 3)(x).var, found.var[1:3])


def test_coherence_by_definition() -> None:
    """All combinations of a gate, a state and what comes in beside what goes along with the state.

    C = b (H - h) + rest, where Z, H and the rest are independent.
    """
    generator = torch.Generator().manual_seed(0)
    z, h, rest = (torch.rand(n, generator=generator).double() for n in (3, 4, 5))
    chances = [torch.rand(n, generator=generator).double() for n in (3, 4, 5)]
    p, q, r = (part / part.sum() for part in chances)

    def moments(values: Tensor, chance: Tensor) -> Moments:
        mean = (chance * values).sum()
        return Moments(mean, (chance * (values - mean) ** 2).sum())

    state, gate = moments(h, q), moments(z, p)
    for b in (0.0, 0.4, 1.0):
        c = b * (h[:, None] - state.mean) + rest
        candidate = moments(c, q[:, None] * r)
        after = (1 - z[:, None, None]) * c + z[:, None, None] * h[:, None]
        expected = moments(after, p[:, None, None] * q[:, None] * r)
        coherence = torch.tensor(b).double()
        found = coherent(lerp(candidate, state, gate), gate, state, coherence)
        assert torch.allclose(found.mean, expected.mean)
        assert torch.allclose(found.var, expected.var, rtol=1e-12)


@pytest.mark.parametrize("kind", ["GRU", "GRU, reset before", "LSTM"])
def test_a_coherence_of_one_passes_on_no_more_than_there_is(kind: str) -> None:
    """However many steps: alone, a state's variance never grows."""
    cls, own = LAYERS[kind]
    layer = cls(3, 16, weight_std=0.0, **own)
    size = (1, 2, 16)
    hx = Moments(torch.zeros(size), torch.rand(size))
    state = hx if cls is spgru.GRU else (spgru.certain(torch.zeros(size)), hx)
    layer.set_gains_({"weight_hh_l0": torch.zeros(layer.weight_hh_l0.shape[0])})
    x = torch.zeros(1, 2, 3)
    plain = layer(x, state)[1]
    layer.set_gains_({**layer.gains(), "coherence_l0": torch.ones(16)})
    after = layer(x, state)[1]
    plain, after = (found if cls is spgru.GRU else found[1] for found in (plain, after))
    assert (after.var > plain.var).all()
    assert (after.var < hx.var).all()


@pytest.mark.parametrize("backend", ["reference", *KERNELS])
@pytest.mark.parametrize("kind", ["GRU", "GRU, reset before", "LSTM"])
def test_no_variance_is_negative_where_gates_close(kind: str, backend: Any) -> None:
    """A gate's mean is rounded to 0 or 1 before its variance is."""
    if backend == "triton" and kind == "GRU, reset before":
        pytest.skip("there is no such kernel")
    cls, own = LAYERS[kind]
    layer = cls(4, 32, weight_std=0.01, backend=backend, device=DEVICE, **own)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("weight"):
                parameter.mul_(10)
    layer.set_gains_({"coherence_l0": torch.full((32,), 0.9)})
    x = 5 * torch.randn(40, 8, 4, device=DEVICE)
    with torch.no_grad():
        output, state = layer(x)
        assert (output.var >= 0).all()
        layer(x[:1], state)  # states with a negative variance are refused


def test_what_has_another_update_has_no_coherence() -> None:
    for layer in (
        spgru.RNN(3, 4), spgru.RNNCell(3, 4), spgru.Linear(3, 4), spgru.GRU(3, 4, rule="paper"),
        spgru.GRU(3, 4, family="gamma"),
    ):  # fmt: skip
        assert not any(key.startswith("coherence") for key in layer.gain_shapes())
    both_ways = spgru.LSTM(3, 4, 2, bidirectional=True, proj_size=2).gain_shapes()
    assert both_ways["coherence_l1_reverse"] == (4,)
    assert spgru.GRUCell(3, 4).gain_shapes()["coherence"] == (4,)
    assert ConvGRUCell(0, 4, 3).gain_shapes()["coherence"] == (4,)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", ["GRU", "GRU, reset before", "LSTM", "RNN"])
def test_kernels_have_gains(kind: str, backend: Any) -> None:
    if backend == "triton" and kind == "GRU, reset before":
        pytest.skip("there is no such kernel")
    layer = _calibrated(kind, backend=backend, device=DEVICE)
    truth = _reference(kind, layer)
    x = _uncertain(4, 3, 3)
    gains = [name for name in layer.state_dict() if name.startswith(("gain", "coherence"))]
    states = [] if kind == "RNN" else ["coherence_l0"]
    assert gains == ["gain_w_ih_l0", "gain_w_hh_l0", *states]
    plain = spgru.Moments(*(part.double() for part in x))
    with enter_gains({truth: {}}):
        without = truth(plain)[0].var
    leaves = {}
    for module, value in ((layer, x), (truth, plain)):
        # Of the gains too there is a gradient.
        given = {name: gain.clone().requires_grad_() for name, gain in module.gains().items()}
        with enter_gains({module: given}):
            out = module(value)[0]
        (out.mean.sum() + 3 * out.var.sum()).backward()
        leaves[module] = out, list(given.values())
    (found, found_gains), (exact, exact_gains) = leaves[layer], leaves[truth]
    assert (exact.var - without).norm() > 0.01 * without.norm()
    for part, expected in zip(found, exact, strict=True):
        assert (part.double() - expected).norm() < 1e-6 * expected.norm()
    pairs = zip(gradients(layer), gradients(truth), strict=True)
    more = ((a.grad, b.grad) for a, b in zip(found_gains, exact_gains, strict=True))
    for grad, expected in [*pairs, *more]:
        assert (grad.double() - expected).norm() < 2e-5 * expected.norm()


@pytest.mark.parametrize("kind", LAYERS)
def test_streams_and_packed_sequences(kind: str) -> None:
    """A step is one call of C here, and rows that have ended stay where they are."""
    layer, x = _calibrated(kind), _uncertain(5, 2, 3).mean
    truth = _reference(kind, layer.to(DEVICE))
    with torch.no_grad():
        if not layer.bidirectional:
            state, outputs = None, []
            for x_t in x:
                out, state = layer.step(x_t, state)
                outputs.append(out)
            streamed = spgru.stack(outputs)
            expected = truth(x.double())[0]
            assert torch.allclose(streamed.var.double(), expected.var, rtol=1e-5, atol=1e-9)
        lengths = [x[:5, 0], x[:3, 1]]
        packed, _ = layer(pack_sequence(lengths))
        expected, _ = truth(pack_sequence([part.double() for part in lengths]))
        assert torch.allclose(packed.var.data.double(), expected.var.data, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", ["GRU", "GRU, reset before", "LSTM"])
def test_gradients_of_packed_sequences_by_gains(kind: str, backend: Any) -> None:
    """Where every step is a kernel of its own, of as many rows as are still there."""
    if backend == "triton" and kind == "GRU, reset before":
        pytest.skip("there is no such kernel")
    layer = _calibrated(kind, backend=backend, device=DEVICE)
    truth = _reference(kind, layer)
    lengths = [torch.randn(length, 3, device=DEVICE) for length in (5, 3, 3, 1)]
    found = []
    for module in (layer, truth):
        given = {key: gain.clone().requires_grad_() for key, gain in module.gains().items()}
        own = [part.to(next(module.parameters()).dtype) for part in lengths]
        with enter_gains({module: given}):
            out = module(pack_sequence(own))[0]
        (out.mean.data.sum() + 3 * out.var.data.sum()).backward()
        found.append([out.var.data, given["weight_hh_l0"].grad, given["coherence_l0"].grad])
    for part, expected in zip(*found, strict=True):
        assert (part.double() - expected).norm() < 2e-5 * expected.norm()


def test_convolutions_have_gains() -> None:
    cell = ConvGRUCell(2, 4, 3, weight_std=0.1)
    cell.set_gains_(_random_gains(cell))
    truth = ConvGRUCell(2, 4, 3, dtype=torch.float64, backend="reference")
    truth.load_state_dict(cell.state_dict())
    x, h = _uncertain(2, 2, 5, 5, device="cpu"), _uncertain(2, 4, 5, 5, device="cpu")
    found = cell(x, h)
    expected = truth(Moments(x.mean.double(), x.var.double()), h.to(torch.float64))
    assert torch.allclose(found.var.double(), expected.var, rtol=1e-5)
    layer = spgru.Conv2d(2, 3, 3)
    plain = layer(x).var
    layer.set_gains_({"weight": torch.full((3,), 2.0)})
    passed = torch.nn.functional.conv2d(x.var, layer.weight**2)
    assert torch.allclose(layer(x).var, plain + passed, rtol=1e-5)


def test_gains_travel_with_the_layer() -> None:
    layer, x = _calibrated("GRU"), _uncertain(4, 2, 3, device="cpu")
    plain = spgru.GRU(3, 16)
    assert not any(name.startswith("gain") for name in plain.state_dict())
    expected = layer(x)[0].var
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(plain(x)[0].var, expected)
    assert torch.equal(copy.deepcopy(layer)(x)[0].var, expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0].var, expected)
    assert layer.double().gain_w_hh_l0.dtype == torch.float64
    assert layer.half().gain_w_hh_l0.dtype == torch.float16
    # Gains belong to weights: other weights have none.
    without = spgru.GRU(3, 16)
    plain.load_state_dict(without.state_dict())
    assert not plain.gains()
    assert torch.equal(plain(x)[0].var, without(x)[0].var)
    layer.reset_parameters()
    assert not layer.gains()
    with pytest.raises(ValueError, match="one for every row"):
        layer.set_gains_({"weight_hh_l0": torch.ones(3)})
    with pytest.raises(ValueError, match=r"no gains of coherence; .* coherence_l0"):
        layer.set_gains_({"coherence": torch.ones(16)})


def test_frozen_layers_notice_gains() -> None:
    layer, x = _calibrated("GRU"), _uncertain(4, 2, 3, device="cpu")
    gains = layer.gains()
    with torch.no_grad(), spgru.frozen(layer):
        calibrated = layer(x)[0].var
        layer.set_gains_({})
        plain = layer(x)[0].var
        layer.set_gains_(gains)
        assert torch.equal(layer(x)[0].var, calibrated)
        with enter_gains({layer: {}}):
            assert torch.equal(layer(x)[0].var, plain)
        assert not torch.equal(plain, calibrated)


def test_gains_of_one_change_nothing() -> None:
    layer, x = _calibrated("GRU"), _uncertain(4, 2, 3, device="cpu")
    layer.set_gains_({})
    plain = [part.clone() for part in tree_leaves(layer(x))]
    gains = {name: torch.ones_like(gain) for name, gain in _random_gains(layer).items()}
    layer.set_gains_({**gains, "coherence_l0": torch.zeros(16)})
    for part, expected in zip(tree_leaves(layer(x)), plain, strict=True):
        assert torch.equal(part, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own torch.jit
def test_compiled_and_exported() -> None:
    layer, x = _calibrated("LSTM"), _uncertain(4, 2, 3, device="cpu").mean
    expected = layer(x)[0].var
    compiled = torch.compile(lambda x: layer(x)[0].var, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(compiled, expected, rtol=1e-5)
    exported = torch.export.export(layer, (x,))
    with torch.no_grad():  # else torch's scan traces its gradient
        assert torch.allclose(exported.module()(x)[0].var, expected, rtol=1e-5)
