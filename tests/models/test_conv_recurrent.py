"""Convolutional GRU and LSTM against plain torch, drawn weights, and themselves in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import spgru
from oracles import assert_monte_carlo, draw, random_moments
from spgru import Moments, certain
from spgru.models import ConvGRU, ConvGRUCell, ConvLSTM, ConvLSTMCell
from spgru.models.conv_recurrent import ConvCell, ConvNetwork
from spgru.nn.contexts import sampling
from spgru.nn.weight import named_weights

State = tuple[Tensor, ...]
NETWORKS: list[type[ConvNetwork]] = [ConvGRU, ConvLSTM]


def plain_conv(cell: Any, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Every h (T, B, C, height, width) and the last state, written with torch alone."""
    weights = {name: weight.moments().mean for name, weight in named_weights(cell)}
    outputs = []
    for x_t in x:
        if "weight_ih" in weights:
            from_x = same_size(x_t, weights["weight_ih"], weights["bias_ih"])
        else:
            from_x = weights["bias_ih"][:, None, None].expand(len(x_t), -1, *x_t.shape[2:])
        step = plain_lstm if isinstance(cell, ConvLSTMCell) else plain_gru
        state = step(cell, from_x, state, weights["weight_hh"], weights["bias_hh"])
        outputs.append(state[0])
    return torch.stack(outputs), state


def same_size(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)


