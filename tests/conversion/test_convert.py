"""Networks of every listed part keep their mean; what cannot be converted is named."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import spgru
from spgru import Moments
from spgru.moments.rows import CONVERTED, Converted


class Last(nn.Module):
    """A recurrent layer of any kind and what reads its last step."""

    def __init__(self, rnn: nn.Module, head: nn.Module, reading: nn.Module | None = None) -> None:
        super().__init__()
        self.reading, self.rnn, self.head = reading, rnn, head

    def forward(self, x: Tensor) -> Any:
        x = x if self.reading is None else self.reading(x)
        if isinstance(self.reading, (nn.Sequential,)):
            x = x.transpose(1, 2)
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


class Residual(nn.Module):
    """Residual connections, a join, a scale of its own that stays certain."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Any:
        skip = x
        for block in self.blocks:
            x = x + self.scale * torch.tanh(block(self.norm(x)))
        return self.out(torch.cat([x, skip], dim=-1))


class Seq2Seq(nn.Module):
    """Reads by one cell, goes on by another, fed with its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRUCell(2, 5), nn.LSTMCell(2, 5)
        self.plain = nn.RNNCell(5, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Any:
        h = torch.zeros(x.shape[0], 5)
        for t in range(x.shape[1]):
            h = self.encoder(x[:, t], h)
        h, c, y, found = self.plain(h), torch.zeros(x.shape[0], 5), x[:, -1], []
        for _ in range(3):
            h, c = self.decoder(y, (h, c))
            y = self.out(h)
            found.append(y)
        return torch.stack(found, dim=1)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {"a": nn.ModuleList([nn.Linear(4, 4), nn.GELU()]), "b": nn.Sequential(nn.Linear(4, 3))}
        )

    def forward(self, x: Tensor) -> dict[str, Any]:
        for part in self.parts["a"]:
            x = part(x)
        return {"y": self.parts["b"](x), "features": x}


class Packed(nn.Module):
    """Sequences of several lengths, before and after a layer, packed by torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, padding_idx=0)
        self.first, self.second = nn.LSTM(6, 5, batch_first=True), nn.GRU(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        lengths = torch.tensor([3, 7, 5])
        packed = pack_padded_sequence(self.words(x), lengths, True, enforce_sorted=False)
        out, (h, _) = self.first(packed)
        out, _ = self.second(out)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=8)
        return padded, h


