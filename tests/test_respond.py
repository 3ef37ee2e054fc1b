"""`respond` against its definition, by Jacobians of the closed-form mean that know no shortcut.

Its first order has one definition for all modules (`definition`), what that leaves one for a GRU
(`test_higher_order_of_a_gru`); the other layers and all kernels are compared with the closed form
where that is exact, and with each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import spgru
from oracles import resident_kilobytes
from spgru import Moments
from spgru.models.conv_recurrent import ConvGRU, ConvLSTM
from spgru.nn.contexts import at_mean, frozen, sampling, shared_weights
from spgru.nn.weight import is_spread, named_weights


def _means_of(result: Any) -> list[Tensor]:
    """The mean of every Moments in what a module returned."""
    if isinstance(result, Moments):
        return [result.mean if isinstance(result.mean, Tensor) else result.mean.data]
    return [mean for part in result for mean in _means_of(part)]


def _is_packed(part: Any) -> bool:
    return isinstance(part, PackedSequence)


def _variances_of(result: Any) -> list[Tensor]:
    if isinstance(result, Moments):
        return [result.var if isinstance(result.var, Tensor) else result.var.data]
    return [var for part in result for var in _variances_of(part)]


def definition(module: nn.Module, call: Callable[[Any, Tensor], Any], *extra: Moments) -> Any:
    """Sum over sources of var (d mean / d source)^2 for each output, by whole Jacobians.

    Args:
        call: runs the module, given a function to call it by and shifts of the extra sources
        extra: sources beside the weights
    """
    means = {name: p for name, p in module.named_parameters() if not is_spread(name)}
    weights = {name: weight.moments() for name, weight in named_weights(module)}
    names = [name for name in means if name in weights]

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        parameters = dict(zip(names, values[: len(names)], strict=True))

        def run(*args: Any, **options: Any) -> Any:
            return functional_call(module, parameters, args, options)

        return tuple(_means_of(call(run, *values[len(names) :])))

    points = [means[name].detach() for name in names] + [source.mean for source in extra]
    variances = [weights[name].var.detach() for name in names] + [source.var for source in extra]
    jacobians = torch.autograd.functional.jacobian(outputs, tuple(points), vectorize=True)
    return [
        sum(
            (j.square() * var).flatten(j.ndim - var.ndim).sum(-1)
            for j, var in zip(row, variances, strict=True)
        )
        for row in jacobians
    ]


def first_order(module: nn.Module, *inputs: Any, **options: Any) -> Any:
    """What `respond` gives without the part of higher order, as a list of variances."""
    y, parts = spgru.respond(module, *inputs, sources=True, **options)
    variances = _variances_of(y)
    if "higher order" not in parts:
        return variances
    rest = [part.data for part in tree_leaves(parts["higher order"], is_leaf=_is_packed)]
    assert all(bool((part >= 0).all()) for part in rest)
    return [var - part for var, part in zip(variances, rest, strict=True)]


def assert_is(found: Any, expected: list[Tensor], tolerance: float = 1e-6) -> None:
    variances = found if isinstance(found, list) else _variances_of(found)
    assert len(variances) == len(expected)
    for var, truth in zip(variances, expected, strict=True):
        torch.testing.assert_close(var, truth.to(var), rtol=tolerance, atol=1e-30)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "GRU": lambda **o: spgru.GRU(3, 4, **o),
    "GRU without bias": lambda **o: spgru.GRU(3, 4, bias=False, **o),
    "reset before": lambda **o: spgru.GRU(3, 4, reset_after=False, **o),
    "LSTM": lambda **o: spgru.LSTM(3, 4, **o),
    "projected": lambda **o: spgru.LSTM(3, 4, proj_size=2, **o),
    "RNN": lambda **o: spgru.RNN(3, 4, **o),
    "relu": lambda **o: spgru.RNN(3, 4, nonlinearity="relu", **o),
    "two layers, both ways": lambda **o: spgru.GRU(3, 4, 2, bidirectional=True, **o),
    "LSTM, both ways": lambda **o: spgru.LSTM(3, 4, bidirectional=True, **o),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_layers(layer: Callable[..., nn.Module], seed: int) -> None:
    torch.manual_seed(seed)
    module = layer(weight_std=0.3, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    assert_is(first_order(module, x), definition(module, lambda run: run(x)))
    assert torch.equal(spgru.respond(module, x)[0].mean, module(x)[0].mean)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("GRU", "compiled"),
        ("RNN", "compiled"),
        ("two layers, both ways", "compiled"),
        ("LSTM, both ways", "compiled"),
        ("GRU", "triton"),
        ("LSTM", "triton"),
    ],
)
def test_kernels(name: str, backend: str) -> None:
    """Batched gradients of kernels, in C and by torch, in both directions."""
    module = LAYERS[name](weight_std=0.3, dtype=torch.float64)
    kernels = LAYERS[name](weight_std=0.3, backend=backend)
    kernels.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    found, parts = spgru.respond(kernels, x.float(), sources=True)
    expected, expected_parts = spgru.respond(module, x, sources=True)
    assert_is(found, _variances_of(expected), 1e-4)  # measured 2e-6
    for part, truth in zip(
        tree_leaves(parts["higher order"]), tree_leaves(expected_parts["higher order"]), strict=True
    ):
        # A difference of nearly equal numbers: measured 1e-4.
        torch.testing.assert_close(part, truth.float(), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("size", [16, 20, 70])
def test_sizes_of_compiled_tiles(size: int) -> None:
    """Whole and partial tiles of C; above 64 units torch's own operations."""
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    slow = spgru.GRU(2, size, weight_std=0.1, dtype=torch.float64)
    fast = spgru.GRU(2, size, weight_std=0.1, backend="compiled")
    fast.load_state_dict(slow.state_dict())
    assert_is(spgru.respond(fast, x.float()), _variances_of(spgru.respond(slow, x)), 1e-4)


