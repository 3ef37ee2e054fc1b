from __future__ import annotations

import pytest
import torch

import spgru.functional as F
from oracles import assert_monte_carlo, draw, random_moments
from spgru import Moments, certain

DRAWS = 200_000


def test_linear() -> None:
    x, weight, bias = random_moments(3, 5), random_moments(4, 5), random_moments(4)
    samples = torch.einsum("nbi,noi->nbo", draw(x, DRAWS), draw(weight, DRAWS))
    assert_monte_carlo(samples + draw(bias, DRAWS)[:, None], F.linear(x, weight, bias))


def test_linear_with_certain_parts() -> None:
    x, weight, bias = random_moments(3, 5), random_moments(4, 5), random_moments(4)
    for got, want in (
        (F.linear(x.mean, weight, bias), F.linear(certain(x.mean), weight, bias)),
        (
            F.linear(x, weight.mean, bias.mean),
            F.linear(x, certain(weight.mean), certain(bias.mean)),
        ),
        (F.linear(x, weight), F.linear(x, weight, certain(torch.zeros(4).double()))),
    ):
        torch.testing.assert_close(got.mean, want.mean)
        torch.testing.assert_close(got.var, want.var)
    plain = F.linear(x.mean, weight.mean, bias.mean)
    assert torch.equal(plain, torch.nn.functional.linear(x.mean, weight.mean, bias.mean))
    mixed, wrapped = F.linear(x, weight.mean, bias), F.linear(x, certain(weight.mean), bias)
    assert torch.equal(mixed.var, wrapped.var)


def test_tensors_beside_moments_are_certain() -> None:
    a, b, c = random_moments(5), random_moments(5), random_moments(5)
    for function, values in ((F.add, (a, b)), (F.product, (a, b)), (F.lerp, (a, b, c))):
        for k in range(len(values)):
            plain = [v.mean if i == k else v for i, v in enumerate(values)]
            wrapped = [certain(v.mean) if i == k else v for i, v in enumerate(values)]
            assert torch.equal(function(*plain).var, function(*wrapped).var)


def test_rows_of_an_affine_map() -> None:
    x, weight, bias = random_moments(3, 5), random_moments(4, 5), random_moments(4)
    whole, part = F.Affine.of(weight, bias)(x), F.Affine.of(weight, bias).rows(1, 3)(x)
    torch.testing.assert_close(part.mean, whole.mean[:, 1:3])
    torch.testing.assert_close(part.var, whole.var[:, 1:3])


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": "same"}, {"groups": 2}]
)
def test_conv2d(options: dict[str, object]) -> None:
    x = random_moments(1, 4, 5, 5)
    weight, bias = random_moments(2, 4 // options.get("groups", 1), 3, 3), random_moments(2)
    got = F.conv2d(x, weight, bias, **options)
    # Draws side by side as groups: one convolution with a different weight for each.
    count, chunks = 2000, 30
    groups = options.get("groups", 1)
    samples = []
    for _ in range(chunks):
        xs, ws, bs = draw(x, count), draw(weight, count), draw(bias, count)
        out = torch.nn.functional.conv2d(
            xs.reshape(1, -1, 5, 5),
            ws.reshape(-1, *weight.shape[1:]),
            bs.reshape(-1),
            **{**options, "groups": count * groups},
        )
        samples.append(out.reshape(count, *got.shape))
    assert_monte_carlo(torch.cat(samples), got)


def test_product() -> None:
    a, b = random_moments(20), random_moments(20)
    assert_monte_carlo(draw(a, DRAWS) * draw(b, DRAWS), F.product(a, b))


def test_lerp() -> None:
    start, end, weight = random_moments(20), random_moments(20), random_moments(20)
    s, e, w = draw(start, DRAWS), draw(end, DRAWS), draw(weight, DRAWS)
    assert_monte_carlo((1 - w) * s + w * e, F.lerp(start, end, weight))


def test_lerp_as_printed() -> None:
    start, end, weight = random_moments(20), random_moments(20), random_moments(20)
    got = F.lerp(start, end, weight, rule="paper")
    torch.testing.assert_close(got.mean, (1 - weight.mean) * start.mean + weight.mean * end.mean)
    want = (1 - weight.var) ** 2 * start.var + weight.var**2 * end.var
    torch.testing.assert_close(got.var, want)


def test_add_and_sum() -> None:
    a, b = random_moments(6, 7), random_moments(6, 7)
    assert_monte_carlo(draw(a, DRAWS) + draw(b, DRAWS), F.add(a, b))
    assert_monte_carlo(draw(a, DRAWS).sum(1), F.sum(a, 0))
    assert F.sum(a, 1, keepdim=True).shape == (6, 1)


def test_dropout() -> None:
    x = random_moments(30)
    mask = (torch.rand(DRAWS, 30) < 0.7).double() / 0.7
    assert_monte_carlo(draw(x, DRAWS) * mask, F.dropout(x, 0.3))
    assert F.dropout(x, 0.3, training=False) is x
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\]"):
        F.dropout(x, 1.1)


@pytest.mark.parametrize("name", ["add", "product", "lerp", "sigmoid", "tanh", "relu", "sum"])
def test_plain_tensors_give_the_mean_of_certain_moments(name: str) -> None:
    """The brute force of `audit` runs these same functions on draws."""
    count = {"add": 2, "product": 2, "lerp": 3}.get(name, 1)
    values = [torch.randn(7, dtype=torch.float64) for _ in range(count)]
    extra = (0,) if name == "sum" else ()
    function = getattr(F, name)
    plain = function(*values, *extra)
    moments: Moments = function(*map(certain, values), *extra)
    torch.testing.assert_close(moments.mean, plain)
    assert (moments.var == 0).all()


def test_maps_are_told_apart_by_identity() -> None:
    """torch.compile of 2.11 hashes what it calls, an object whose fields it has not set yet."""
    weight = random_moments(4, 5)
    assert F.Affine.of(weight) != F.Affine.of(weight)
    assert isinstance(hash(F.Affine.__new__(F.Affine)), int)


def test_what_a_map_keeps_still_learns() -> None:
    """Used without gradients first, it must not lose them for later."""
    mean, var = torch.randn(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    affine = F.Affine.of(Moments(mean, var))
    x = Moments(torch.randn(2, 4), torch.rand(2, 4))
    with torch.no_grad():
        affine(x)
    affine(x).var.sum().backward()
    assert mean.grad is not None
    assert mean.grad.any()
    expected = (x.mean**2 + x.var).sum(0).expand(3, 4)
    assert torch.allclose(var.grad, expected)