class Shared(nn.Module):
    """One module in two places stays one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first

    def forward(self, x: Tensor) -> Any:
        return self.again(torch.sigmoid(self.first(x)))


FLOATS, IMAGES = (3, 7, 4), (2, 1, 8, 8)
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | str]] = {
    "MLP": (
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.SiLU(), nn.Dropout(0.3),
            nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 8), nn.LeakyReLU(0.1), nn.Linear(8, 1),
        ),
        FLOATS,
    ),
    "convolution along time, then GRU": (
        lambda: Last(
            nn.GRU(6, 5, batch_first=True),
            nn.Linear(5, 1),
            nn.Sequential(nn.Conv1d(7, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ELU()),
        ),
        FLOATS,
    ),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(6, 3),
        ),
        IMAGES,
    ),
    "stacked bidirectional LSTM": (
        lambda: Last(
            nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True, dropout=0.2), nn.Linear(10, 2)
        ),
        FLOATS,
    ),
    "classifier of words": (
        lambda: Last(
            nn.LSTM(6, 5, batch_first=True),
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
            nn.Embedding(20, 6, padding_idx=0),
        ),
        "words",
    ),
    "LayerNorm MLP": (
        lambda: nn.Sequential(
            nn.LayerNorm(4), nn.Linear(4, 9), nn.LayerNorm(9, elementwise_affine=False), nn.Tanh(),
            nn.Linear(9, 9), nn.LayerNorm(9, bias=False), nn.Identity(), nn.Linear(9, 1),
        ),
        FLOATS,
    ),
    "sequence to sequence, by cells": (Seq2Seq, (3, 4, 2)),
    "residual connections and a join": (Residual, (3, 6)),
    "GRU with dropout": (
        lambda: Last(nn.GRU(4, 6, 2, dropout=0.5, batch_first=True), nn.Dropout(0.5)), FLOATS,
    ),
    "RNN and a head": (
        lambda: Last(
            nn.RNN(4, 6, batch_first=True),
            nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)),
        ),
        FLOATS,
    ),
    "RNN with relu": (
        lambda: Last(nn.RNN(4, 6, 2, "relu", batch_first=True), nn.Sigmoid()), FLOATS,
    ),
    "projected LSTM": (
        lambda: Last(nn.LSTM(4, 6, proj_size=3, batch_first=True), nn.Linear(3, 1)), FLOATS,
    ),
    "nested lists and dicts": (Nested, FLOATS),
    "a module used twice": (Shared, FLOATS),
    "packed sequences": (Packed, "words"),
    "a single layer": (lambda: nn.GRU(4, 3, 2), FLOATS),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = ARCHITECTURES[name]
    torch.manual_seed(0)
    x = torch.randint(0, 20, (3, 7)) if isinstance(shape, str) else torch.randn(*shape)
    model = make()
    for parameter in model.parameters():  # as after training: no scale or bias at its start
        parameter.data += 0.1 * torch.randn_like(parameter)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return model.eval(), x


def leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value, is_leaf=lambda part: isinstance(part, Moments))


# torch.nn's own remark
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_keeps_its_mean(name: str) -> None:
    model, x = build(name)
    before = copy.deepcopy(model.state_dict())
    want = leaves(model(x))
    certain = leaves(spgru.convert(model, weight_std=0.0)(x))
    for got, expected in zip(certain, want, strict=True):
        mean, var = got if isinstance(got, Moments) else (got, torch.zeros_like(got))
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-6)
        assert not var.any()
    twin = spgru.convert(model, weight_std=0.05, example=x)
    for got in leaves(twin(x)):
        assert torch.isfinite(got.var).all()
        assert (got.var > 0).any()
    # The network itself is as it was, and the twin is a module like any other.
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    other = spgru.convert(model, weight_std=0.3)
    other.load_state_dict(twin.state_dict())
    for again in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin)), other):
        for got, expected in zip(leaves(again(x)), leaves(twin(x)), strict=True):
            assert torch.equal(got.var, expected.var)
    assert "family='gaussian'" in repr(twin)


def test_shared_module_stays_shared_and_parameters_stay_certain() -> None:
    twin = spgru.convert(build("a module used twice")[0])
    assert twin.first is twin.again
    assert isinstance(twin.first, spgru.Linear)
    twin = spgru.convert(build("residual connections and a join")[0])
    assert isinstance(twin.scale, nn.Parameter)
    assert not any("scale" in name for name in twin.state_dict() if "spread" in name)


def test_training_state_and_frozen_parameters_are_kept() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    model[2].eval()
    twin = spgru.convert(model)
    assert [part.training for part in twin] == [True, True, False]
    assert not twin[0].weight.requires_grad
    assert twin[0].spread_w.requires_grad
    assert twin[2].weight.requires_grad
    assert model[1].inplace
    assert not twin[1].inplace


def test_weight_std_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 4))
    twin = spgru.convert(
        model,
        weight_std={"0.weight": 0.5, "1.bias_hh_l0": 0.0, "0.bias": torch.tensor([1.0, 2, 3])},
    )
    default = spgru.convert(model)
    assert torch.allclose(twin[0].weight_moments("weight").std, torch.tensor(0.5))
    assert torch.allclose(twin[0].weight_moments("bias").std, torch.tensor([1.0, 2, 3]))
    assert not twin[1].weight_moments("bias_hh_l0").var.any()
    for found in (twin, default):
        expected = default[1].weight_moments("weight_ih_l0").var
        assert torch.equal(found[1].weight_moments("weight_ih_l0").var, expected)
    with pytest.raises(ValueError, match=r"0.wieght: weight_std names it, but"):
        spgru.convert(model, weight_std={"0.wieght": 0.5})


def test_in_place() -> None:
    model, x = build("GRU with dropout")
    want, twin = model(x), spgru.convert(model, weight_std=0.0, inplace=True)
    assert twin is model
    torch.testing.assert_close(model(x).mean, want)
    with pytest.raises(ValueError, match="a single layer cannot be changed in place"):
        spgru.convert(nn.Linear(2, 2), inplace=True)


# -- what is refused ------------------------------------------------------------------------------


class TransformerThenLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)])
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = Last(nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        x, _ = self.attend(x, x, x)
        return self.head(x)


def test_transformer_is_refused_by_name_and_may_be_kept() -> None:
    model, x = TransformerThenLSTM().eval(), torch.randn(2, 5, 4)
    before = list(model.modules())
    with pytest.raises(ValueError, match="2 problems") as error:
        spgru.convert(model, inplace=True)
    text = str(error.value)
    assert "blocks.0: TransformerEncoderLayer has no closed form" in text
    assert "attend: MultiheadAttention has no closed form" in text
    assert "keep=" in text
    assert [id(part) for part in model.modules()] == [id(part) for part in before]
    twin = spgru.convert(model, weight_std=0.0, keep=["blocks", "attend"], example=x)
    torch.testing.assert_close(twin(x).mean, model(x), rtol=0, atol=1e-6)
    assert isinstance(twin.blocks[0], nn.TransformerEncoderLayer)
    assert not any(isinstance(part, spgru.nn.Layer) for part in twin.blocks.modules())
    assert isinstance(twin.head.rnn, spgru.LSTM)


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def _holding() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.others = [nn.Linear(2, 2)]
    return model


def _holding_by_name() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.others = {"a": (nn.Linear(2, 2),)}
    return model


def _holding_a_method() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.run = model[0].forward
    return model


def _holding_a_partial() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model.run = functools.partial(model[0])
    return model


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    return model


def _pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(2)), r"0: MaxPool2d has no closed form; use av"),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1)), r"0: Softmax has no closed form; return th"),
    "activation": (lambda: nn.Sequential(nn.Hardswish()), r"0: Hardswish has no closed form here;"),
    "unknown": (lambda: nn.Sequential(nn.Bilinear(2, 2, 2)), r"0: Bilinear has no rule for Mom"),
    "tanh form of gelu": (lambda: nn.Sequential(nn.GELU("tanh")), r"use approximate='none'"),
    "alpha": (lambda: nn.Sequential(nn.ELU(2.0)), r"0: ELU with alpha=2.0 has no rule; use"),
    "slope": (lambda: nn.Sequential(nn.LeakyReLU(2.0)), r"negative_slope=2.0 has no rule"),
    "batch statistics": (lambda: nn.Sequential(nn.BatchNorm1d(2)), r"call model.eval\(\) before"),
    "subclass": (lambda: nn.Sequential(Scaled(2, 2)), r"0: Scaled is a class of its own.* nn.Lin"),
    "norm": (lambda: nn.Embedding(3, 2, max_norm=1.0), r"the network: Embedding cannot.*max_norm"),
    "tied": (_tied, r"0.weight, 1.weight: one weight in several modules"),
    "list": (_holding, r"Sequential holds modules in 'others'.*use nn.ModuleList"),
    "dict": (_holding_by_name, r"Sequential holds modules in 'others'.*or nn.ModuleDict"),
    "method": (_holding_a_method, r"Sequential holds a method of a layer in 'run'"),
    "partial": (_holding_a_partial, r"Sequential holds modules in 'run'"),
    "hooks": (_hooked, r"0: Linear has hooks"),
    "pruned": (_pruned, r"0: Linear is pruned; make it permanent with torch.nn.utils.prune.rem"),
    "parametrized": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2))),
        r"remove_parametrizations",
    ),
    "no values": (lambda: nn.Linear(2, 2, device="meta"), r"has no values yet; load the weights"),
    "nothing": (lambda: nn.Sequential(nn.ReLU()), r"has no layer to convert; layers are Linear, C"),
    "compiled": (lambda: torch.compile(nn.Linear(2, 2)), r"OptimizedModule is compiled"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_named(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        spgru.convert(make())


def test_old_weight_norm_is_refused() -> None:
    with pytest.warns(FutureWarning):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="old weight_norm"):
        spgru.convert(model)


class Branching(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way = nn.Sequential(nn.Linear(4, 4)), way

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        if self.way == "softmax":
            return F.softmax(y, -1)
        return y if isinstance(y, Tensor) else 2 * y


def test_example_finds_what_only_running_shows() -> None:
    x = torch.randn(2, 4)
    outer = nn.Sequential(nn.Identity(), Branching("softmax"))
    with pytest.raises(TypeError, match=r"1: Branching cannot run on Moments: .*softmax.*no rule"):
        spgru.convert(outer, example=x)
    with pytest.raises(TypeError, match="Branching cannot run"):
        spgru.convert(outer, example=x, inplace=True)
    assert isinstance(outer[1].inner[0], nn.Linear)
    with pytest.raises(ValueError, match="differs from the network's by"):
        spgru.convert(Branching("other"), example=x)


class Using(nn.Module):
    """What forwards do with a layer besides calling it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.embedding, self.rnn, self.way = nn.Embedding(5, 4), nn.GRU(4, 4), way

    def forward(self, tokens: Tensor) -> Any:
        x = self.embedding(tokens)
        if self.way == "weight alone":
            return F.linear(F.one_hot(tokens, 5).float(), self.embedding.weight.T)
        weight = next(self.parameters())
        state = weight.data.new_zeros(1, x.shape[1], self.embedding.weight.shape[1])
        y = self.rnn.forward(x, state + torch.zeros_like(weight[:1, None]))[0]
        if self.way == "tied output":
            return y @ self.embedding.weight.T
        if self.way == "detached":
            return y.mean if isinstance(y, Moments) else y
        if self.way == "mean over time":
            return y.mean(dim=0)
        return torch.mean(y, dim=0)