class Forecaster(nn.Module):
    """Reads its own forecast back, by steps or by calls, with noise added in several ways."""

    def __init__(self, way: str = "moments", kind: str = "GRU", **options: Any) -> None:
        super().__init__()
        self.rnn = getattr(spgru, kind)(1, 5, batch_first=True, weight_std=0.2, **options)
        self.head = spgru.Linear(5, 1, weight_std=0.2, **_without_backend(options))
        self.raw = spgru.Linear(5, 1, weight_std=0.2, **_without_backend(options))
        self.log_noise = nn.Parameter(torch.tensor(-2.0, dtype=options.get("dtype")))
        self.way = way

    def read(self, hidden: Moments, shift: Tensor) -> Moments:
        y, noise = self.head(hidden), self.log_noise.exp()
        noise = noise.expand(y.shape)
        if self.way == "moments":
            return Moments(y.mean + shift, y.var + noise)
        if self.way == "sum":
            return y + Moments(shift.expand(y.shape), noise)
        if self.way == "learned":
            return Moments(y.mean + shift, y.var + F.softplus(self.raw(hidden).mean))
        assert self.way == "none"
        return y

    def forward(self, x: Any, shifts: Tensor | None = None, steps: int = 4) -> Moments:
        """shifts (steps, B, 1): 0, by which the definition differentiates"""
        shifts = torch.zeros(steps, len(x), 1, dtype=x.dtype) if shifts is None else shifts
        output, state = self.rnn(x)
        outputs = [self.read(output[:, -1], shifts[0])]
        for shift in shifts[1:]:
            hidden, state = self.rnn.step(outputs[-1], state)
            outputs.append(self.read(hidden, shift))
        return spgru.stack(outputs, 1)


def _without_backend(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "backend"}


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
@pytest.mark.parametrize("way", ["none", "moments", "sum", "learned"])
def test_forecasts_that_are_read_back(way: str, kind: str) -> None:
    module = Forecaster(way, kind, dtype=torch.float64)
    x = torch.randn(3, 6, 1, dtype=torch.float64)
    noise = torch.full((4, 3, 1), torch.tensor(-2.0).exp().item(), dtype=torch.float64)
    if way == "learned":
        # The closed-form means that the noise is made from: those of the module itself.
        with spgru.nn.contexts.recording(module) as records:
            module(x)
        noise = torch.stack([F.softplus(r.neurons["output"].mean) for r in records["raw"]])
    shifts = Moments(torch.zeros_like(noise), noise.detach() if way != "none" else 0 * noise)
    expected = definition(module, lambda run, shift: run(x, shift), shifts)
    y, parts = spgru.respond(module, x, sources=True)
    assert_is([y.var - parts["higher order"]], expected)
    torch.testing.assert_close(sum(parts.values()), y.var)
    assert ("noise" in parts) == (way != "none")
    fast = Forecaster(way, kind, backend="compiled")
    fast.load_state_dict(module.state_dict())
    assert_is(spgru.respond(fast, x.float()), [y.var], 1e-4)


