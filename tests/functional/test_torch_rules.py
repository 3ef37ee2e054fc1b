"""Torch's own functions and the operators on `Moments`, against draws and against torch.nn."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from torch import Tensor, nn

import spgru
import spgru.functional as F
from oracles import assert_monte_carlo, draw, random_moments
from spgru import Moments, certain
from spgru.moments import rule_for

DRAWS = 200_000


def assert_same(got: Moments, want: Moments) -> None:
    assert isinstance(got, Moments)
    torch.testing.assert_close(got.mean, want.mean)
    torch.testing.assert_close(got.var, want.var)


T = torch.tensor([[0.5], [-2.0], [3.0]], dtype=torch.float64)

EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "x + 2": lambda x, _: x + 2,
    "2 + x": lambda x, _: 2 + x,
    "x - 2": lambda x, _: x - 2,
    "2 - x": lambda x, _: 2 - x,
    "3 * x": lambda x, _: 3 * x,
    "x * 3": lambda x, _: x * 3,
    "x / 4": lambda x, _: x / 4,
    "-x": lambda x, _: -x,
    "x + t": lambda x, _: x + T,
    "t + x": lambda x, _: T + x,
    "x - t": lambda x, _: x - T,
    "t - x": lambda x, _: T - x,
    "x * t": lambda x, _: x * T,
    "t * x": lambda x, _: T * x,
    "x / t": lambda x, _: x / T,
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x + x": lambda x, _: x + x,
    "x * x": lambda x, _: x * x,
    "x ** 2": lambda x, _: x**2,
    "x ** 1": lambda x, _: x**1,
    "torch.square": lambda x, _: torch.square(x),
    "torch.add with alpha": lambda x, y: torch.add(x, y, alpha=-2),
    "torch.add of itself with alpha": lambda x, _: torch.add(x, x, alpha=2),
    "torch.sub of a number with alpha": lambda x, _: torch.sub(x, 2, alpha=3),
    "torch.rsub": lambda x, _: torch.rsub(x, 1),
    "torch.mul": lambda x, y: torch.mul(x, other=y),
    "torch.div": lambda x, _: torch.div(x, 3),
    "undo a normalisation": lambda x, _: x * 2.5 + 7,
    "relu": lambda x, _: torch.relu(x),
    "x.relu": lambda x, _: x.relu(),
    "leaky relu": lambda x, _: TF.leaky_relu(x, 0.2),
    "x.sigmoid": lambda x, _: x.sigmoid(),
    "x.tanh": lambda x, _: x.tanh(),
    "exp": lambda x, _: torch.exp(x / 3),
    "clamp": lambda x, _: torch.clamp(x, min=-0.5),
    "clamp_max": lambda x, _: torch.clamp_max(x, 0.5),
    "gelu": lambda x, _: TF.gelu(x),
    "silu": lambda x, _: TF.silu(x),
    "elu": lambda x, _: TF.elu(x),
    "softplus": lambda x, _: TF.softplus(x, 2.0),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expression_against_draws(name: str) -> None:
    """The same code on draws and on moments."""
    torch.manual_seed(sum(map(ord, name)))
    # Means near the bends and no small variances: draws say little about what hardly ever happens.
    x, y = (
        Moments(2 * torch.rand(3, 7).double() - 1, 0.5 + torch.rand(3, 7).double())
        for _ in range(2)
    )
    f = EXPRESSIONS[name]
    assert_monte_carlo(f(draw(x, DRAWS), draw(y, DRAWS)), f(x, y))


def test_a_thing_less_itself_is_nothing() -> None:
    x = random_moments(4)
    for same in (x, Moments(x.mean, x.var)):
        assert torch.equal((x - same).mean, torch.zeros(4).double())
        assert torch.equal((x - same).var, torch.zeros(4).double())
    assert ((x - x.clone()).var > 0).all()


def test_sums_and_means_against_draws() -> None:
    x = random_moments(6, 7)
    samples = draw(x, DRAWS)
    for got, want in (
        (x.sum(), samples.sum((1, 2))),
        (x.sum(0), samples.sum(1)),
        (torch.sum(x, (0, 1), keepdim=True), samples.sum((1, 2), keepdim=True)),
        (torch.mean(x), samples.mean((1, 2))),
        (torch.mean(x, 1), samples.mean(2)),
        (torch.mean(x, dim=-1, keepdim=True), samples.mean(2, keepdim=True)),
    ):
        assert_monte_carlo(want, got)


def test_names_that_numpy_gives_to_arguments() -> None:
    """Wherever torch takes `axis` and `keepdims` for `dim` and `keepdim`."""
    x, y = random_moments(2, 3), random_moments(2, 3)
    for call in (
        lambda x, y: torch.sum(x, axis=1, keepdims=True),
        lambda x, y: torch.mean(x, axis=(0, 1)),
        lambda x, y: torch.mean(a=x, axis=0),
        lambda x, y: x.sum(axis=0, keepdims=True),
        lambda x, y: x.sum((0, 1)),
        lambda x, y: torch.cat([x, y], axis=1),
        lambda x, y: torch.concatenate([x, y], axis=-1),
        lambda x, y: torch.stack(tensors=[x, y], axis=2),
        lambda x, y: torch.unsqueeze(x, axis=1),
        lambda x, y: x.unsqueeze(axis=1),
        lambda x, y: x.unsqueeze(1).squeeze(axis=1),
        lambda x, y: x.select(axis=1, index=0),
        lambda x, y: x.flatten(end_dim=1),
        lambda x, y: x.unbind(axis=1)[2],
        lambda x, y: x.chunk(2, axis=1)[1],
        lambda x, y: x.narrow(axis=1, start=1, length=2),
        lambda x, y: torch.add(x1=x, x2=y),
        lambda x, y: torch.multiply(x, x2=y),
    ):
        want = call(x.mean, y.mean)
        got = call(x, y)
        torch.testing.assert_close(got.mean, want)
        assert got.var.shape == want.shape
    assert_same(torch.mean(x, axis=0, keepdims=True), torch.mean(x, 0, True))
    assert_same(torch.cat([x, y], axis=1), torch.cat([x, y], 1))
    for wrong in (
        lambda x: torch.sum(x, dim=0, axis=1),
        lambda x: torch.sum(x, 0, axis=1),
        lambda x: torch.squeeze(x, dims=0),
    ):
        for value in (x.mean, x):
            with pytest.raises(TypeError):
                wrong(value)


def test_dropout_of_everything_leaves_certain_zeros() -> None:
    x = random_moments(2, 3)
    for got in (nn.Dropout(1.0)(x), TF.dropout(x, p=1.0), F.dropout(x, 1.0)):
        assert not got.mean.any()
        assert not got.var.any()
        assert got.mean.shape == (2, 3)
    assert_same(nn.Dropout(1.0).eval()(x), x)
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\], got 1\.1"):
        TF.dropout(x, 1.1)


def test_comparisons_with_numbers_are_refused_from_both_sides() -> None:
    x, tensor = random_moments(3), torch.zeros(3).double()
    for other in (tensor, 0.0, tensor.numpy()):
        for compare in (
            operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
        ):  # fmt: skip
            for a, b in ((x, other), (other, x)):
                with pytest.raises(TypeError, match=r"compare x\.mean, or take .* x\.cdf\(value\)"):
                    compare(a, b)
    for function in (torch.eq, torch.lt, torch.greater, torch.isclose):
        for a, b in ((x, tensor), (tensor, x)):
            with pytest.raises(TypeError, match=r"compare x\.mean, or take"):
                function(a, b)
    with pytest.raises(TypeError, match=r"compare x\.mean"):
        x < x  # noqa: B015


def test_moments_equal_themselves_only() -> None:
    x = random_moments(3)
    same = Moments(x.mean, x.var)
    assert x == x
    assert x != same
    assert x != None  # noqa: E711
    assert (x == "x") is False
    assert same not in [None, x]
    assert {x: 1, same: 2}[x] == 1


@pytest.mark.parametrize("certain_side", [None, "a", "b"])
@pytest.mark.parametrize("shapes", [((3, 4), (4, 2)), ((4,), (4,)), ((2, 3, 4), (2, 4, 3))])
def test_matmul_against_draws(shapes: Any, certain_side: str | None) -> None:
    a, b = random_moments(*shapes[0]), random_moments(*shapes[1])
    count = 50_000
    samples_a, samples_b = draw(a, count), draw(b, count)
    if certain_side == "a":
        a, samples_a = a.mean, a.mean.expand(count, *a.shape)
    if certain_side == "b":
        b, samples_b = b.mean, b.mean.expand(count, *b.shape)
    is_dot = len(shapes[0]) == 1
    assert_monte_carlo((samples_a * samples_b).sum(-1) if is_dot else samples_a @ samples_b, a @ b)


def test_dtypes_and_shapes_follow_torch() -> None:
    x = Moments(torch.randn(3), torch.rand(3))
    wide = torch.ones(2, 3, dtype=torch.float64)
    for got in (x + wide, wide - x, x * wide, x / wide, torch.where(wide > 0, x, wide)):
        assert got.mean.dtype == got.var.dtype == torch.float64
        assert got.mean.shape == got.var.shape == (2, 3)
    # The square of 200 does not fit into eight bits.
    bytes_ = torch.tensor([200, 2, 0], dtype=torch.uint8)
    torch.testing.assert_close((x * bytes_).var, x.var * torch.tensor([40000.0, 4.0, 0.0]))
    torch.testing.assert_close((x / torch.tensor(2)).var, x.var / 4)
    assert_same(F.add(x, torch.tensor([1, 2, 3])), x + torch.tensor([1.0, 2.0, 3.0]))
    assert_same(x * np.float32(2), 2 * x)
    assert_same(np.float64(2) * x, 2 * x)


def test_linear_and_conv2d_of_torch() -> None:
    x, weight, bias = random_moments(3, 5), random_moments(4, 5), random_moments(4)
    assert_same(TF.linear(x, weight, bias), F.linear(x, weight, bias))
    assert_same(TF.linear(x, weight.mean, bias.mean), F.linear(x, weight.mean, bias.mean))
    assert_same(TF.linear(x.mean, weight, bias=bias), F.linear(x.mean, weight, bias))
    image, kernel = random_moments(2, 3, 6, 6), random_moments(4, 3, 3, 3)
    for kernels in (kernel, kernel.mean):
        got = TF.conv2d(image, kernels, stride=2, padding=1)
        assert_same(got, F.conv2d(image, kernels, stride=2, padding=1))
    layer = nn.Linear(5, 2).double()
    assert_same(layer(x), F.linear(x, layer.weight, layer.bias))


def test_modules_of_torch_between_ours() -> None:
    x = Moments(torch.randn(5, 3), torch.rand(5, 3))
    first, last = spgru.Linear(3, 4), spgru.Linear(4, 1)
    network = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), nn.Identity(), last)
    assert_same(network(x), last(F.dropout(F.relu(first(x)), 0.1)))
    assert_same(network.eval()(x), last(F.relu(first(x))))
    for module, function in (
        (nn.Sigmoid(), F.sigmoid),
        (nn.Tanh(), F.tanh),
        (nn.GELU(), F.gelu),
        (nn.SiLU(), F.silu),
        (nn.ELU(), F.elu),
        (nn.LeakyReLU(0.3), lambda x: F.leaky_relu(x, 0.3)),
        (nn.Softplus(), F.softplus),
        (nn.Flatten(0), lambda x: x.reshape(-1)),
        (nn.Unflatten(1, (3, 1)), lambda x: x.reshape(5, 3, 1)),
        (nn.ConstantPad1d((1, 0), 2.0), lambda x: spgru.cat([torch.full((5, 1), 2.0), x], 1)),
    ):
        assert_same(module(x), function(x))


def test_certain_moments_give_what_torch_gives() -> None:
    """Every expression at variance 0, in float32."""
    x, y = torch.randn(3, 7), torch.randn(3, 7)
    for name, f in EXPRESSIONS.items():
        got, want = f(certain(x), certain(y)), f(x, y)
        torch.testing.assert_close(got.mean, want, msg=name)
        assert not got.var.any(), name


def test_gradients_pass() -> None:
    m = torch.randn(4).double().requires_grad_()
    v = torch.rand(4).double().requires_grad_()

    def f(m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        x = Moments(m, v)
        y = torch.cat([x * 2 - 1, x * x, -x / 3])
        return (*(y.reshape(3, 4).sum(0) @ torch.eye(4).double()),)

    assert torch.autograd.gradcheck(f, (m, v))


X = Moments(torch.zeros(2, 3), torch.ones(2, 3))
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: torch.softmax(X, 0), r"torch\.softmax has no rule for Moments; use torch\.softmax"),
    (lambda: torch.cumsum(X, 0), r"torch\.cumsum has no rule for Moments; use x\.mean and x\.var"),
    (lambda: TF.gaussian_nll_loss(X, X.mean, X.var), r"use -x\.log_prob\(target\)\.mean\(\)"),
    (lambda: TF.mse_loss(X, X.mean), "mse_loss has no rule for Moments; use x.mean, or"),
    (lambda: TF.cross_entropy(X, torch.zeros(2).long()), "pass x.mean as the logits"),
    (lambda: torch.sin(X), r"torch\.sin has no rule"),
    (lambda: nn.Hardtanh()(X), "hardtanh has no rule"),
    (lambda: 1 / X, "division by Moments has no rule"),
    (lambda: torch.ones(2, 3) / X, "division by Moments has no rule"),
    (lambda: X / X, "division by Moments has no rule"),
    (lambda: X**3, "exponents 1 and 2 only"),
    (lambda: X**0.5, "exponents 1 and 2 only"),
    (lambda: torch.ones(2, 3) ** X, "unsupported operand"),
    (lambda: torch.pow(torch.ones(2, 3), X), "exponents 1 and 2 only"),
    (lambda: (y := X[:, :2]) @ y, "with itself has no rule"),
    (lambda: X * np.ones((2, 3)), r"got ndarray; convert it with torch\.as_tensor"),
    (lambda: np.ones((2, 3)) * X, r"got ndarray; convert it with torch\.as_tensor"),
    (lambda: np.asarray(X), "convert x.mean or x.var"),
    (lambda: np.sqrt(X), "does not support ufuncs"),
    (lambda: X * [1, 2, 3], "got list"),
    (lambda: X + "text", "unsupported operand"),
    (lambda: nn.ReLU(inplace=True)(X), "immutable; leave out inplace=True"),
    (lambda: TF.relu(X, True), "immutable; leave out inplace=True"),
    (lambda: TF.dropout(X, 0.1, True, True), "immutable; leave out inplace=True"),
    (lambda: torch.add(X, 1, out=torch.zeros(2, 3)), "immutable; leave out out"),
    (lambda: torch.zeros(2, 3).add_(X), "has no rule"),
    (lambda: bool(X), "no truth value"),
    (lambda: torch.where(X, X, X), "condition must be a Tensor, got Moments"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_has_no_rule_is_a_type_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_rule_can_be_added() -> None:
    def my_function(x: Any) -> Any:
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(my_function, (x,), x)
        return x + 1

    with pytest.raises(TypeError, match="my_function has no rule"):
        my_function(X)
    rule_for(my_function)(lambda x: x + 1)
    assert_same(my_function(X), X + 1)


def test_compiles_without_graph_breaks() -> None:
    network = nn.Sequential(spgru.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1), spgru.Linear(4, 2))

    def f(x: Moments, t: Tensor) -> Any:
        y = network(x) * 2 + 1
        parts = torch.cat([y, t * y], axis=0).permute(1, 0).split(4, -1)
        return parts, y - y, y + y, torch.where(t > 0, y, torch.tanh(y)), TF.softplus(y)

    x, t = Moments(torch.randn(4, 3), torch.rand(4, 3)), torch.randn(4, 2)
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(x, t)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (got, f(x, t))), strict=True):
        torch.testing.assert_close(a, b)


def test_exports() -> None:
    network = nn.Sequential(spgru.Linear(3, 4), nn.Tanh(), spgru.Linear(4, 2)).eval()
    x = Moments(torch.randn(4, 3), torch.rand(4, 3))
    program = torch.export.export(network, (x,))
    assert_same(program.module()(x), network(x))


POOLS: dict[str, nn.Module] = {
    "along time": nn.AvgPool1d(2),
    "with steps and padding": nn.AvgPool1d(3, 2, 1),
    "images": nn.AvgPool2d((2, 3)),
    "overlapping": nn.AvgPool2d(2, stride=1, padding=1),
    "to one": nn.AdaptiveAvgPool1d(1),
    "to a size": nn.AdaptiveAvgPool2d((2, None)),
}


@pytest.mark.parametrize("name", POOLS)
def test_average_pooling_is_a_linear_map(name: str) -> None:
    """The variance is that of the map's matrix, found from its answers to single entries."""
    pool = POOLS[name]
    shape = (1, 2, 6) if "1d" in type(pool).__name__ else (1, 2, 4, 6)
    x = random_moments(*shape)
    got = pool(x)
    torch.testing.assert_close(got.mean, pool(x.mean))
    matrix = torch.autograd.functional.jacobian(pool, x.mean)
    torch.testing.assert_close(got.var, (matrix**2 * x.var).flatten(got.ndim).sum(-1))


def test_pooling_over_windows_of_different_sizes_is_refused() -> None:
    x = random_moments(1, 2, 5)
    for pool in (nn.AdaptiveAvgPool1d(2), nn.AvgPool1d(2, ceil_mode=True)):
        with pytest.raises(TypeError, match="different sizes"):
            pool(x)
    with pytest.raises(TypeError, match="multiply the result"):
        TF.avg_pool2d(x, 1, divisor_override=2)
