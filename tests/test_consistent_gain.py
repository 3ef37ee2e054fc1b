"""`respond(gain=)` against its definition, and `consistent_gain` against brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import spgru
from spgru import Moments
from spgru.modes import enter_gains
from spgru.nn.contexts import sampling, shared_weights
from spgru.nn.layer import layers_of
from test_respond import LAYERS, _means_of, _variances_of, assert_is, definition


def gained(module: nn.Module, gain: float) -> Any:
    """Block in which all matrices have this gain."""
    return enter_gains(
        {
            layer: {
                name: torch.full((weight.spec.shape[0],), gain, dtype=torch.float64)
                for name, weight in layer.weights().items()
                if weight.spec.gain is not None
            }
            for _, layer in layers_of(module)
        }
    )


def _mean_pairs(a: Any, b: Any) -> Any:
    return zip(_means_of(a), _means_of(b), strict=True)


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_are_those_of_the_closed_form_with_the_gain(name: str) -> None:
    torch.manual_seed(0)
    module = LAYERS[name](weight_std=0.3, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with gained(module, 3.0):
        expected = definition(module, lambda run: run(x))
    y, parts = spgru.respond(module, x, sources=True, gain=3.0)
    rest = [tree_leaves(parts[part]) for part in ("higher order", "mean")]
    found = [var - sum(own) for var, *own in zip(_variances_of(y), *rest, strict=True)]
    assert_is(found, expected)
    with gained(module, 3.0):
        assert_is(rest[1], [(a - b) ** 2 for a, b in _mean_pairs(module(x), y)])
    plain = definition(module, lambda run: run(x))
    assert not torch.allclose(plain[0], expected[0], rtol=0.01)


@pytest.mark.parametrize("graph", [False, True])
def test_the_mean_is_that_of_the_plain_closed_form(graph: bool) -> None:
    torch.manual_seed(0)
    module, x = spgru.GRU(3, 4, weight_std=0.3, dtype=torch.float64), torch.randn(5, 2, 3).double()
    y = spgru.respond(module, x, gain=3.0, create_graph=graph)[0]
    torch.testing.assert_close(y.mean, module(x)[0].mean)
    assert y.mean.requires_grad == graph


@pytest.mark.parametrize(
    ("name", "backend"),
    [("GRU", "compiled"), ("LSTM, both ways", "compiled"), ("RNN", "compiled"), ("GRU", "triton")],
)
def test_kernels_honour_the_gain(name: str, backend: str) -> None:
    torch.manual_seed(0)
    module = LAYERS[name](weight_std=0.3, dtype=torch.float64)
    kernels = LAYERS[name](weight_std=0.3, backend=backend)
    kernels.load_state_dict(module.state_dict())
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    found, parts = spgru.respond(kernels, x.float(), sources=True, gain=3.0)
    expected, expected_parts = spgru.respond(module, x, sources=True, gain=3.0)
    assert_is(found, _variances_of(expected), 1e-4)
    for part, truth in zip(
        tree_leaves(parts["higher order"]), tree_leaves(expected_parts["higher order"]), strict=True
    ):
        torch.testing.assert_close(part, truth.float(), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("gain", [0.0, -1.0, math.nan, math.inf])
def test_gains_that_are_not_positive_and_finite_are_refused(gain: float) -> None:
    with pytest.raises(ValueError, match="gain must be positive and finite"):
        spgru.respond(spgru.GRU(3, 4), torch.randn(5, 2, 3), gain=gain)


# -- consistent_gain ------------------------------------------------------------------------------


class Loop(nn.Module):
    """Goes on from its own outputs, which it amplifies until its units saturate."""

    def __init__(self, weight_std: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        options: Any = {"weight_std": weight_std, "dtype": torch.float64}
        self.rnn = spgru.RNN(1, 8, batch_first=True, **options)
        self.head = spgru.Linear(8, 1, **options)
        with torch.no_grad():
            self.rnn.weight_ih_l0.fill_(0.5)
            self.rnn.weight_hh_l0.fill_(0.02)
            self.head.weight.fill_(0.4)
            for bias in (self.rnn.bias_ih_l0, self.rnn.bias_hh_l0, self.head.bias):
                bias.zero_()

    def forward(self, x: Tensor) -> Moments:
        """(B, T, 1) -> (B, 16)"""
        output, state = self.rnn(x)
        outputs = [self.head(output[:, -1])]
        with shared_weights(self):
            for _ in range(15):
                hidden, state = self.rnn.step(outputs[-1], state)
                outputs.append(self.head(hidden))
        return spgru.cat(outputs, 1)


@pytest.fixture(scope="module")
def x() -> Tensor:
    return 0.3 * torch.randn(6, 4, 1, generator=torch.Generator().manual_seed(0)).double()


def test_the_closed_form_has_half_of_the_variance(x: Tensor) -> None:
    module = Loop()
    gain = spgru.consistent_gain(module, x)
    assert gain > 1.5
    with gained(module, gain):
        closed = module(x).var
    y, parts = spgru.respond(module, x, gain=gain, sources=True)
    response = y.var - parts["mean"]
    share = float((closed.detach().log() - response.log()).mean().exp())
    assert share == pytest.approx(0.5, rel=0.15)  # measured 0.54: it grows fast with the gain


def test_nearer_to_drawn_networks_where_feedback_saturates(x: Tensor) -> None:
    module, draws = Loop(), 2000
    generator, found = torch.Generator().manual_seed(1), []
    with torch.no_grad():
        for _ in range(draws):
            with sampling(module, generator):
                found.append(module(x).mean)
    true = torch.stack(found)
    # The relative standard error of a variance: far below the factors that are compared.
    centred = true - true.mean(0)
    error = (centred**4).mean(0).sub(true.var(0) ** 2).div(draws).sqrt() / true.var(0)
    assert error.max() < 0.2

    def distance(gain: float) -> float:
        ratio = spgru.respond(module, x, gain=gain).var / true.var(0)
        return float(ratio.log().square().mean().sqrt())

    gain = spgru.consistent_gain(module, x)
    assert distance(1.0) > 1
    assert distance(gain) < 0.5 * distance(1.0)


def test_it_is_one_where_the_closed_form_has_most_of_the_variance() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3)
    assert spgru.consistent_gain(spgru.GRU(3, 4), x) == 1
    assert spgru.consistent_gain(spgru.GRU(3, 4, weight_std=0.0), x) == 1


class Sum(nn.Module):
    """Adds up many uses of one weight, which the closed form takes for independent."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = spgru.Linear(3, 2)

    def forward(self, x: Tensor) -> Moments:
        parts = [self.linear(x) for _ in range(10)]
        return sum(parts[1:], parts[0])


