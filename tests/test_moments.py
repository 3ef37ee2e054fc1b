from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

import spgru
from oracles import assert_monte_carlo, random_moments
from spgru import Moments, certain


def pair() -> Moments:
    return Moments(torch.randn(3, 4, 5), torch.rand(3, 4, 5))


def test_unpacks_and_indexes() -> None:
    x = pair()
    mean, var = x
    assert mean is x.mean
    assert var is x.var
    part = x[:, -1, None]
    assert torch.equal(part.mean, mean[:, -1, None])
    assert torch.equal(part.var, var[:, -1, None])
    assert (x.shape, x.ndim, x.dtype, x.device) == (mean.shape, 3, mean.dtype, mean.device)


def test_certain() -> None:
    x = torch.randn(3)
    assert torch.equal(certain(x).mean, x)
    assert torch.equal(certain(x).var, torch.zeros(3))


INDEX = torch.tensor([2, 0])
RESHAPED: list[tuple[str, tuple[Any, ...]]] = [
    ("view", (12, 5)),
    ("reshape", (12, 5)),
    ("reshape", ((4, 15),)),
    ("flatten", ()),
    ("flatten", (1,)),
    ("unflatten", (1, (2, 2))),
    ("permute", (2, 0, 1)),
    ("permute", ((2, 0, 1),)),
    ("movedim", (0, -1)),
    ("transpose", (0, 1)),
    ("squeeze", ()),
    ("squeeze", (0,)),
    ("unsqueeze", (1,)),
    ("expand", (2, 3, 4, 5)),
    ("repeat", (1, 2, 1)),
    ("flip", (0, 2)),
    ("roll", (1, 1)),
    ("select", (1, 2)),
    ("narrow", (1, 1, 2)),
    ("index_select", (0, INDEX)),
    ("chunk", (2, 1)),
    ("split", (2, 1)),
    ("split", ([1, 4], 2)),
    ("unbind", (1,)),
    ("contiguous", ()),
    ("clone", ()),
    ("detach", ()),
    ("float", ()),
    ("double", ()),
    ("half", ()),
    ("bfloat16", ()),
    ("cpu", ()),
    ("to", (torch.float64,)),
]


@pytest.mark.parametrize(("name", "arguments"), RESHAPED, ids=[f"{n}{a}" for n, a in RESHAPED])
def test_methods_of_tensors_apply_to_both(name: str, arguments: tuple[Any, ...]) -> None:
    x = pair()
    functions = [lambda v: getattr(v, name)(*arguments)]
    if callable(getattr(torch, name, None)):
        # Torch's functions take sizes in one argument where methods take several.
        several = name in ("reshape", "permute", "flip") and isinstance(arguments[0], int)
        packed = (arguments,) if several else arguments
        functions.append(lambda v: getattr(torch, name)(v, *packed))
    for function in functions:
        got = function(x)
        for field in ("mean", "var"):
            want = function(getattr(x, field))
            if isinstance(want, Tensor):
                assert isinstance(got, Moments)
                assert torch.equal(getattr(got, field), want)
                assert getattr(got, field).dtype == want.dtype
            else:
                for part, wanted in zip(got, want, strict=True):
                    assert torch.equal(getattr(part, field), wanted)


def test_torch_functions_without_a_method() -> None:
    x = pair()
    for function in (
        lambda v: torch.swapaxes(v, 0, 2),
        lambda v: torch.moveaxis(input=v, source=0, destination=2),
        lambda v: torch.tile(v, (2, 1, 1)),
        lambda v: torch.broadcast_to(v, (2, 3, 4, 5)),
        lambda v: torch.gather(v, 0, torch.zeros(1, 4, 5, dtype=torch.long)),
        lambda v: torch.masked_select(v, torch.ones(4, 1, dtype=torch.bool)),
        lambda v: torch.nn.functional.pad(v, (1, 2), mode="replicate"),
        lambda v: torch.nn.functional.pixel_shuffle(v.reshape(4, 3, 5), 2),
        lambda v: v.mT,
        lambda v: v[0].T,
        lambda v: v.expand_as(torch.zeros(2, 3, 4, 5)),
    ):
        got = function(x)
        assert torch.equal(got.mean, function(x.mean))
        assert torch.equal(got.var, function(x.var))