def test_weights_used_outside_their_layer_are_named() -> None:
    tokens = torch.randint(5, (3, 2))
    for way in ("tied output", "weight alone"):
        with pytest.raises(ValueError, match=r"embedding.weight: forward uses it outside its lay"):
            spgru.convert(Using(way), example=tokens)
    twin = spgru.convert(Using(""), example=tokens)
    assert "forward" not in vars(twin.rnn)
    with pytest.raises(ValueError, match="gives Tensor without Moments: its forward takes means"):
        spgru.convert(Using("detached"), example=tokens)
    twin = spgru.convert(Using("tied output"), example=tokens, keep=["embedding"])
    assert bool((twin(tokens).var > 0).all())


def test_arguments_are_checked() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"must be an nn\.Module, got int"):
        spgru.convert(3)
    with pytest.raises(ValueError, match="pass one of them"):
        spgru.convert(model, weight_std=0.1, data=[])
    with pytest.raises(TypeError, match="prior_precision goes with data="):
        spgru.convert(model, prior_precision=1.0)
    with pytest.raises(ValueError, match="finite and not negative"):
        spgru.convert(model, weight_std=-1.0)
    with pytest.raises(ValueError, match=r"x: keep= names it, but"):
        spgru.convert(model, keep=["x"])


def test_twin_learns_its_variances() -> None:
    """A short fine-tuning of the variances alone."""
    model, x = build("GRU with dropout")
    y, twin = torch.randn(3, 6), spgru.convert(model, weight_std=0.01)
    spreads = spgru.parameter_groups(twin)[1]["params"]
    optimiser = torch.optim.Adam(spreads, lr=0.1)
    losses = []
    for step in range(30):
        loss = spgru.loss(twin(x), y, twin, data_size=y.numel(), step=step, warmup=10)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(spgru.loss(twin(x), y, kind="nll").item())
    assert losses[-1] < losses[0]


