"""Each error names the argument, what was found, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import spgru
from spgru import GRU, LSTM, RNN, Conv2d, GRUCell, Linear, LSTMCell, Moments

X = torch.zeros(5, 2, 3)
BAD_CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # variance
    (
        lambda: GRU(3, 4)(Moments(X, X - 0.2)),
        ValueError,
        r"input\.var has negative entries \(smallest -0\.2\); pass a variance, not a log-variance",
    ),
    (lambda: GRU(3, 4)(Moments(X, X * torch.nan)), ValueError, r"input\.var has NaN entries"),
    (lambda: GRU(3, 4)(Moments(X * torch.nan, X)), ValueError, r"input\.mean has NaN entries"),
    (
        lambda: Linear(3, 4)(Moments(X, X - 1)),
        ValueError,
        r"input\.var has negative entries \(smallest -1\)",
    ),
    (
        lambda: GRU(3, 4)(X, Moments(torch.zeros(1, 2, 4), -torch.ones(1, 2, 4))),
        ValueError,
        r"hx \(h\)\.var has negative entries",
    ),
    (lambda: GRU(3, 4)(Moments(X, X[0])), ValueError, r"mean has shape .* but var"),
    (lambda: GRU(3, 4)(Moments(X, 0.1)), TypeError, r"var must be a Tensor, got float"),
    # shapes
    (lambda: GRU(4, 4)(X), ValueError, r"input has 3 features .* but input_size is 4; pass"),
    (lambda: Linear(4, 4)(X), ValueError, "input has 3 features .* but in_features is 4"),
    (lambda: GRUCell(4, 4)(X[0]), ValueError, "input has 3 features .* but input_size is 4"),
    (lambda: GRU(3, 4)(X[None]), ValueError, r"input has 4 dimensions; pass \(T, B, I\)"),
    (
        lambda: GRU(3, 4)(X[:0]),
        ValueError,
        "input is an empty sequence; pass at least one time step",
    ),
    (
        lambda: GRU(3, 4, batch_first=True)(X[:, :0]),
        ValueError,
        "input is an empty sequence",
    ),
    (
        lambda: GRU(3, 4)(X, torch.zeros(2, 2, 4)),
        ValueError,
        r"hx \(h\) has shape \(2, 2, 4\) but must have \(1, 2, 4\)",
    ),
    (lambda: LSTM(3, 4)(X, torch.zeros(1, 2, 4)), TypeError, r"pass hx=\(h_0, c_0\)"),
    (
        lambda: LSTM(3, 4)(X, (torch.zeros(1, 2, 4), torch.zeros(1, 2, 3))),
        ValueError,
        r"hx \(c\) has shape",
    ),
    (lambda: LSTMCell(3, 4)(X[0], X[0]), TypeError, r"pass hx=\(h_0, c_0\)"),
    (
        lambda: GRUCell(3, 4)(X[0], X[0]),
        ValueError,
        r"hx \(h\) has shape \(2, 3\) but must have \(2, 4\)",
    ),
    (lambda: GRUCell(3, 4)(X), ValueError, "input has 3 dimensions; pass one time step"),
    (lambda: GRU(3, 4).step(X), ValueError, "x_t has 3 dimensions; pass one time step"),
    (lambda: Conv2d(2, 2, 3)(X), ValueError, r"pass \(B, 2, height, width\)"),
    # dtype, device, type
    (
        lambda: GRU(3, 4)(X.double()),
        ValueError,
        r"input has dtype torch\.float64 but the layer's parameters have torch\.float32; convert",
    ),
    (
        lambda: GRU(3, 4)(Moments(X, X.double())),
        ValueError,
        r"var has dtype torch\.float64",
    ),
    (lambda: GRU(3, 4)(X.to("meta")), ValueError, "input is on meta but .* on cpu; move"),
    (lambda: GRU(3, 4)(X.numpy()), TypeError, "input must be a Tensor or Moments, got ndarray"),
    # options
    (lambda: GRU(3, 4, rule="best"), ValueError, "rule must be one of 'exact', 'paper'"),
    (lambda: GRU(3, 4, family="cauchy"), ValueError, "family must be one of"),
    (lambda: GRU(3, 4, parameterization="log"), ValueError, "parameterization must be one of"),
    (
        lambda: GRU(3, 4, weight_std=-1.0),
        ValueError,
        "weight_std must be finite and not negative, got -1.0",
    ),
    (lambda: GRU(3, 4, weight_std=torch.inf), ValueError, "weight_std must be finite"),
    (lambda: GRU(3, 0), ValueError, "hidden_size must be at least 1, got 0"),
    (lambda: GRUCell(3, 0), ValueError, "hidden_size must be at least 1, got 0"),
    (lambda: LSTM(3, -2), ValueError, "hidden_size must be at least 1, got -2"),
    (lambda: LSTMCell(-1, 2), ValueError, "input_size must be at least 1, got -1"),
    (lambda: Linear(3, -1), ValueError, "out_features must not be negative, got -1"),
    (lambda: GRU(3, 4, dropout=1.5), ValueError, r"dropout must lie in \[0, 1\], got 1.5"),
    (lambda: LSTM(3, 4, proj_size=4), ValueError, "proj_size must lie between 0 and .* 3, got 4"),
    (lambda: RNN(3, 4, nonlinearity="elu"), ValueError, "nonlinearity must be one of"),
    (
        lambda: RNN(3, 4, nonlinearity="relu", family="gamma"),
        ValueError,
        "nonlinearity='relu' is not defined for family='gamma'",
    ),
    (
        lambda: GRU(3, 4, family="poisson", weight_std=0.1),
        ValueError,
        "weight_std=0.1 cannot be obeyed by the poisson family",
    ),
    (
        lambda: GRU(3, 4, parameterization="natural", weight_std=0.0),
        ValueError,
        "variance 0, which have no natural parameters",
    ),
    (lambda: GRU(3, 4, bidirectional=True).step(X[0]), ValueError, "cannot stream"),
    (lambda: Conv2d(2, 2, 3, padding_mode="edge"), ValueError, "padding_mode must be one of"),
    (lambda: GRU(3, 4, family="gamma")(X - 1), ValueError, "outside the domain of the gamma"),
    (
        lambda: GRU(3, 4, family="gamma")(Moments(X, X + 1)),
        ValueError,
        "outside the domain of the gamma",
    ),
    (
        lambda: RNN(3, 4, nonlinearity="relu", rule="paper"),
        ValueError,
        "rule='paper' has no formula for nonlinearity='relu'",
    ),
    (
        lambda: GRU.from_torch(torch.nn.GRU(3, 4), reset_after=False),
        ValueError,
        "no GRU with reset_after=False",
    ),
    (
        lambda: Linear.from_torch(torch.nn.Conv2d(1, 1, 1)),
        TypeError,
        r"Linear\.from_torch takes a torch\.nn\.Linear, got Conv2d",
    ),
    (lambda: Linear(3, 4)(torch.tensor(1.0)), ValueError, "input is a single number"),
    (lambda: GRU(3, 4)(torch.tensor(1.0)), ValueError, "input has 0 dimensions"),
    (
        lambda: GRU(3, 4)(Moments(pack_padded_sequence(X, [5, 5]), X)),
        ValueError,
        r"use spgru\.pack_padded_moments",
    ),
    (
        lambda: GRU(3, 4)(
            Moments(pack_padded_sequence(X, [5, 4]), pack_padded_sequence(X, [5, 5]))
        ),
        ValueError,
        r"input\.var is not packed alike",
    ),
    (lambda: Moments(X, X).to_natural("gamma"), TypeError, r"pass spgru\.families\.get\('gamma'\)"),
    (
        lambda: spgru.families.Gaussian().from_natural(X, X + 1),
        ValueError,
        "eta2 has the entry 1 but must be negative",
    ),
    (
        lambda: Moments(X, X).to_natural(spgru.families.Gaussian()),
        ValueError,
        r"moments\.var has the entry 0 but must be positive",
    ),
    (lambda: spgru.audit(GRU(3, 4), X, draws=1), ValueError, "draws must be at least 2"),
    (lambda: spgru.audit(torch.nn.GRU(3, 4), X), ValueError, "holds no random weights"),
    (lambda: spgru.set_value_checks("sometimes"), ValueError, "mode must be one of"),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD_CALLS, ids=[m for _, _, m in BAD_CALLS])
def test_errors(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.fixture
def _default_checks() -> Iterator[None]:
    yield
    spgru.set_value_checks("auto")


@pytest.mark.usefixtures("_default_checks")
def test_value_checks_can_be_switched() -> None:
    gru, bad = GRU(3, 4), Moments(X, X - 1)
    spgru.set_value_checks("never")
    gru(bad)
    spgru.set_value_checks("always")
    with pytest.raises(ValueError, match="negative entries"):
        gru(bad)


def test_layers_run_inside_vmap() -> None:
    """Where values cannot be read, they are not checked."""
    gru = GRU(3, 4)
    x = Moments(torch.randn(6, 5, 2, 3), torch.rand(6, 5, 2, 3))
    got = torch.vmap(lambda x: gru(x)[0].var)(x)
    torch.testing.assert_close(got[3], gru(x[3])[0].var)