def test_what_a_tensor_tells_of_itself() -> None:
    x = pair()
    assert x.size() == (3, 4, 5)
    assert x.size(-1) == 5
    assert (x.dim(), x.numel(), len(x), x.is_cuda) == (3, 60, 3, False)
    assert torch.numel(x) == 60
    assert torch.is_floating_point(x)
    assert not x.requires_grad
    assert Moments(x.mean, x.var.clone().requires_grad_()).requires_grad
    assert not Moments(x.mean.requires_grad_(), x.var).detach().requires_grad


def test_where_and_padding_are_certain_beside_moments() -> None:
    x, y = pair(), pair()
    mask = torch.rand(4, 1) < 0.5
    both = torch.where(mask, x, y)
    assert torch.equal(both.mean, torch.where(mask, x.mean, y.mean))
    assert torch.equal(both.var, torch.where(mask, x.var, y.var))
    for got in (torch.where(mask, x, 7.0), torch.where(mask, x, torch.full((3, 4, 5), 7.0))):
        assert torch.equal(got.mean, torch.where(mask, x.mean, 7.0))
        assert torch.equal(got.var, torch.where(mask, x.var, 0.0))
    assert torch.equal(torch.full((3, 4, 5), 7.0).where(mask, x).var, torch.where(mask, 0, x.var))
    padded = torch.nn.functional.pad(x, (1, 0), value=9.0)
    assert (padded.mean[..., 0] == 9).all()
    assert (padded.var[..., 0] == 0).all()
    assert torch.equal(padded.var[..., 1:], x.var)


def test_stack_and_cat() -> None:
    x, y = pair(), pair()
    for reference in (torch.stack, torch.cat):
        for function in (getattr(spgru, reference.__name__), reference):
            got = function([x, y], 1)
            assert torch.equal(got.mean, reference([x.mean, y.mean], 1))
            assert torch.equal(got.var, reference([x.var, y.var], 1))
            mixed = function([x, y.mean], dim=1)
            assert torch.equal(mixed.var, reference([x.var, 0 * y.var], 1))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999999])
def test_interval_covers(level: float) -> None:
    x = Moments(torch.tensor(2.0).double(), torch.tensor(9.0).double())
    low, high = x.interval(level)
    normal = torch.distributions.Normal(x.mean, x.std)
    assert (normal.cdf(high) - normal.cdf(low)).item() == pytest.approx(level, rel=1e-9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        x.interval(95)


VALUES = torch.tensor([-3.0, 0.5, 2.0, 9.0]).double()


def test_as_a_gaussian_against_scipy() -> None:
    x = Moments(
        torch.tensor([0.0, 1.0, 2.0, -4.0]).double(), torch.tensor([1, 0.01, 9, 4]).double()
    )
    true = scipy.stats.norm(x.mean.numpy(), x.std.numpy())
    np.testing.assert_allclose(x.log_prob(VALUES), true.logpdf(VALUES), rtol=1e-12)
    np.testing.assert_allclose(x.cdf(VALUES), true.cdf(VALUES), rtol=1e-9)
    np.testing.assert_allclose(x.cdf(0.5), true.cdf(0.5), rtol=1e-9)
    for q in (0.01, 0.5, 0.975):
        np.testing.assert_allclose(x.quantile(q), true.ppf(q), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(x.cdf(x.quantile(q)), torch.full_like(x.mean, q))
    several = x.quantile(torch.tensor([[0.1, 0.9]]).double())
    assert several.shape == (1, 2, 4)
    torch.testing.assert_close(several[0, 1], x.quantile(float(torch.tensor(0.9))))
    for q in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="q must lie between 0 and 1"):
            x.quantile(q)
    low, high = x.interval(0.9)
    torch.testing.assert_close(low, x.quantile(0.05))
    torch.testing.assert_close(high, x.quantile(0.95))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_as_a_gaussian_of_no_variance(dtype: torch.dtype) -> None:
    x = certain(torch.tensor([1.0, 1.0, 1.0], dtype=dtype))
    values = torch.tensor([0.5, 1.0, 1.5], dtype=dtype)
    assert x.cdf(values).tolist() == [0, 1, 1]
    assert x.log_prob(values).tolist() == [-torch.inf, torch.inf, -torch.inf]
    assert torch.equal(x.quantile(0.01), x.mean)
    assert torch.equal(x.quantile(torch.tensor([0.01]))[0], x.mean)
    assert torch.equal(x.sample(), x.mean)
    assert x.cdf(torch.nan).isnan().all()
    assert x.log_prob(torch.nan).isnan().all()


def test_samples_have_the_moments() -> None:
    x = random_moments(20)
    assert_monte_carlo(x.sample((200_000,)), x)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    first, second = (x.sample((2, 3), generator=generator) for generator in generators)
    assert first.shape == (2, 3, 20)
    assert torch.equal(first, second)


ONES = torch.ones(3)
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Moments(0.0, ONES), TypeError, r"mean must be a Tensor, got float; convert it"),
    (lambda: Moments(ONES, 1), TypeError, r"var must be a Tensor, got int"),
    (lambda: Moments(np.ones(3), ONES), TypeError, r"got ndarray; .* torch\.as_tensor"),
    (lambda: Moments(Moments(ONES, ONES), ONES), TypeError, "mean must be a Tensor, got Moments"),
    (lambda: Moments(ONES.long(), ONES.long()), TypeError, r"mean has dtype torch\.int64 but"),
    (lambda: Moments(ONES, ONES[:2]), ValueError, r"mean has shape \(3,\) but var \(2,\); expand"),
    (lambda: Moments(ONES, ONES.double()), ValueError, r"var has dtype torch\.float64; convert"),
    (lambda: Moments(ONES, ONES.to("meta")), ValueError, "mean is on cpu but var is on meta; move"),
    (
        lambda: Moments(ONES.to("meta"), ONES.double().to("meta")),
        ValueError,
        r"mean has dtype torch\.float32 but var has dtype torch\.float64",
    ),
    (lambda: certain(ONES.long()), TypeError, r"mean\.float\(\)"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[m for *_, m in REFUSED])