def test_parts_are_those_of_each_source() -> None:
    """A source without variance has no part, and does not change the part of another's mean."""
    module = Forecaster(dtype=torch.float64)
    x = Moments(torch.randn(2, 6, 1).double(), torch.rand(2, 6, 1).double())
    expected = definition(module, lambda run, mean: run(Moments(mean, x.var)), x)
    noise = definition(
        module, lambda run, s: run(x, s), Moments(*[torch.zeros(4, 2, 1).double()] * 2)
    )
    _, parts = spgru.respond(module, x, sources=True)
    total = sum(part for name, part in parts.items() if name not in ("noise", "higher order"))
    torch.testing.assert_close(total, expected[0], rtol=1e-6, atol=0)
    own = {"input", "noise", "higher order"}
    weights = sum(part for name, part in parts.items() if name not in own)
    torch.testing.assert_close(weights, noise[0], rtol=1e-6, atol=0)
    assert set(parts) == own | {
        name for name, _ in named_weights(module) if not name.startswith("raw")
    }


def _gru_of_shifts(module: nn.Module, x: Tensor, steps: list[dict[str, Tensor]]) -> Any:
    """A GRU written out: its states, and the remainder of every operation that a shift follows."""
    gates = dict(module.weights())
    w, u = gates["weight_hh_l0"].moments(), gates["weight_ih_l0"].moments()
    b, c = gates["bias_hh_l0"].moments(), gates["bias_ih_l0"].moments()
    h = Moments(torch.zeros(x.shape[1], 4).double(), torch.zeros(x.shape[1], 4).double())
    states, rests = [], []
    for x_t, shift in zip(x, steps, strict=True):
        rest = {"p": h.var @ w.var.T}
        p_mean = h.mean @ w.mean.T + b.mean + shift["p"]
        p_var = h.var @ (w.var + w.mean**2).T + h.mean**2 @ w.var.T + b.var
        i_mean, i_var = x_t @ u.mean.T + c.mean, x_t**2 @ u.var.T + c.var

        def squash(
            name: str, m: Tensor, v: Tensor, shift: Any = shift, rest: Any = rest
        ) -> Moments:
            y = torch.tanh(Moments(m, v)) if name == "c" else torch.sigmoid(Moments(m, v))
            slope = 1 - y.mean**2 - y.var if name == "c" else y.mean * (1 - y.mean) - y.var
            rest[name] = y.var - slope**2 * v
            return Moments(y.mean + shift[name], y.var)

        r = squash("r", i_mean[:, :4] + p_mean[:, :4], i_var[:, :4] + p_var[:, :4])
        z = squash("z", i_mean[:, 4:8] + p_mean[:, 4:8], i_var[:, 4:8] + p_var[:, 4:8])
        n_mean, n_var = p_mean[:, 8:], p_var[:, 8:]
        rest["product"] = r.var * n_var
        product = r.mean * n_mean + shift["product"]
        product_var = r.var * n_var + r.var * n_mean**2 + r.mean**2 * n_var
        n = squash("c", i_mean[:, 8:] + product, i_var[:, 8:] + product_var)
        rest["h"] = z.var * (n.var + h.var)
        difference = h.mean - n.mean
        var = (1 - z.mean) ** 2 * n.var + z.mean**2 * h.var
        var = var + z.var * (n.var + h.var + difference**2)
        h = Moments(n.mean + z.mean * difference + shift["h"], var)
        states.append(h)
        rests.append(rest)
    return states, rests