def test_torchs_packing_is_that_of_moments() -> None:
    gru = spgru.GRU(2, 3)
    x, lengths = Moments(torch.randn(5, 3, 2), torch.rand(5, 3, 2)), torch.tensor([2, 5, 4])
    ours = spgru.pack_padded_moments(x, lengths, enforce_sorted=False)
    want, _ = spgru.pad_packed_moments(gru(ours)[0], padding_value=7.0)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    got, found = pad_packed_sequence(gru(packed)[0], padding_value=7.0)
    assert torch.equal(found, lengths)
    assert torch.equal(got.mean, want.mean)
    assert torch.equal(got.var, want.var)
    again, _ = pad_packed_sequence(packed)
    inside = torch.arange(5)[:, None] < lengths
    assert torch.equal(again.var[inside], x.var[inside])
    assert not again.var[~inside].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model, x = build("stacked bidirectional LSTM")
    model, x = model.to(dtype), x.to(dtype)
    assert spgru.convert(model, example=x)(x).dtype is dtype


def test_mean_over_time() -> None:
    """`x.mean` of Moments is no method; the error says where it is called, and what to write."""
    tokens, model = torch.randint(5, (3, 2)), Using("")
    with pytest.raises(TypeError, match=r"test_convert.py, line \d+: .*write torch.mean\(x, dim\)"):
        spgru.convert(Using("mean over time"), example=tokens)
    twin = spgru.convert(model, weight_std=0.0, example=tokens)
    torch.testing.assert_close(twin(tokens).mean, model(tokens), rtol=0, atol=1e-6)


