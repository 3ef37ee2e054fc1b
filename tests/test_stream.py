"""`Stream` against `respond`, its definition, and against drawn networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.nn.contexts import at_mean, sampling
from spgru.response import forward
from spgru.response.directions import draw_directions
from spgru.response.forward import flatten
from spgru.response.shrinkage import with_shape
from test_respond import LAYERS as RESPONSE_LAYERS

LAYERS: dict[str, Callable[..., nn.Module]] = {
    **{name: make for name, make in RESPONSE_LAYERS.items() if "both ways" not in name},
    "two layers": lambda **o: spgru.GRU(3, 4, 2, **o),
    "batch first": lambda **o: spgru.LSTM(3, 4, 2, batch_first=True, **o),
}


class Forecaster(nn.Module):
    """Reads its own last forecast beside the input, and adds noise to what it says."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.gru = spgru.GRU(3, 4, weight_std=0.2, dtype=dtype)
        self.head = nn.Sequential(
            spgru.Linear(4, 5, weight_std=0.2, dtype=dtype),
            nn.Tanh(),
            spgru.Linear(5, 2, weight_std=0.2, dtype=dtype),
        )

    def step(self, x_t: Any, state: Any = None) -> tuple[Moments, Any]:
        h, last = (None, x_t.new_zeros(len(x_t), 2)) if state is None else state
        out, h = self.gru.step(torch.cat([x_t, last], -1), h)
        y = self.head(out) + 0.8 * last
        y = Moments(y.mean, y.var + 0.05 + 0.1 * y.mean**2)
        return y, (h, y)

    def forward(self, x: Any) -> Moments:
        state, outputs = None, []
        for x_t in x.unbind(0):
            y, state = self.step(x_t, state)
            outputs.append(y)
        return spgru.stack(outputs)


def first_order(module: nn.Module, x: Any) -> tuple[Tensor, dict[str, Any]]:
    """The variance by `respond` without higher orders, and its parts."""
    output, parts = spgru.respond(
        module, x, sources=True, function=lambda x: _first(module(x)), batch_dim=None
    )
    rest = parts.get("higher order", torch.zeros_like(output.var))
    return output.var - rest, parts


def _first(result: Any) -> Moments:
    moments: Moments = result if isinstance(result, Moments) else result[0]
    return moments