def test_higher_order_of_a_gru() -> None:
    """Every operation's remainder is a source of its own, after that operation."""
    module = spgru.GRU(3, 4, weight_std=0.3, dtype=torch.float64)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    sizes = {"p": 12, "r": 4, "z": 4, "product": 4, "c": 4, "h": 4}
    zeros = [torch.zeros(2, size).double() for _ in x for size in sizes.values()]

    def unflatten(shifts: tuple[Tensor, ...]) -> list[dict[str, Tensor]]:
        count = len(sizes)
        return [
            dict(zip(sizes, shifts[count * t : count * (t + 1)], strict=True))
            for t in range(len(x))
        ]

    states, rests = _gru_of_shifts(module, x, unflatten(tuple(zeros)))
    expected_var = module(x)[0].var[-1].detach()
    torch.testing.assert_close(states[-1].var, expected_var)
    jacobians = torch.autograd.functional.jacobian(
        lambda *shifts: _gru_of_shifts(module, x, unflatten(shifts))[0][-1].mean, tuple(zeros)
    )
    variances = [rest[name].detach() for rest in rests for name in sizes]
    expected = sum(
        (jacobian.square() * var).flatten(2).sum(-1)
        for jacobian, var in zip(jacobians, variances, strict=True)
    )
    _, parts = spgru.respond(module, x, sources=True)
    found = parts["higher order"][0][-1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-12)
    assert float((found / expected_var).max()) > 0.02


@pytest.mark.parametrize("graph", [False, True])
def test_one_layer_is_exact(graph: bool) -> None:
    """Where all that is added up is independent the closed form is exact: all orders together."""
    x = Moments(torch.randn(5, 3).double(), torch.rand(5, 3).double())
    linear = spgru.Linear(3, 2, weight_std=0.5, dtype=torch.float64)
    conv = spgru.Conv2d(2, 4, 2, groups=2, weight_std=0.5, dtype=torch.float64)
    images = Moments(torch.randn(3, 2, 2, 2).double(), torch.rand(3, 2, 2, 2).double())
    for module, inputs in ((linear, x), (conv, images)):
        y, parts = spgru.respond(module, inputs, sources=True, create_graph=graph)
        torch.testing.assert_close(y.var, module(inputs).var)
        assert bool((parts["higher order"] > 0).all())


BENDING: dict[str, Callable[[Moments, Moments], Moments]] = {
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "tanh": lambda x, _: torch.tanh(x),
    "relu": lambda x, _: torch.relu(x),
    "leaky": lambda x, _: F.leaky_relu(x, 0.1),
    "gelu": lambda x, _: F.gelu(x),
    "softplus": lambda x, _: F.softplus(x),
    "exp": lambda x, _: torch.exp(x),
    "clamp": lambda x, _: torch.clamp(x, min=0.3),
    "square": lambda x, _: x * x,
    "product": lambda x, y: x * y,
    "broadcast": lambda x, y: x * y[:1],
    "lerp": lambda x, y: spgru.functional.lerp(x, torch.ones(4, 3).double(), y),
    "dropout": lambda x, _: F.dropout(x, 0.3),
    "matrix": lambda x, y: x @ y.mT,
}


@pytest.mark.parametrize("bend", BENDING.values(), ids=BENDING)
def test_functions_of_moments_are_exact(bend: Callable[[Moments, Moments], Moments]) -> None:
    """One function of independent inputs: its closed form is the truth."""
    x, y = (Moments(torch.randn(4, 3).double(), torch.rand(4, 3).double()) for _ in range(2))
    found, parts = spgru.respond(spgru.Linear(1, 1), x, y, function=bend, sources=True, batch_dim=0)
    torch.testing.assert_close(found.var, bend(x, y).var, rtol=2e-5, atol=1e-9)
    assert bool((parts["higher order"] > 0).any())


def test_nearer_to_drawn_networks_than_first_order() -> None:
    """A plain RNN whose weights are very uncertain: first order alone lacks a tenth."""
    module = spgru.RNN(2, 24, weight_std=0.3 / 24**0.5)
    x = torch.randn(10, 4, 2)
    response, parts = spgru.respond(module, x, sources=True)
    generator = torch.Generator().manual_seed(0)
    draws = []
    with torch.no_grad():
        for _ in range(1000):
            with sampling(module, generator):
                draws.append(module(x)[0].mean[-1])
    true = torch.stack(draws).var(0).mean()  # 96 entries: within 1 %
    total = response[0].var[-1].mean()
    first = total - parts["higher order"][0][-1].mean()
    assert 0.95 < float(total / true) < 1.05
    assert float(first / true) < 0.95


