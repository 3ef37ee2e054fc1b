"""The functions inside torch.func, fake tensors and inference mode, one after the other.

What one of them made must not be met by the next: constants are kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import spgru.functional as F
from spgru import Moments
from spgru.functional import activation

FUNCTIONS = [F.sigmoid, F.tanh, F.relu, F.gelu, F.softplus, F.exp]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "_columns", {})


def objective(function: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    def f(m: Tensor) -> Tensor:
        # Variances on both sides of the hand-over of the sigmoid.
        out = function(Moments(m, torch.linspace(0.1, 3, m.numel()).to(m.dtype).reshape(m.shape)))
        return (out.mean + 2 * out.var).sum()

    return f


# Torch's own forward mode still scripts its decompositions.
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_transforms_of_torch_func_in_any_order(function: Callable[[Any], Any]) -> None:
    f, m = objective(function), torch.randn(5, dtype=torch.float64)
    x = m.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
    curvature = torch.stack([torch.autograd.grad(s, x, retain_graph=True)[0] for s in slope])
    slope = slope.detach()
    batch = torch.stack([m, m])
    activation._columns.clear()
    for _ in range(2):
        torch.testing.assert_close(torch.func.hessian(f)(m), curvature)
        torch.testing.assert_close(torch.func.grad(f)(m), slope)
        torch.testing.assert_close(torch.vmap(torch.func.grad(f))(batch)[1], slope)
        _, tangent = torch.func.jvp(f, (m,), (torch.ones_like(m),))
        torch.testing.assert_close(tangent, slope.sum())
        torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(f))(m), curvature)
        with torch.autograd.forward_ad.dual_level():
            dual = f(torch.autograd.forward_ad.make_dual(m, torch.ones_like(m)))
            tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
        torch.testing.assert_close(tangent, slope.sum())
        assert f(m).isfinite()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_fake_tensors_leave_nothing_behind(function: Callable[[Any], Any]) -> None:
    f, m = objective(function), torch.randn(4)
    with FakeTensorMode():
        assert f(torch.randn(4)).shape == ()
    with FakeTensorMode(allow_non_fake_inputs=True):
        f(m)
    want = f(m)
    assert type(want) is Tensor
    with FakeTensorMode() as mode:
        f(mode.from_tensor(m))
    assert torch.equal(f(m), want)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_inference_mode_then_training(function: Callable[[Any], Any]) -> None:
    f = objective(function)
    with torch.inference_mode():
        f(torch.randn(4))
    m = torch.randn(4, requires_grad=True)
    f(m).backward()
    assert m.grad is not None
    assert m.grad.isfinite().all()


def test_constants_are_kept_between_ordinary_calls() -> None:
    f, m = objective(F.sigmoid), torch.randn(4)
    f(m)
    kept = dict(activation._columns)
    assert kept
    f(m)
    assert all(activation._columns[key] is kept[key] for key in kept)
    assert activation._columns.keys() == kept.keys()