class _BothDirections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, bidirectional=True)
        self.out = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        forward, backward = self.rnn(x)[1][0]
        found: Tensor = self.out(torch.cat([forward, backward], -1))
        return found


class _StepByStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 5), nn.Linear(5, 2)

    def summed(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(_total([torch.tanh(state) for state in self.rnn(x)[0]]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.summed(x)


def _total(parts: list[Tensor]) -> Any:
    return sum(parts)


@pytest.mark.parametrize("kind", [_BothDirections, _StepByStep])
def test_iteration_in_a_converted_forward_is_over_rows(
    kind: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = kind().double().eval(), torch.randn(7, 3, 4, dtype=torch.float64)
    certain = spgru.convert(model, weight_std=0.0, example=x)
    mean, var = certain(x)  # here it is a pair
    torch.testing.assert_close(mean, model(x), rtol=1e-9, atol=1e-12)
    assert bool((var == 0).all())
    saved = pickle.dumps(certain)
    monkeypatch.setattr(Converted, "exists", False)  # as in another process
    kept = pickle.loads(saved)
    torch.testing.assert_close(kept(x).mean, mean)
    if isinstance(certain, _StepByStep):
        torch.testing.assert_close(certain.summed(x).mean, mean)
    # The variance is that of drawn networks, by the response, which leaves nothing out here.
    twin = spgru.convert(model, weight_std=0.02)
    output = spgru.audit(twin, x, draws=800).output
    assert output is not None
    ratio = spgru.respond(twin, x).var.mean() / output.true_var.mean()
    # Of 800 draws the standard error of a variance is 5 %, and outputs vary together.
    assert ratio.item() == pytest.approx(1, abs=0.15)


def test_iteration_after_a_conversion_that_failed_is_as_before() -> None:
    class Softmax(_BothDirections):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(super().forward(x), 0)

    model = Softmax()
    with pytest.raises(TypeError, match="softmax"):
        spgru.convert(model, weight_std=0.1, example=torch.randn(7, 3, 4), inplace=True)
    assert not any(CONVERTED in part.__dict__ for part in model.modules())