def test_linear_networks_are_exact() -> None:
    """y = A2 (A1 x) with one random factor: the variance is known by hand."""
    first = spgru.Linear(3, 4, bias=False, weight_std=0.0, dtype=torch.float64)
    second = spgru.Linear(4, 2, weight_std=0.3, dtype=torch.float64)
    x = Moments(torch.randn(5, 3).double(), torch.rand(5, 3).double())
    _, parts = spgru.respond(nn.Sequential(first, second), x, sources=True)
    hidden = x.mean @ first.weight.T
    both = second.weight @ first.weight
    torch.testing.assert_close(parts["1.weight"], (0.09 * hidden**2).sum(1, True).expand(5, 2))
    torch.testing.assert_close(parts["1.bias"], torch.full((5, 2), 0.09).double())
    torch.testing.assert_close(parts["input"], x.var @ both.T**2)
    # Several units that share their inputs: the closed form is not exact here, this is.
    draws = torch.randn(20000, 3).double() * x.var[0].sqrt() + x.mean[0]
    sampled = (draws @ both.T).var(0)
    torch.testing.assert_close(parts["input"][0], sampled, rtol=0.06, atol=0)


class Between(nn.Module):
    """Operations between layers."""

    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"weight_std": 0.3, "dtype": torch.float64}
        self.conv = spgru.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, **options)
        self.same = spgru.Conv2d(4, 2, 3, padding="same", dilation=2, bias=False, **options)
        self.reflect = spgru.Conv2d(2, 2, 2, padding=1, padding_mode="reflect", **options)
        self.head = nn.Sequential(spgru.Linear(32, 3, **options), nn.ReLU(), nn.Sigmoid())

    def forward(self, x: Any) -> Moments:
        y = torch.tanh(self.same(torch.relu(self.conv(x)))) * 2 + 1
        return self.head(self.reflect(y)[..., :4, :4].flatten(1))


def test_convolutions_and_what_lies_between() -> None:
    module, x = Between(), torch.randn(3, 2, 7, 7, dtype=torch.float64)
    assert_is(first_order(module, x), definition(module, lambda run: run(x)))
    inputs = Moments(x, torch.rand_like(x))
    expected = definition(module, lambda run, mean: run(Moments(mean, inputs.var)), inputs)
    assert_is(first_order(module, inputs), expected)


@pytest.mark.parametrize("network", [ConvGRU, ConvLSTM])
@pytest.mark.parametrize("channels", [1, 0])
def test_convolutional_layers_over_time(network: Any, channels: int) -> None:
    module = network(channels, 2, 2, kernel_size=3, weight_std=0.2, dtype=torch.float64)
    x = torch.randn(3, 2, channels, 3, 3, dtype=torch.float64)
    assert_is(first_order(module, x), definition(module, lambda run: run(x)))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = spgru.LSTMCell(2, 3, weight_std=0.3, dtype=torch.float64)

    def forward(self, x: Tensor, state: Any = None) -> Any:
        for x_t in x:
            state = self.cell(x_t, state)
        return state


def test_cells_and_uncertain_initial_states() -> None:
    module, x = Cells(), torch.randn(4, 2, 2, dtype=torch.float64)
    assert_is(first_order(module, x), definition(module, lambda run: run(x)))
    h, c = (Moments(torch.randn(2, 3).double(), torch.rand(2, 3).double()) for _ in range(2))

    def call(run: Any, h_mean: Tensor, c_mean: Tensor) -> Any:
        return run(x, (Moments(h_mean, h.var), Moments(c_mean, c.var)))

    _, parts = spgru.respond(module, x, (h, c), sources=True)
    assert_is(first_order(module, x, (h, c)), definition(module, call, h, c))
    assert {"input 0", "input 1"} < set(parts)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_packed(kind: str, dtype: torch.dtype) -> None:
    module = getattr(spgru, kind)(3, 4, bidirectional=True, weight_std=0.3, dtype=torch.float64)
    x = torch.randn(5, 3, 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([2, 5, 3]), enforce_sorted=False)
    expected = definition(module, lambda run: run(packed))
    module = module.to(dtype)
    found = spgru.respond(module, packed.to(dtype))
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    assert_is(first_order(module, packed.to(dtype)), expected, tolerance)
    padded, lengths = spgru.pad_packed_moments(found[0])
    assert padded.shape == (5, 3, 8)
    assert lengths.tolist() == [2, 5, 3]
    uncertain = spgru.pack_padded_moments(
        Moments(x, torch.rand_like(x)).to(dtype), torch.tensor([2, 5, 3]), enforce_sorted=False
    )
    _, parts = spgru.respond(module, uncertain, sources=True)
    assert bool((parts["input"][0].data > 0).all())