def plain_gru(cell: Any, from_x: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
    (h,) = state
    x_r, x_z, x_c = from_x.chunk(3, 1)
    w_r, w_z, w_c = weight.chunk(3)
    b_r, b_z, b_c = bias.chunk(3)
    r = torch.sigmoid(x_r + same_size(h, w_r, b_r))
    z = torch.sigmoid(x_z + same_size(h, w_z, b_z))
    if cell.reset_after:
        c = torch.tanh(x_c + r * same_size(h, w_c, b_c))
    else:
        c = torch.tanh(x_c + same_size(r * h, w_c, b_c))
    return ((1 - z) * c + z * h,)


def plain_lstm(cell: Any, from_x: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
    h, c = state
    i, f, g, o = (from_x + same_size(h, weight, bias)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def parts(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


def as_state(*values: Any) -> Any:
    return values if len(values) > 1 else values[0]


def assert_same(got: Moments, want: Moments) -> None:
    torch.testing.assert_close(got.mean, want.mean)
    torch.testing.assert_close(got.var, want.var)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(ConvGRU, {}), (ConvGRU, {"reset_after": False}), (ConvLSTM, {})],
    ids=["gru", "gru, reset before", "lstm"],
)
@pytest.mark.parametrize("in_channels", [3, 0])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_without_variance_it_is_the_plain_network(
    kind: type[ConvNetwork], options: dict[str, Any], in_channels: int, kernel_size: int
) -> None:
    network = kind(in_channels, 4, 2, kernel_size, weight_std=0.0, dtype=torch.float64, **options)
    x = torch.randn(5, 2, in_channels, 6, 7).double()
    start = [0.5 * torch.randn(2, 2, 4, 6, 7).double() for _ in kind.cell.state_names]
    lower, low_state = plain_conv(network.cells[0], x, tuple(value[0] for value in start))
    upper, high_state = plain_conv(network.cells[1], lower, tuple(value[1] for value in start))
    for value, state in ((x, start), (certain(x), [certain(value) for value in start])):
        output, final = network(value, as_state(*state))
        torch.testing.assert_close(output.mean, upper)
        assert (output.var == 0).all()
        for got, *want in zip(parts(final), low_state, high_state, strict=True):
            torch.testing.assert_close(got.mean, torch.stack(want))
            assert (got.var == 0).all()


@pytest.mark.parametrize("size", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(ConvGRU, {}), (ConvGRU, {"reset_after": False}), (ConvLSTM, {})],
    ids=["gru", "gru, reset before", "lstm"],
)
def test_with_filters_of_one_pixel_each_is_a_sequence_of_its_own(
    kind: type[ConvNetwork], options: dict[str, Any], size: tuple[int, int]
) -> None:
    """Means and variances are those of `spgru.GRU` or `spgru.LSTM` on a batch of pixels."""
    network = kind(3, 4, 2, 1, weight_std=0.2, dtype=torch.float64, **options)
    flat = spgru.LSTM if kind is ConvLSTM else spgru.GRU
    layer = flat(3, 4, 2, dtype=torch.float64, **options)
    for k, cell in enumerate(network.cells):
        for name, weight in named_weights(cell):
            moments = weight.moments()
            shape = moments.shape[:2]
            layer.set_weight_(
                f"{name}_l{k}", Moments(moments.mean.view(shape), moments.var.view(shape))
            )

    def pixels(x: Moments) -> Moments:
        """(first, B, C, height, width) -> (first, B height width, C)"""
        return Moments(*(part.movedim(2, -1).flatten(1, 3) for part in x))

    x = random_moments(5, 2, 3, *size)
    start = [random_moments(2, 2, 4, *size, scale=0.1) for _ in kind.cell.state_names]
    for state in (None, start):
        output, final = network(x, None if state is None else as_state(*state))
        before = None if state is None else as_state(*map(pixels, state))
        want, want_final = layer(pixels(x), before)
        assert_same(pixels(output), want)
        for got, truth in zip(parts(final), parts(want_final), strict=True):
            assert_same(pixels(got), truth)


@pytest.mark.parametrize("kind", NETWORKS)
def test_to_run_on_the_state_alone_is_to_see_nothing_but_zeros(kind: type[ConvNetwork]) -> None:
    alone, fed = (kind(inputs, 3, 2, 3, dtype=torch.float64) for inputs in (0, 1))
    fed.load_state_dict(alone.state_dict(), strict=False)
    start = as_state(*(random_moments(2, 2, 3, 4, 5) for _ in kind.cell.state_names))
    got, got_state = alone(torch.zeros(3, 2, 0, 4, 5).double(), start)
    want, want_state = fed(torch.zeros(3, 2, 1, 4, 5).double(), start)
    assert_same(got, want)
    for value, expected in zip(parts(got_state), parts(want_state), strict=True):
        assert_same(value, expected)


def test_the_first_state_of_a_gru_is_exact() -> None:
    """From rest, with reset before the product, no dependence is neglected."""
    cell = ConvGRUCell(2, 2, 3, reset_after=False, weight_std=0.3, dtype=torch.float64)
    x, count = torch.randn(1, 2, 3, 3).double(), 40_000
    windows = F.unfold(x, 3, padding=1)  # (1, 18, 9)
    moments = {name: weight.moments() for name, weight in named_weights(cell)}
    drawn = {
        name: m.mean + m.std * torch.randn(count, *m.shape).double() for name, m in moments.items()
    }
    summed = drawn["weight_ih"].flatten(2) @ windows
    summed = summed + (drawn["bias_ih"] + drawn["bias_hh"]).unsqueeze(-1)
    _, z, c = summed.chunk(3, 1)
    samples = (1 - torch.sigmoid(z)) * torch.tanh(c)
    assert_monte_carlo(samples, cell(x).reshape(2, 9))


def drawn_lstm_step(cell: ConvLSTMCell, x: Tensor, h: Tensor, c: Moments, count: int) -> State:
    """Draws of h and c after one step, (count, C, height width); x, h and c (1, C, ...)."""
    weights = {name: draw(weight.moments(), count) for name, weight in named_weights(cell)}
    summed = (weights["bias_ih"] + weights["bias_hh"]).unsqueeze(-1)
    for name, image in (("weight_ih", x), ("weight_hh", h)):
        summed = summed + weights[name].flatten(2) @ F.unfold(image, 3, padding=1)
    i, f, g, o = summed.chunk(4, 1)
    before = draw(c.reshape(*c.shape[1:2], -1), count)
    after = torch.sigmoid(f) * before + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(after), after


def test_one_step_of_an_lstm_is_exact_where_nothing_is_neglected() -> None:
    """c' from a known h: gates of one unit do not share weights. h' where c' is normal besides,
    as is a c that is kept: the input gate shut and the forget gate open."""
    cell = ConvLSTMCell(2, 2, 3, weight_std=0.3, dtype=torch.float64)
    x, h = torch.randn(1, 2, 3, 3).double(), torch.randn(1, 2, 3, 3).double()
    c = random_moments(1, 2, 3, 3)
    _, got_c = cell(x, (h, c))
    _, drawn_c = drawn_lstm_step(cell, x, h, c, 40_000)
    assert_monte_carlo(drawn_c, got_c.reshape(2, 9))
    with torch.no_grad():
        cell.bias_ih[:4] = torch.tensor([-60.0, -60.0, 60.0, 60.0])
    got_h, got_c = cell(x, (h, c))
    assert_same(got_c, c)
    drawn_h, _ = drawn_lstm_step(cell, x, h, c, 40_000)
    assert_monte_carlo(drawn_h, got_h.reshape(2, 9))


@pytest.mark.parametrize("kind", NETWORKS)
def test_steps_and_pieces_give_what_one_pass_gives(kind: type[ConvNetwork]) -> None:
    network = kind(2, 3, 2, 3, dtype=torch.float64)
    x = random_moments(6, 2, 2, 4, 5)
    want, want_state = network(x)
    state, outputs = None, []
    for piece in x.split([1, 3, 2]):
        output, state = network(piece, state)
        outputs.append(output)
    assert_same(spgru.cat(outputs), want)
    for got, expected in zip(parts(state), parts(want_state), strict=True):
        assert_same(got, expected)
    states, outputs = network.by_layer(None), []
    for piece in x.split([4, 2]):
        output, states = network.run(piece, states)
        outputs.append(output)
    assert_same(spgru.cat(outputs), want)
    for got, expected in zip(states, network.by_layer(want_state), strict=True):
        for a, b in zip(parts(got), parts(expected), strict=True):
            assert_same(a, b)
    cell, state = network.cells[0], None
    for t in range(6):
        state = cell(x[t], state)
    for got, expected in zip(parts(state), parts(want_state), strict=True):
        assert_same(got, expected[0])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ConvGRUCell, {"reset_after": False}),
        *(
            (kind, options)
            for kind in (ConvGRUCell, ConvLSTMCell)
            for options in ({}, {"rule": "paper"}, {"parameterization": "natural"})
        ),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("in_channels", [1, 0])