def test_it_is_one_where_no_variance_inside_has_a_say() -> None:
    module, x = Sum(), torch.randn(4, 3)
    ratio = module(x).var / spgru.respond(module, x).var
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.1))
    assert spgru.consistent_gain(module, x) == 1


def test_calibration_is_left_out(x: Tensor) -> None:
    module = Loop()
    gain = spgru.consistent_gain(module, x)
    module.rnn.set_gains_({"weight_hh_l0": torch.full((8,), 3.0, dtype=torch.float64)})
    assert spgru.consistent_gain(module, x) == gain


def test_what_has_no_random_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no random weights"):
        spgru.consistent_gain(nn.Linear(3, 2), torch.randn(4, 3))


def test_packed_sequences_have_the_gain_too() -> None:
    torch.manual_seed(0)
    module = spgru.GRU(3, 4, weight_std=0.3, dtype=torch.float64)
    x, lengths = torch.randn(5, 2, 3, dtype=torch.float64), [5, 3]
    packed = spgru.respond(module, pack_padded_sequence(x, lengths), gain=3.0)[0]
    found, _ = spgru.pad_packed_moments(packed)
    for row, length in enumerate(lengths):
        alone = spgru.respond(module, x[:length, row : row + 1], gain=3.0)[0]
        torch.testing.assert_close(found.var[:length, row], alone.var[:, 0])
        torch.testing.assert_close(found.mean[:length, row], alone.mean[:, 0])