def test_dropout_between_layers_is_noise() -> None:
    """Masks are sources: their first order is p / (1 - p) times the square of what they hide."""
    torch.manual_seed(3)
    module = spgru.GRU(2, 3, 2, dropout=0.4, weight_std=0.2, dtype=torch.float64)
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    _, parts = spgru.respond(module, x, sources=True)
    lower = spgru.GRU(2, 3, weight_std=0.2, dtype=torch.float64)
    upper = spgru.GRU(3, 3, weight_std=0.2, dtype=torch.float64)
    state = module.state_dict()
    lower.load_state_dict({k: v for k, v in state.items() if k.endswith("l0")})
    upper.load_state_dict({k[:-1] + "0": v for k, v in state.items() if k.endswith("l1")})
    middle = lower(x)[0].detach()
    dropped = spgru.functional.dropout(middle, 0.4)
    jacobian = torch.autograd.functional.jacobian(
        lambda mean: upper(Moments(mean, dropped.var))[0].mean, middle.mean
    )
    expected = (jacobian.square() * 0.4 / 0.6 * middle.mean**2).flatten(3).sum(-1)
    torch.testing.assert_close(parts["noise"][0], expected)
    assert "noise" not in spgru.respond(module.eval(), x, sources=True)[1]


@pytest.mark.parametrize("shape", [(4, 4), (4, 3), (3, 4)])
def test_sequences_are_found_whatever_the_layout(shape: tuple[int, int]) -> None:
    """Time as long as the batch, either first; each sequence as it is alone."""
    for batch_first in (False, True):
        module = spgru.GRU(2, 3, batch_first=batch_first, weight_std=0.3, dtype=torch.float64)
        x = torch.randn(*shape, 2, dtype=torch.float64)
        found = spgru.respond(module, x)[0]
        dim = 0 if batch_first else 1
        alone = [spgru.respond(module, part)[0] for part in x.split(1, dim)]
        torch.testing.assert_close(found.var, torch.cat([part.var for part in alone], dim))
        torch.testing.assert_close(spgru.respond(module, x, batch_dim=dim)[0].var, found.var)


def test_many_sequences_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, over gradients that fade with time, and by two digits; never one by one."""
    from spgru.response import arguments

    module = nn.Sequential(spgru.GRU(2, 8), _LastOf(), spgru.Linear(8, 1))
    x = Moments(torch.randn(30, 300, 2), torch.rand(30, 300, 2))
    alone = spgru.respond(module, x[:, 290:292])
    monkeypatch.setattr(arguments, "single", None)
    found = spgru.respond(module, x)
    torch.testing.assert_close(found.var[290:292], alone.var, rtol=1e-4, atol=0)


class _LastOf(nn.Module):
    def forward(self, outputs: Any) -> Moments:
        return outputs[0][-1]


class Mixing(nn.Module):
    """Sequences that influence each other, and an initial state that they share."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.gru = spgru.GRU(2, 3, weight_std=0.3, dtype=torch.float64)
        self.shared = shared

    def forward(self, x: Tensor, h: Moments | None = None) -> Moments:
        if self.shared:
            return self.gru(x, h.expand(1, x.shape[1], 3))[0][-1]
        y = self.gru(x)[0][-1]
        return Moments(y.mean - 0.5 * y.mean.mean(0), y.var)