def test_fields_that_do_not_fit_are_refused(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_dtypes_may_differ_where_autocast_chooses_them() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Moments(ONES.bfloat16(), ONES).dtype == torch.bfloat16


def test_repr_is_short() -> None:
    small = Moments(torch.tensor([[1.0, -0.123456]]), torch.tensor([[0.25, 0.0]]))
    assert repr(small) == (
        "Moments([[1 ± 0.5, -0.1235 ± 0]], shape=(1, 2), dtype=torch.float32, device='cpu')"
    )
    assert repr(pair()) == "Moments(shape=(3, 4, 5), dtype=torch.float32, device='cpu')"
    assert "device='meta'" in repr(small.to("meta"))
    assert "sqrt(-1)" in repr(Moments(torch.zeros(1), -torch.ones(1)))
    packed = spgru.pack_padded_moments(pair(), [3, 1, 2, 2], enforce_sorted=False)
    assert repr(packed).startswith("Moments(packed, shape=(8, 5), ")
    inside = []
    torch.vmap(lambda x: inside.append(repr(x)) or x)(pair())
    assert inside == ["Moments(shape=(4, 5), dtype=torch.float32, device='cpu')"]
    assert repr(tree_map(lambda leaf: leaf.ndim, small)) == "Moments(mean=2, var=2)"


def test_compiles_without_graph_breaks() -> None:
    def f(x: Moments) -> tuple[Moments, Moments]:
        mean, var = spgru.functional.sigmoid(x)
        return Moments(mean, var)[0], spgru.cat([x, x])

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    x = pair()
    for got, want in zip(compiled(x), f(x), strict=True):
        torch.testing.assert_close(got.mean, want.mean)
        torch.testing.assert_close(got.var, want.var)


def test_is_a_pytree() -> None:
    x = pair()
    # Leaves may become anything on the way.
    assert tree_map(lambda leaf: leaf.ndim, x).var == 3
    assert tree_map(lambda leaf: leaf > 0, x).mean.dtype == torch.bool
    with pytest.raises(dataclasses.FrozenInstanceError):
        x.mean = x.var
    summed = torch.vmap(lambda m: Moments(m.mean.sum(), m.var.sum()))(x)
    torch.testing.assert_close(summed.var, x.var.sum((1, 2)))


def test_packed_moments_answer_or_say_what_to_do() -> None:
    packed = spgru.pack_padded_moments(pair(), [3, 1, 2, 2], enforce_sorted=False)
    assert (packed.dtype, packed.device) == (torch.float32, torch.device("cpu"))
    assert not packed.is_cuda
    assert not packed.requires_grad
    assert packed.double().var.data.dtype == torch.float64
    assert packed.cpu().mean.data.shape == (8, 5)
    for ask in (
        lambda: packed.shape,
        lambda: packed.ndim,
        lambda: packed.std,
        lambda: len(packed),
        lambda: packed[0],
        lambda: packed.interval(0.9),
        lambda: packed.quantile(0.9),
        lambda: packed.cdf(0.0),
        lambda: packed.log_prob(0.0),
        lambda: packed.sample(),
        lambda: packed.reshape(-1),
        lambda: packed.unbind(),
        lambda: packed * 2,
        lambda: torch.relu(packed),
        lambda: torch.cat([packed, packed]),
        lambda: torch.cat(tensors=[packed, packed], axis=0),
        lambda: spgru.functional.sigmoid(packed),
    ):
        with pytest.raises(TypeError, match=r"spgru\.pad_packed_moments first"):
            ask()


def test_packs_and_unpacks() -> None:
    x, lengths = pair(), [3, 1, 2, 2]
    packed = spgru.pack_padded_moments(x, lengths, enforce_sorted=False)
    assert isinstance(packed.var, PackedSequence)
    want = pack_padded_sequence(x.mean, lengths, enforce_sorted=False)
    assert torch.equal(packed.mean.data, want.data)
    back, back_lengths = spgru.pad_packed_moments(packed)
    assert back_lengths.tolist() == lengths
    for b, length in enumerate(lengths):
        assert torch.equal(back.mean[:length, b], x.mean[:length, b])
        assert (back.var[length:, b] == 0).all()
    with pytest.raises(TypeError, match="must be a PackedSequence"):
        spgru.pad_packed_moments(x)


@pytest.mark.parametrize("batch_first", [False, True])
def test_pads_to_a_total_length_as_torch_does(batch_first: bool) -> None:
    x, lengths = pair(), [3, 1, 2, 2]
    packed = spgru.pack_padded_moments(x, lengths, enforce_sorted=False)
    found, found_lengths = spgru.pad_packed_moments(packed, batch_first, -1.0, total_length=6)
    mean, _ = pad_packed_sequence(packed.mean, batch_first, -1.0, total_length=6)
    var, _ = pad_packed_sequence(packed.var, batch_first, 0.0, total_length=6)
    assert torch.equal(found.mean, mean)
    assert torch.equal(found.var, var)
    assert found.shape[1 if batch_first else 0] == 6
    assert found_lengths.tolist() == lengths
    with pytest.raises(ValueError, match="total_length=2 and max sequence length being 3"):
        spgru.pad_packed_moments(packed, batch_first, total_length=2)


def test_methods_of_tensors_go_by_the_table_or_say_that_there_is_no_rule() -> None:
    x = Moments(torch.randn(2, 3), torch.rand(2, 3))
    assert x.ravel().shape == (6,)
    assert x.t().shape == (3, 2)
    assert torch.equal(x.swapaxes(0, 1).var, x.var.swapaxes(0, 1))
    assert torch.equal(x.mul(2.0).var, 4 * x.var)
    with pytest.raises(TypeError, match="softmax has no rule for Moments"):
        x.softmax(-1)
    with pytest.raises(AttributeError, match=r"no attribute 'grad_fn'; use x\.mean"):
        _ = x.grad_fn
    assert +x is x


def test_log_prob_refuses_targets_that_would_enlarge_the_result() -> None:
    x = Moments(torch.zeros(4, 1), torch.ones(4, 1))
    assert x.log_prob(torch.zeros(4, 1)).shape == (4, 1)
    assert x.log_prob(0.0).shape == x.log_prob(torch.zeros(1)).shape == (4, 1)
    for wrong in (torch.zeros(4), torch.zeros(3, 1), torch.zeros(4, 2)):
        with pytest.raises(ValueError, match="value has shape"):
            x.log_prob(wrong)