def follow_every_weight(stream: spgru.Stream) -> None:
    """Make the directions a basis, in which the response has no error."""
    entries = sum(moments.mean.numel() for moments in stream._weights.moments)
    basis = torch.eye(entries, dtype=torch.float64)
    stream._directions = draw_directions(stream._weights, stream._count, 0, basis)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_every_weight(layer: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    module = layer(weight_std=0.3, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    stream = spgru.Stream(module, 1, shape="tangents")
    follow_every_weight(stream)
    y, _ = stream(x)
    torch.testing.assert_close(y.var, first_order(module, x)[0])
    torch.testing.assert_close(y.mean, module(x)[0].mean)


@pytest.mark.parametrize("cell", [spgru.GRUCell, spgru.LSTMCell, spgru.RNNCell])
def test_cells(cell: Any) -> None:
    torch.manual_seed(0)
    module = cell(3, 4, weight_std=0.3, dtype=torch.float64)
    layer = getattr(spgru, cell.__name__.removesuffix("Cell"))(3, 4, dtype=torch.float64)
    for name, weight in layer.weights().items():
        weight.set_(module.weight_moments(name.removesuffix("_l0")))
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    stream = spgru.Stream(module, 1, shape="tangents")
    follow_every_weight(stream)
    torch.testing.assert_close(stream(x)[0].var, first_order(layer, x)[0])


@pytest.mark.parametrize(
    "layer",
    [spgru.GRU(3, 4), spgru.GRU(3, 4, bias=False), spgru.LSTM(3, 4, 2), spgru.RNN(3, 4, 3)],
    ids=["GRU", "GRU without bias", "LSTM", "RNN"],
)
@pytest.mark.parametrize("batch", [(), (5,)], ids=["single", "batch"])
@pytest.mark.parametrize("uncertain", [False, True], ids=["certain", "uncertain"])
def test_kernels_are_the_forward_mode_of_torch(
    layer: Any, batch: tuple[int, ...], uncertain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x: Any = torch.randn(4, *batch, 3)
    x = Moments(x, torch.rand_like(x)) if uncertain else x

    def run(function: Any = None) -> Any:
        y, state = spgru.Stream(layer, 3, function=function, shape="tangents")(x)
        return [y.mean, y.var, *flatten(state.value).tensors, *state.tangents]

    by_layer, by_step = run(), run(layer.step)
    monkeypatch.setattr(forward, "pushed_single_step", lambda *_: None)
    by_torch = run(layer.step)
    for found in (by_layer, by_step):
        for part, expected in zip(found, by_torch, strict=True):
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [spgru.GRU, spgru.LSTM])
def test_random_directions_are_right_on_average(kind: Any) -> None:
    torch.manual_seed(0)
    module = kind(3, 4, weight_std=0.3)
    x = torch.randn(6, 2, 3)
    expected, _ = first_order(module, x)
    errors = {}
    for count in (8, 128):
        found = torch.stack(
            [
                spgru.Stream(module, count, seed=seed, shape="tangents")(x)[0].var / expected
                for seed in range(12)
            ]
        )
        errors[count] = (found - 1).square().mean().sqrt()
        assert errors[count] < 1.3 * (2 / count) ** 0.5
        # Of one output: its error over 12 seeds, and 48 outputs are looked at.
        assert (found.mean(0) - 1).abs().max() < 4 * (2 / count / 12) ** 0.5
    assert 2.5 < errors[8] / errors[128] < 6.5  # 4 by the square root


@pytest.mark.parametrize("kind", [spgru.GRU, spgru.LSTM])
def test_brute_force(kind: Any) -> None:
    torch.manual_seed(0)
    module = kind(2, 8, weight_std=0.05)
    with torch.no_grad():
        module.weight_hh_l0.mul_(2)
    x = torch.randn(12, 4, 2)
    stream = spgru.Stream(module, 16)
    stream.learn(torch.randn(12, 8, 2), 24)
    y, _ = stream(x)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(600):
        with sampling(module, generator), torch.no_grad():
            draws.append(module(x)[0].mean)
    truth = torch.stack(draws).var(0).sum(-1)
    ratio = y.var.sum(-1) / truth
    closed = module(x)[0].var.sum(-1) / truth
    assert (ratio - 1).abs().max() < 0.2  # of which the truth's own error is some 0.05
    assert (ratio[-1] - 1).abs().mean() < 0.5 * (closed[-1] - 1).abs().mean()


def test_uncertain_inputs() -> None:
    torch.manual_seed(0)
    module = spgru.GRU(3, 4, weight_std=0.1, dtype=torch.float64)
    x = Moments(*torch.rand(2, 6, 2, 3, dtype=torch.float64))
    expected, parts = first_order(module, x)
    assert (parts["input"] > 0.3 * expected).any()
    stream = spgru.Stream(module, 3000, shape="tangents")
    ratio = stream(x)[0].var / expected
    assert (ratio - 1).abs().max() < 4 * (2 / 3000) ** 0.5
    # A state given at the start is uncertain as inputs are.
    state = Moments(*torch.rand(2, 1, 2, 4, dtype=torch.float64))
    y, parts = spgru.respond(module, x[:1], state, sources=True)
    expected = (y[0].var - parts["higher order"][0])[0]
    ratio = stream.step(x[0], state)[0].var / expected
    assert (ratio - 1).abs().max() < 4 * (2 / 3000) ** 0.5


def test_module_with_a_loop_and_noise() -> None:
    torch.manual_seed(0)
    module = Forecaster()
    x = torch.randn(6, 2, 1, dtype=torch.float64)
    expected, parts = first_order(module, x)
    own = 0.05 + 0.1 * module(x).mean ** 2
    assert (parts["noise"][3:] > 1.5 * own[3:]).all()  # much of it has been read back
    stream = spgru.Stream(module, 3000, shape="tangents")
    ratio = stream(x)[0].var / expected
    assert (ratio - 1).abs().max() < 4 * (2 / 3000) ** 0.5
    # Noise that is added last has no error: at the first step all but it lies in the weights.
    stream = spgru.Stream(module, 1, shape="tangents")
    follow_every_weight(stream)
    torch.testing.assert_close(stream.step(x[0])[0].var, expected[0])


def test_learned_directions_leave_less_to_chance() -> None:
    torch.manual_seed(0)
    module = Forecaster(torch.float32)
    x = torch.randn(2, 6, 16, 1)
    expected, _ = first_order(module, x[1])

    def error(learned: int) -> float:
        found = []
        for seed in range(2):
            stream = spgru.Stream(module, 4, seed=seed)
            if learned:
                stream.learn(x[0], learned)
            found.append((stream(x[1])[0].var / expected).log().square().mean())
        return float(torch.stack(found).mean().sqrt())

    assert error(12) < 0.5 * error(0)


def test_pieces_are_the_whole() -> None:
    torch.manual_seed(0)
    module = spgru.LSTM(3, 4, 2, batch_first=True)
    x = Moments(torch.randn(2, 7, 3), torch.rand(2, 7, 3))
    stream = spgru.Stream(module, 5)
    whole, final = stream(x)
    first, state = stream(x[:, :3])
    second, state = stream(x[:, 3:], state)
    steps, single = [], None
    for x_t in x.unbind(1):
        y, single = stream.step(x_t, single)
        steps.append(y)
    for pieces in (spgru.cat([first, second], 1), spgru.stack(steps, 1)):
        assert torch.equal(pieces.mean, whole.mean)
        assert torch.equal(pieces.var, whole.var)
    assert final.step == single.step == state.step == 7
    again = spgru.Stream(module, 5)(x)[0]
    assert torch.equal(again.var, whole.var)
    other = spgru.Stream(module, 5, seed=1)(x)[0]
    assert not torch.equal(other.var, whole.var)
    assert torch.equal(other.mean, whole.mean)


def test_without_batch() -> None:
    torch.manual_seed(0)
    module = spgru.GRU(3, 4)
    stream, x = spgru.Stream(module, 5), torch.randn(6, 3)
    y, _ = stream(x)
    batched, _ = stream(x.unsqueeze(1))
    assert y.shape == (6, 4)
    torch.testing.assert_close(y.var, batched.var.squeeze(1))


def test_state_has_no_history_and_constant_size() -> None:
    stream, state, sizes = spgru.Stream(Forecaster(), 3), None, set()
    for x_t in torch.randn(4, 2, 1, dtype=torch.float64):
        y, state = stream.step(x_t, state)
        tensors = [*flatten(state.value).tensors, *state.tangents, y.mean, y.var]
        assert not any(tensor.requires_grad for tensor in tensors)
        assert all(tensor.grad_fn is None for tensor in tensors)
        sizes.add(sum(tensor.untyped_storage().nbytes() for tensor in tensors))
    assert len(sizes) == 1


def test_inference_mode_and_calibration() -> None:
    torch.manual_seed(0)
    module, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    expected, _ = spgru.Stream(module, 4)(x)
    module.set_gains_({"weight_hh_l0": torch.full((12,), 3.0), "coherence_l0": torch.ones(4)})
    with torch.inference_mode():
        found, _ = spgru.Stream(module, 4)(x)
    assert torch.equal(found.var, expected.var)


def test_certain_weights() -> None:
    module, x = spgru.GRU(3, 4, weight_std=0.0), torch.randn(5, 2, 3)
    stream = spgru.Stream(module, 4)
    stream.learn(x, 2)
    y, _ = stream(x)
    assert not y.var.any()
    torch.testing.assert_close(y.mean, module(x)[0].mean)


def test_shape() -> None:
    torch.manual_seed(0)
    closed = torch.rand(3, 50) + 0.5
    exact = torch.zeros(3, 50)
    # Noise alone: the shape is the closed form's, the total that of the estimate.
    noisy = 2 * closed * torch.randn(8, 3, 50).square().mean(0)
    found = with_shape(exact, noisy, closed, 8, 1)
    torch.testing.assert_close(found.sum(1), noisy.sum(1))
    assert (found / (2 * closed)).log().std() < 0.4 * (noisy / (2 * closed)).log().std()
    # Another shape, beyond the noise, is kept; so is one without noise.
    other = 2 * closed * torch.logspace(-1, 1, 50)
    found = with_shape(exact, other, closed, 1000, 1)
    torch.testing.assert_close(found, other, rtol=0.1, atol=0.1)
    torch.testing.assert_close(with_shape(other, exact, closed, 8, 1), other)
    # Nothing to go by, and no features.
    torch.testing.assert_close(with_shape(exact, noisy, exact, 8, 1), noisy)
    assert with_shape(exact[0], noisy[0], closed[0], 8, 1) is not None


def test_errors() -> None:
    module, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    with pytest.raises(ValueError, match="directions must be at least 1"):
        spgru.Stream(module, 0)
    with pytest.raises(ValueError, match="shape must be"):
        spgru.Stream(module, shape="round")
    with pytest.raises(ValueError, match="no random weights"):
        spgru.Stream(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="bidirectional"):
        spgru.Stream(spgru.GRU(3, 4, bidirectional=True))(x)
    with pytest.raises(ValueError, match="family='gamma'"):
        spgru.Stream(spgru.GRU(3, 4, family="gamma"))
    with at_mean(module), pytest.raises(ValueError, match="Stream needs the moments"):
        spgru.Stream(module)
    with pytest.raises(TypeError, match=r"must return \(output, state\)"):
        spgru.Stream(module, function=lambda x, state: module.step(x, state)[0]).step(x[0])
    with pytest.raises(ValueError, match="empty sequence"):
        spgru.Stream(module)(x[:0])
    with pytest.raises(ValueError, match="count must be at least 1"):
        spgru.Stream(module).learn(x, 0)
    stream = spgru.Stream(module, 4)
    _, state = stream.step(x[0])
    stream.learn(x, 2)
    with pytest.raises(ValueError, match="other directions"):
        stream.step(x[1], state)