@pytest.mark.parametrize("shared", [False, True])
def test_sequences_that_are_not_independent(shared: bool) -> None:
    module, x = Mixing(shared), torch.randn(4, 3, 2, dtype=torch.float64)
    if not shared:
        assert_is(first_order(module, x), definition(module, lambda run: run(x)))
        return
    h = Moments(torch.randn(1, 1, 3).double(), torch.rand(1, 1, 3).double())
    expected = definition(module, lambda run, mean: run(x, Moments(mean, h.var)), h)
    assert_is(first_order(module, x, h), expected)


class _Contrast(nn.Module):
    """A share of one sequence's output added to that of the next."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.linear, self.share = spgru.Linear(3, 1, bias=False, weight_std=0.1), share

    def forward(self, x: Tensor) -> Moments:
        y = self.linear(x)
        other = y.roll(1, 0)
        return Moments(y.mean + self.share * other.mean, y.var + self.share**2 * other.var)


@pytest.mark.parametrize("share", [-1.0, 0.05])
@pytest.mark.parametrize("count", [2, 4, 5, 8])
def test_contrasts_within_a_batch_are_noticed(share: float, count: int) -> None:
    torch.manual_seed(0)
    module, x = _Contrast(share), torch.randn(count, 3)
    var = module.linear.weight_moments("weight").var
    expected = (x + share * x.roll(1, 0)).square() @ var.T
    torch.testing.assert_close(spgru.respond(module, x).var, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("batch_first", [True, False])
def test_no_entry_of_an_uncertain_input_is_lost_among_many(batch_first: bool) -> None:
    """Of thousands, the gradients of some cancel in the sum that sequences are found by."""
    torch.manual_seed(3)
    layer = spgru.GRU(4, 8, weight_std=0.2, batch_first=batch_first)
    x = torch.randn(300, 8, 4) if batch_first else torch.randn(8, 300, 4)
    dim, uncertain = 0 if batch_first else 1, Moments(x, torch.full_like(x, 0.1))
    found = spgru.respond(layer, uncertain)[0].var
    parts = [spgru.respond(layer, part)[0].var for part in uncertain.split(20, dim)]
    torch.testing.assert_close(found, torch.cat(parts, dim), rtol=1e-4, atol=1e-7)


def test_memory_bounds_what_is_done_at_once() -> None:
    module, x = Forecaster(), torch.randn(3, 6, 1)
    expected = spgru.respond(module, x)
    for memory in (1, 20000, 100000):
        torch.testing.assert_close(spgru.respond(module, x, memory=memory).var, expected.var)


def test_nothing_is_left_behind() -> None:
    """Graph and notes refer to each other; a call keeps some 10 MB while it runs."""
    module, x = Forecaster(), torch.randn(64, 40, 1)
    for _ in range(3):
        spgru.respond(module, x, steps=12)
    before = resident_kilobytes()
    for _ in range(20):
        spgru.respond(module, x, steps=12)
    assert resident_kilobytes() - before < 20_000


def test_variance_can_be_trained_on() -> None:
    module = Forecaster("learned", dtype=torch.float64)
    x = torch.randn(2, 3, 1, dtype=torch.float64)
    assert not spgru.respond(module, x).var.requires_grad
    y = spgru.respond(module, x, create_graph=True, steps=2)
    torch.testing.assert_close(y.var, spgru.respond(module, x, steps=2).var)
    parameters = [module.rnn.weight_hh_l0, module.rnn.spread_w_ih_l0, module.raw.weight]

    def variance(*values: Tensor) -> Tensor:
        names = ("rnn.weight_hh_l0", "rnn.spread_w_ih_l0", "raw.weight")
        return functional_call(
            _Responding(module),
            {f"module.{n}": v for n, v in zip(names, values, strict=True)},
            (x,),
        )

    values = tuple(p.detach().clone().requires_grad_() for p in parameters)
    assert torch.autograd.gradcheck(variance, values, fast_mode=True)


def test_what_made_an_uncertain_input_can_be_trained_on() -> None:
    torch.manual_seed(0)
    kind = {"dtype": torch.float64}
    before, gru = spgru.Linear(3, 2, **kind), spgru.GRU(2, 3, **kind)  # type: ignore[arg-type]
    x = torch.randn(4, 2, 3, dtype=torch.float64)

    def both(weight: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        h = functional_call(before, {"weight": weight, "spread_w": spread}, (x,))
        y = spgru.respond(gru, h, create_graph=True)[0]
        return y.mean, y.var

    values = [before.weight, before.get_parameter("spread_w")]
    values = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(both, values, fast_mode=True)


class _Responding(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return spgru.respond(self.module, x, create_graph=True, steps=2).var


def test_under_other_modes() -> None:
    module, x = Forecaster(), torch.randn(3, 6, 1)
    expected = spgru.respond(module, x).var
    for block in (frozen(module), shared_weights(module), torch.no_grad(), torch.inference_mode()):
        with block:
            torch.testing.assert_close(spgru.respond(module, x).var, expected)
    for block in (sampling(module, torch.Generator()), at_mean(module)):
        with block, pytest.raises(ValueError, match="outside of `sampling`"):
            spgru.respond(module, x)
    compiled = torch.compile(module, backend="eager")
    torch.testing.assert_close(spgru.respond(compiled, x).var, expected)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    torch.testing.assert_close(spgru.respond(module, x).var, expected)
    torch.testing.assert_close(
        spgru.respond(module, x, function=lambda x: module(x)[:, :2]).var, expected[:, :2]
    )


def test_other_threads_are_not_observed() -> None:
    module, x = Forecaster(), torch.randn(3, 6, 1)
    expected, entered, done = module(x).var, threading.Event(), threading.Event()

    def slow(x: Tensor) -> Moments:
        entered.set()
        done.wait(5)
        return module(x)

    thread = threading.Thread(target=lambda: spgru.respond(module, x, function=slow))
    thread.start()
    entered.wait(5)
    torch.testing.assert_close(module(x).var, expected)
    done.set()
    thread.join()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (spgru.GRU(3, 4, rule="paper"), "rule='paper'"),
        (spgru.GRU(3, 4, family="gamma"), "family='gamma'"),
        (spgru.GRU(3, 4, dtype=torch.bfloat16), "module.float()"),
        (nn.Linear(3, 4), "no random weights"),
    ],
)
def test_what_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        spgru.respond(module, torch.rand(2, 2, 3))


def test_errors_of_the_call() -> None:
    layer, x = spgru.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(TypeError, match=r"must be an nn\.Module"):
        spgru.respond(layer.forward, x)
    with pytest.raises(ValueError, match="memory must be a positive"):
        spgru.respond(layer, x, memory=0)
    with pytest.raises(ValueError, match="batch_dim is 2"):
        spgru.respond(layer, x, batch_dim=2)
    with pytest.raises(TypeError, match="returned no Moments"):
        spgru.respond(layer, x, function=lambda x: layer(x).mean)
    with pytest.raises(RuntimeError, match=r"torch.no_grad\(\)"):
        spgru.respond(layer, x, function=torch.no_grad()(layer))
    calls: list[int] = []

    def unsteady(x: Tensor) -> Moments:
        calls.append(1)
        y = layer(x)
        return y * 2 if len(calls) == 1 else y

    with pytest.raises(RuntimeError, match="did not do the same"):
        spgru.respond(layer, x, function=unsteady)


def test_calibration_is_left_out() -> None:
    layer, x = spgru.GRU(3, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    expected = spgru.respond(layer, x)[0]
    layer.set_gains_({"weight_hh_l0": torch.full((12,), 3.0, dtype=torch.float64)})
    assert not torch.allclose(layer(x)[0].var, expected.var)
    found = spgru.respond(layer, x)[0]
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.var, expected.var)


def test_a_tuple_is_several_arguments_as_for_audit() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = spgru.GRU(2, 3), spgru.Linear(1, 3)

        def forward(self, x: Tensor, static: Tensor) -> Moments:
            return self.gru(x)[0] + self.head(static)

    module, given = Two(), (torch.randn(5, 4, 2), torch.randn(4, 1))
    together, apart = spgru.respond(module, given), spgru.respond(module, *given)
    torch.testing.assert_close(together.var, apart.var)
    assert spgru.consistent_gain(module, given) == spgru.consistent_gain(module, *given)
