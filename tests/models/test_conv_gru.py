"""The convolutional GRU against plain torch, drawn weights, and itself in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import spgru
from oracles import assert_monte_carlo, random_moments
from spgru import Moments, certain
from spgru.models import ConvGRU, ConvGRUCell
from spgru.nn.weight import named_weights, sampling


def plain_conv_gru(cell: ConvGRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Every state (T, B, C, height, width), written with torch alone."""
    weights = {name: weight.moments().mean for name, weight in named_weights(cell)}
    pad = cell.kernel_size // 2
    states = []
    for x_t in x:
        if "weight_ih" in weights:
            from_x = F.conv2d(x_t, weights["weight_ih"], weights["bias_ih"], padding=pad)
        else:
            from_x = weights["bias_ih"][:, None, None].expand(len(h), -1, *h.shape[2:])
        x_r, x_z, x_c = from_x.chunk(3, 1)
        w_r, w_z, w_c = weights["weight_hh"].chunk(3)
        b_r, b_z, b_c = weights["bias_hh"].chunk(3)
        r = torch.sigmoid(x_r + F.conv2d(h, w_r, b_r, padding=pad))
        z = torch.sigmoid(x_z + F.conv2d(h, w_z, b_z, padding=pad))
        if cell.reset_after:
            c = torch.tanh(x_c + r * F.conv2d(h, w_c, b_c, padding=pad))
        else:
            c = torch.tanh(x_c + F.conv2d(r * h, w_c, b_c, padding=pad))
        h = (1 - z) * c + z * h
        states.append(h)
    return torch.stack(states)


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("in_channels", [3, 0])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_without_variance_it_is_the_plain_network(
    reset_after: bool, in_channels: int, kernel_size: int
) -> None:
    network = ConvGRU(
        in_channels, 4, 2, kernel_size,
        reset_after=reset_after, weight_std=0.0, dtype=torch.float64,
    )  # fmt: skip
    x = torch.randn(5, 2, in_channels, 6, 7).double()
    h = 0.5 * torch.randn(2, 2, 4, 6, 7).double()
    lower = plain_conv_gru(network.cells[0], x, h[0])  # type: ignore[arg-type]
    upper = plain_conv_gru(network.cells[1], lower, h[1])  # type: ignore[arg-type]
    for value, state in ((x, h), (certain(x), certain(h))):
        output, final = network(value, state)
        torch.testing.assert_close(output.mean, upper)
        torch.testing.assert_close(final.mean, torch.stack([lower[-1], upper[-1]]))
        assert (output.var == 0).all()
        assert (final.var == 0).all()


def test_the_first_state_is_exact() -> None:
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


def test_steps_and_pieces_give_what_one_pass_gives() -> None:
    network = ConvGRU(2, 3, 2, 3, dtype=torch.float64)
    x = random_moments(6, 2, 2, 4, 5)
    want, want_state = network(x)
    state, outputs = None, []
    for piece in x.split([1, 3, 2]):
        output, state = network(piece, state)
        outputs.append(output)
    assert state is not None
    for got, expected in ((spgru.cat(outputs), want), (state, want_state)):
        torch.testing.assert_close(got.mean, expected.mean)
        torch.testing.assert_close(got.var, expected.var)
    cell, h = network.cells[0], None
    for t in range(6):
        h = cell(x[t], h)
    torch.testing.assert_close(h.var, want_state.var[0])


@pytest.mark.parametrize(
    "options",
    [{}, {"reset_after": False}, {"rule": "paper"}, {"parameterization": "natural"}],
    ids=str,
)
@pytest.mark.parametrize("in_channels", [1, 0])
def test_gradcheck_of_the_conv_gru(options: dict[str, Any], in_channels: int) -> None:
    cell = ConvGRUCell(in_channels, 2, 3, dtype=torch.float64, **options)
    names, parameters = zip(*cell.named_parameters(), strict=True)
    x, h = random_moments(1, in_channels, 2, 3), random_moments(1, 2, 2, 3)

    def run(*values: Tensor) -> tuple[Tensor, Tensor]:
        weights = dict(zip(names, values[4:], strict=True))
        inputs = (Moments(*values[:2]), Moments(*values[2:4]))
        return tuple(torch.func.functional_call(cell, weights, inputs))  # type: ignore[return-value]

    values = [v.detach().clone().requires_grad_() for v in (*x, *h, *parameters)]
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_trace_and_audit_see_every_neuron() -> None:
    network = ConvGRU(2, 3, 2, 3)
    x = torch.randn(4, 2, 2, 5, 5)
    trace = spgru.trace(network, x)
    assert list(trace) == ["cells.0", "cells.1"]
    assert set(trace["cells.1"]) == {"r", "z", "candidate", "state"}
    assert trace["cells.0"]["z"].shape == (4, 2, 3, 5, 5)
    torch.testing.assert_close(trace["cells.1"]["state"].var, network(x)[0].var)
    report = spgru.audit(network, x, draws=300)
    for layer in report.layers.values():
        assert len(layer.ratio) == 4
        low, high = layer.ratio_interval
        assert low[0] < 1.02
        assert high[0] > 0.98
        # Measured with 1500 draws: 0.47 to 1 against weights that stay, 0.80 to 1 against weights
        # redrawn at every step; weights shared over time are what the closed form misses most.
        assert layer.redrawn_ratio is not None
        assert (layer.ratio > 0.4).all()
        assert (layer.redrawn_ratio > 0.7).all()
        assert (layer.redrawn_ratio < 1.1).all()


def test_redrawing_draws_afresh_at_every_step() -> None:
    network = ConvGRU(0, 3, 1, 3, weight_std=1.0)
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


def test_conv_gru_errors() -> None:
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        ConvGRUCell(1, 2, 4)
    with pytest.raises(ValueError, match="hidden_channels 0"):
        ConvGRUCell(1, 0)
    with pytest.raises(ValueError, match="num_layers must be at least 1"):
        ConvGRU(1, 2, 0)
    network = ConvGRU(2, 3, 2, 3)
    with pytest.raises(ValueError, match=r"pass \(T, B, 2, height, width\)"):
        network(torch.zeros(4, 1, 3, 5, 5))
    with pytest.raises(ValueError, match="hx holds 1 layers"):
        network(torch.zeros(4, 1, 2, 5, 5), torch.zeros(1, 1, 3, 5, 5))
    with pytest.raises(ValueError, match="hx has shape"):
        network(torch.zeros(4, 1, 2, 5, 5), torch.zeros(2, 1, 3, 4, 5))
    with pytest.raises(TypeError, match=r"torch\.nn has no convolutional GRU"):
        network.cells[0].to_torch()
