"""What the public functions refuse, and where they do not look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import spgru
import spgru.functional as F
from spgru import Moments
from spgru.functional import activation, algebra

GOOD = Moments(torch.zeros(2, 3), torch.ones(2, 3))
ONE = [
    "sigmoid", "tanh", "relu", "leaky_relu", "gelu", "silu", "softplus", "elu", "exp", "square",
    "sum", "mean", "dropout", "gamma_activation", "poisson_activation",
]  # fmt: skip


def call(name: str, x: Any) -> Any:
    if name == "linear":
        return F.linear(x, torch.ones(4, 3))
    if name == "conv2d":
        return F.conv2d(x, torch.ones(1, 1, 1, 1))
    if name == "lerp":
        return F.lerp(x, GOOD, GOOD)
    if name == "clamp":
        return F.clamp(x, min=0)
    if name == "matmul":
        return F.matmul(x, torch.ones(3, 2))
    return getattr(F, name)(x) if name in ONE else getattr(F, name)(x, GOOD)


FUNCTIONS = sorted(set(F.__all__) - {"Affine", "Rule"})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_values_are_refused(name: str) -> None:
    first = "start" if name == "lerp" else "a" if name in ("add", "product", "matmul") else "x"
    for bad, message in (
        (Moments(GOOD.mean, -GOOD.var), rf"^{first}\.var has negative entries \(smallest -1\)"),
        (Moments(GOOD.mean, GOOD.var * math.nan), rf"^{first}\.var has NaN entries"),
        (Moments(GOOD.mean * math.nan, GOOD.var), rf"^{first}\.mean has NaN entries"),
    ):
        with pytest.raises(ValueError, match=message):
            call(name, bad)
    with pytest.raises(TypeError, match=f"^{first} must be a Tensor or Moments, got ndarray"):
        call(name, np.zeros((2, 3)))


def test_every_argument_is_checked() -> None:
    bad = Moments(GOOD.mean, -GOOD.var)
    with pytest.raises(ValueError, match=r"^b\.var has negative entries"):
        F.add(GOOD, bad)
    with pytest.raises(ValueError, match=r"^weight\.var has negative entries"):
        F.linear(GOOD, weight=Moments(torch.ones(4, 3), -torch.ones(4, 3)))
    with pytest.raises(ValueError, match=r"^x\.var has negative entries"):
        torch.sigmoid(bad)


def test_shapes_that_do_not_fit() -> None:
    for function in (F.add, F.product):
        with pytest.raises(ValueError, match=r"the shapes \(2, 3\), \(2,\) do not broadcast"):
            function(GOOD, torch.ones(2))
    with pytest.raises(ValueError, match="do not broadcast"):
        F.lerp(GOOD, GOOD, weight=torch.ones(2))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\) but weight \(4, 5\); pass x as"):
        F.linear(GOOD, torch.ones(4, 5))
    with pytest.raises(ValueError, match=r"bias has shape \(3,\) .* pass bias as \(4,\)"):
        F.linear(GOOD, torch.ones(4, 3), torch.ones(3))
    with pytest.raises(ValueError, match="weight has 1 dimensions"):
        F.linear(GOOD, torch.ones(3))


@pytest.fixture
def _default_checks() -> Iterator[None]:
    yield
    spgru.set_value_checks("auto")


@pytest.mark.usefixtures("_default_checks")
def test_checks_can_be_switched_off() -> None:
    bad = Moments(GOOD.mean, -GOOD.var)
    spgru.set_value_checks("never")
    F.add(bad, bad)


def test_functions_inside_layers_do_not_look() -> None:
    """They are called at every step, with what the layer has checked or made itself."""
    bad = Moments(GOOD.mean, -GOOD.var)
    algebra.add(bad, bad)
    activation.sigmoid(bad)
    for module in (spgru.recurrent.gru, spgru.recurrent.lstm, spgru.recurrent.rnn):
        assert module.add is algebra.add
    assert spgru.families.gaussian.sigmoid is activation.sigmoid
