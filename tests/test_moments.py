from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import spgru
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


def test_moves_and_reshapes_both() -> None:
    x = pair()
    assert x.to(torch.float64).var.dtype == torch.float64
    for name, arguments in (
        ("reshape", (12, 5)),
        ("transpose", (0, 1)),
        ("unsqueeze", (1,)),
        ("flip", (0,)),
    ):
        got = getattr(x, name)(*arguments)
        for field in ("mean", "var"):
            assert torch.equal(getattr(got, field), getattr(getattr(x, field), name)(*arguments))
    assert [part.shape for part in x.chunk(2, 1)] == [(3, 2, 5), (3, 2, 5)]
    assert [part.shape for part in x.split([1, 4], 2)] == [(3, 4, 1), (3, 4, 4)]
    for k, part in enumerate(x.unbind(1)):
        assert torch.equal(part.mean, x.mean[:, k])
        assert torch.equal(part.var, x.var[:, k])
    assert not Moments(x.mean.requires_grad_(), x.var).detach().mean.requires_grad


def test_stack_and_cat() -> None:
    x, y = pair(), pair()
    for function, reference in ((spgru.stack, torch.stack), (spgru.cat, torch.cat)):
        got = function([x, y], 1)
        assert torch.equal(got.mean, reference([x.mean, y.mean], 1))
        assert torch.equal(got.var, reference([x.var, y.var], 1))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.999999])
def test_interval_covers(level: float) -> None:
    x = Moments(torch.tensor(2.0).double(), torch.tensor(9.0).double())
    low, high = x.interval(level)
    normal = torch.distributions.Normal(x.mean, x.std)
    assert (normal.cdf(high) - normal.cdf(low)).item() == pytest.approx(level, rel=1e-9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        x.interval(95)


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
    summed = torch.vmap(lambda m: Moments(m.mean.sum(), m.var.sum()))(x)
    torch.testing.assert_close(summed.var, x.var.sum((1, 2)))


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