def test_gradcheck_of_the_cells(
    kind: type[ConvCell], options: dict[str, Any], in_channels: int
) -> None:
    cell = kind(in_channels, 2, 3, dtype=torch.float64, **options)
    names, parameters = zip(*cell.named_parameters(), strict=True)
    x = random_moments(1, in_channels, 2, 3)
    state = [part for _ in kind.state_names for part in random_moments(1, 2, 2, 3)]

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        x, *state = (Moments(*values[k : k + 2]) for k in range(0, count, 2))
        weights = dict(zip(names, values[count:], strict=True))
        after = torch.func.functional_call(cell, weights, (x, as_state(*state)))
        return tuple(part for moments in parts(after) for part in moments)

    count = 2 + len(state)
    values = [v.detach().clone().requires_grad_() for v in (*x, *state, *parameters)]
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


@pytest.mark.parametrize(
    ("kind", "neurons"),
    [
        (ConvGRU, {"r", "z", "candidate", "state"}),
        (ConvLSTM, {"i", "f", "o", "candidate", "state", "cell"}),
    ],
)
def test_trace_and_audit_see_every_neuron(kind: type[ConvNetwork], neurons: set[str]) -> None:
    network = kind(2, 3, 2, 3)
    x = torch.randn(4, 2, 2, 5, 5)
    trace = spgru.trace(network, x)
    assert list(trace) == ["cells.0", "cells.1"]
    assert set(trace["cells.1"]) == neurons
    assert all(trace["cells.0"][name].shape == (4, 2, 3, 5, 5) for name in neurons)
    torch.testing.assert_close(trace["cells.1"]["state"].var, network(x)[0].var)
    report = spgru.audit(network, x, draws=300)
    for layer in report.layers.values():
        assert len(layer.ratio) == 4
        low, high = layer.ratio_interval
        assert low[0] < 1.02
        assert high[0] > 0.98
        # Measured with 1500 draws: 0.44 to 1 against weights that stay, 0.80 to 1.03 against those
        # redrawn at every step; weights shared over time are what the closed form misses most.
        assert layer.redrawn_ratio is not None
        assert (layer.ratio > 0.4).all()
        assert (layer.redrawn_ratio > 0.7).all()
        assert (layer.redrawn_ratio < 1.1).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_redrawing_draws_afresh_at_every_step(kind: type[ConvNetwork]) -> None:
    network = kind(0, 3, 1, 3, weight_std=1.0)
    nothing, generator = torch.zeros(2, 1, 0, 4, 4), torch.Generator()
    with sampling(network, generator.manual_seed(1)):
        kept, again = network(nothing)[0], network(nothing)[0]
    assert torch.equal(kept.mean, again.mean)
    with sampling(network, generator.manual_seed(1), every_step=True):
        redrawn = network(nothing)[0]
    with sampling(network, generator.manual_seed(1), every_step=True):
        first = network(nothing[:1])[0]
        other = network(nothing[:1])[0]
    assert torch.equal(redrawn.mean[:1], first.mean)
    assert not torch.equal(other.mean, first.mean)
    assert (redrawn.var == 0).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_errors_of_the_networks(kind: type[ConvNetwork]) -> None:
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        kind.cell(1, 2, 4)
    with pytest.raises(ValueError, match="hidden_channels 0"):
        kind.cell(1, 0)
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        kind(1, 2, 0)
    network = kind(2, 3, 2, 3)
    with pytest.raises(ValueError, match=r"pass \(T, B, 2, height, width\)"):
        network(torch.zeros(4, 1, 3, 5, 5))
    with pytest.raises(TypeError, match=r"torch\.nn has no convolutional GRU or LSTM"):
        network.cells[0].to_torch()
    x, right = torch.zeros(4, 1, 2, 5, 5), torch.zeros(2, 1, 3, 5, 5)
    for k, name in enumerate(kind.cell.state_names):
        for wrong, message in (
            (right[:1], rf"hx \({name}\) has shape \(1, 1, 3, 5, 5\) but the network has 2 layers"),
            (right[0], rf"hx \({name}\) has shape \(1, 3, 5, 5\) but the network has 2 layers"),
            (right[..., :4, :], rf"hx \({name}\) has shape \(1, 3, 4, 5\) but must have"),
            (right.double(), rf"hx \({name}\) has dtype torch\.float64"),
        ):
            state = [wrong if j == k else right for j in range(len(kind.cell.state_names))]
            with pytest.raises(ValueError, match=message):
                network(x, as_state(*state))


def test_a_state_is_one_or_a_pair() -> None:
    x, state = torch.zeros(4, 1, 2, 5, 5), torch.zeros(1, 1, 3, 5, 5)
    lstm, gru = ConvLSTM(2, 3, 1, 3), ConvGRU(2, 3, 1, 3)
    for wrong in (state, certain(state), (state,), torch.stack([state, state])):
        with pytest.raises(TypeError, match=r"hx of an LSTM must be the pair \(h_0, c_0\)"):
            lstm(x, wrong)
    with pytest.raises(TypeError, match=r"hx of an LSTM must be the pair \(h_0, c_0\)"):
        lstm.cells[0](x[0], state[0])
    with pytest.raises(TypeError, match=r"hx \(c\) must be a Tensor or Moments, got NoneType"):
        lstm(x, (state, None))
    with pytest.raises(TypeError, match=r"hx \(h\) must be a Tensor or Moments, got tuple"):
        gru(x, (state, state))
    output, (h, c) = lstm(x, [state, certain(state)])
    assert h.shape == c.shape == (1, 1, 3, 5, 5)
    torch.testing.assert_close(h.var[0], output.var[-1])
