"""Conv1d, Embedding, LayerNorm and GaussianHead: torch.nn without variance, draws with it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spgru
from oracles import assert_monte_carlo, draw
from spgru import Moments, certain
from spgru.nn import Conv1d, Embedding, GaussianHead, LayerNorm
from spgru.nn.contexts import at_mean, sampling
from test_respond import assert_is, definition, first_order

DOUBLE = {"dtype": torch.float64}
CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"padding": 2, "bias": False},
    {"padding": "same", "dilation": 2},
    {"stride": 2, "dilation": 2, "groups": 2},
    {"padding": 2, "padding_mode": "circular"},
    {"padding": 1, "padding_mode": "reflect"},
]
INDEX = torch.tensor([[0, 1, 5], [3, 3, 0]])


def layers() -> dict[str, tuple[nn.Module, nn.Module, Any]]:
    """Ours with an uncertain weight, torch's, and an input."""
    theirs: dict[str, tuple[Any, Any]] = {
        "Conv1d": (nn.Conv1d(2, 4, 3, **DOUBLE), torch.randn(3, 2, 7, **DOUBLE)),
        "Embedding": (nn.Embedding(6, 3, **DOUBLE), INDEX),
        "padded Embedding": (nn.Embedding(6, 3, padding_idx=0, **DOUBLE), INDEX),
        "LayerNorm": (nn.LayerNorm(12, **DOUBLE), torch.randn(3, 2, 12, **DOUBLE)),
        "LayerNorm of two": (
            nn.LayerNorm((2, 12), bias=False, **DOUBLE),
            torch.randn(3, 2, 12, **DOUBLE),
        ),
    }
    found = {}
    for name, (module, x) in theirs.items():
        for parameter in module.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        ours = getattr(spgru.nn, type(module).__name__).from_torch(module, weight_std=0.2)
        found[name] = ours, module, x
    return found


NAMES = ("Conv1d", "Embedding", "padded Embedding", "LayerNorm", "LayerNorm of two")


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_conv1d_without_variance_is_that_of_torch(options: dict[str, Any], batched: bool) -> None:
    theirs, x = nn.Conv1d(4, 6, 3, **options), torch.randn(2, 4, 11)
    ours = Conv1d.from_torch(theirs, weight_std=0.0)
    x = x if batched else x[0]
    for value in (x, certain(x)):
        torch.testing.assert_close(ours(value).mean, theirs(x), rtol=0, atol=1e-6)
        assert not ours(value).var.any()
    torch.testing.assert_close(ours.to_torch()(x), theirs(x))
    if "padding_mode" not in options:
        rest = {name: value for name, value in options.items() if name != "bias"}
        got = F.conv1d(certain(x), theirs.weight, theirs.bias, **rest)
        torch.testing.assert_close(got.mean, theirs(x))


@pytest.mark.parametrize("name", NAMES)
def test_means_are_those_of_torch(name: str) -> None:
    ours, theirs, x = layers()[name]
    with at_mean(ours):
        torch.testing.assert_close(ours(x).mean, theirs(x))
    torch.testing.assert_close(ours(x).mean, theirs(x))
    for parameter, other in zip(theirs.parameters(), ours.to_torch().parameters(), strict=True):
        assert torch.equal(parameter, other)
    assert list(ours.state_dict())[: len(theirs.state_dict())] == list(theirs.state_dict())
    torch.manual_seed(3)
    fresh = type(theirs)(*_arguments(theirs))
    torch.manual_seed(3)
    for ours_mean, mean in zip(
        type(ours)(*_arguments(theirs)).weights(), fresh.state_dict(), strict=True
    ):
        assert ours_mean == mean
    torch.manual_seed(3)
    again = type(ours)(*_arguments(theirs)).state_dict()
    assert all(torch.equal(again[key], value) for key, value in fresh.state_dict().items())


def _arguments(module: Any) -> tuple[Any, ...]:
    if isinstance(module, nn.Conv1d):
        return 2, 4, 3
    if isinstance(module, nn.Embedding):
        return 6, 3, module.padding_idx
    return (module.normalized_shape,)


@pytest.mark.parametrize("name", NAMES)
def test_layer_against_drawn_networks(name: str) -> None:
    """The closed form of uncertain weights and input, against the same layer drawn."""
    layer, _, x = layers()[name]
    if x.is_floating_point():
        x = Moments(x, 0.05 * torch.rand_like(x))
    generator = torch.Generator().manual_seed(0)
    count, samples = 4000, []
    for _ in range(count):
        with sampling(layer, generator):
            samples.append(layer(x).mean)
    drawn, closed = torch.stack(samples), layer(x)
    certain_entries = closed.var == 0
    assert bool(certain_entries.any()) == (name == "padded Embedding")
    assert torch.equal(drawn.var(0) == 0, certain_entries)
    ratio = (closed.var / drawn.var(0))[~certain_entries]
    # 4000 draws know a variance to 2.2 %, and LayerNorm's error is below 1 % here.
    assert (ratio - 1).abs().max() < 0.12
    assert (ratio.mean() - 1).abs() < 0.02
    error = (closed.mean - drawn.mean(0)).abs()
    assert (error < 5 * drawn.std(0) / count**0.5 + 1e-12).all()


def test_conv1d_against_draws() -> None:
    x = Moments(torch.randn(2, 5, **DOUBLE), torch.rand(2, 5, **DOUBLE))
    layer = Conv1d(2, 3, 3, padding=1, weight_std=0.5, **DOUBLE)
    count = 100_000
    weight, bias = (draw(layer.weight_moments(n).detach(), count) for n in ("weight", "bias"))
    # Every draw is a group of one convolution.
    inputs = draw(x, count).reshape(1, -1, 5)
    flat = F.conv1d(inputs, weight.reshape(-1, 2, 3), bias.flatten(), padding=1, groups=count)
    assert_monte_carlo(flat.view(count, 3, 5), layer(x).detach())


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("std", [0.1, 1.0, 3.0])
def test_layer_norm_of_uncertain_features(size: int, std: float) -> None:
    """With variances that differ from entry to entry; accuracy/layer_norm.py has the table."""
    x = Moments(torch.randn(size, **DOUBLE), 2 * std**2 * torch.rand(size, **DOUBLE))
    count = 40_000
    samples = F.layer_norm(draw(x, count), (size,))
    got = F.layer_norm(x, (size,))
    ratio = got.var / samples.var(0)
    assert (ratio - 1).abs().max() < 0.05 + 5 * (2 / count) ** 0.5
    assert (got.var.sum() / samples.var(0).sum() - 1).abs() < 0.01
    error = (got.mean - samples.mean(0)).abs() / samples.std(0)
    assert error.max() < 0.01 + 5 / count**0.5


def test_layer_norm_of_one_uncertain_feature_and_of_one_feature() -> None:
    """Where the expansion is worst the variance is still one."""
    mean, var = torch.zeros(5, **DOUBLE), torch.zeros(5, **DOUBLE)
    mean[0], var[0] = 3.0, 100.0
    got = F.layer_norm(Moments(mean, var), (5,))
    assert (got.var >= 0).all()
    assert torch.isfinite(got.mean).all()
    alone = F.layer_norm(Moments(mean[:1], var[:1]), (1,))
    torch.testing.assert_close(alone.mean, torch.zeros(1, **DOUBLE))
    torch.testing.assert_close(alone.var, torch.zeros(1, **DOUBLE), atol=1e-4, rtol=0)


@pytest.mark.parametrize("std", [0.0, 0.4])
def test_gradcheck_of_layer_norm(std: float) -> None:
    mean = torch.randn(2, 5, **DOUBLE).requires_grad_()
    var = (std**2 * (0.5 + torch.rand(2, 5, **DOUBLE))).requires_grad_()
    weight = torch.randn(5, **DOUBLE).requires_grad_()

    def run(mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.layer_norm(Moments(mean, var), (5,), weight))

    if std:
        assert torch.autograd.gradcheck(run, (mean, var, weight))
    else:  # the slope at no variance is that of the first order: the squared Jacobian
        jacobian = torch.autograd.functional.jacobian(lambda x: F.layer_norm(x, (5,)), mean[0])
        slope = torch.autograd.functional.jacobian(
            lambda v: F.layer_norm(Moments(mean[0].detach(), v), (5,)).var, var[0].detach()
        )
        torch.testing.assert_close(slope, jacobian**2)


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_is_linear_in_evaluation_and_refused_in_training(training: bool) -> None:
    module = nn.BatchNorm1d(3, **DOUBLE)
    module(torch.randn(50, 3, 4, **DOUBLE) * 2 + 1)
    nn.init.normal_(module.weight)
    x = Moments(torch.randn(2, 3, 4, **DOUBLE), torch.rand(2, 3, 4, **DOUBLE))
    module.train(training)
    if training:
        with pytest.raises(TypeError, match=r"call module.eval\(\)"):
            module(x)
        return
    torch.testing.assert_close(module(x).mean, module(x.mean))
    slope = module(x.mean + 1) - module(x.mean)
    torch.testing.assert_close(module(x).var, slope**2 * x.var)


class Network(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        options: Any = {"weight_std": 0.2, **DOUBLE}
        self.first: Any = {
            "Conv1d": lambda: Conv1d(2, 4, 3, padding=1, groups=2, **options),
            "Embedding": lambda: Embedding(6, 5, 0, **options),
            "LayerNorm": lambda: LayerNorm(5, **options),
        }[name]()
        self.rest = nn.Sequential(nn.Tanh(), spgru.Linear(5, 3, **options), LayerNorm(3, **options))

    def forward(self, x: Any) -> Any:
        return self.rest(self.first(x))


@pytest.mark.parametrize("name", ["Conv1d", "Embedding", "LayerNorm"])
def test_response_counts_their_weights(name: str) -> None:
    module = Network(name)
    x = torch.randn(3, 2, 5, **DOUBLE) if name != "Embedding" else INDEX
    _, parts = spgru.respond(module, x, sources=True)
    assert_is(first_order(module, x), definition(module, lambda run: run(x)))
    assert parts["first.weight"].sum() > 0


class Reader(nn.Module):
    """Reads words: every layer that is not recurrent, and one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = Embedding(6, 4, padding_idx=0), LayerNorm(4)
        self.near, self.gru = Conv1d(4, 4, 3, padding=1), spgru.GRU(4, 8, batch_first=True)
        self.head = GaussianHead(8, 1)

    def forward(self, x: Tensor) -> Moments:
        y = self.norm(self.words(x)).transpose(1, 2)
        out, _ = self.gru(torch.relu(self.near(y)).transpose(1, 2))
        return self.head(out[:, -1])


def test_audit_trace_and_calibrate_take_them() -> None:
    model, x = Reader(), torch.randint(0, 6, (32, 5))
    report = spgru.audit(model, x, draws=200, redraw=False)
    assert set(report.layers) == {
        "words", "norm", "near", "gru.l0", "head.value", "head.log_var",
    }  # fmt: skip
    for name in ("words", "norm", "near"):
        layer = report.layers[name]
        # Correlation between entries of one word is all that is ignored so far.
        assert 0.7 < (layer.closed_var.mean() / layer.true_var.mean()).item() < 1.2
    assert set(spgru.trace(model, x)) >= {"words", "norm", "near"}
    spgru.calibrate(model, x, draws=50, steps=20, progress=False)
    assert set(model.near.gains()) <= {"weight"}
    assert model.words.gains() == {} == model.norm.gains()
    assert (model(x).var > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_copied_pickled_and_frozen(name: str) -> None:
    layer, _, x = layers()[name]
    expected = layer(x)
    reloaded = pickle.loads(pickle.dumps(layer))
    other = type(layer)(**layer._torch_arguments(layer), **DOUBLE)
    other.load_state_dict(layer.state_dict())
    for copied in (reloaded, other, copy.deepcopy(layer)):
        assert torch.equal(copied(x).mean, expected.mean)
        assert torch.equal(copied(x).var, expected.var)
    with spgru.frozen(layer):
        for _ in range(2):
            assert torch.equal(layer(x).var, expected.var)
    assert type(layer).__name__ in repr(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x).var, expected.var)
    expected.var.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)


def test_padding_is_certain_and_free_of_charge() -> None:
    prior = spgru.Prior("gaussian", std=1.0)
    padded, plain = Embedding(4, 3, padding_idx=-1), Embedding(3, 3)
    plain.set_weight_("weight", padded.weight_moments("weight")[:3])
    assert padded.padding_idx == 3
    torch.testing.assert_close(
        spgru.kl_divergence(padded, prior), spgru.kl_divergence(plain, prior)
    )
    padded(torch.tensor([3, 1])).mean.sum().backward()
    assert not padded.weight.grad[3].any()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="reaches from 0 to 9 but there are 6 rows"):
        Embedding(6, 2)(torch.tensor([0, 9]))
    with pytest.raises(TypeError, match=r"use input.long\(\)"):
        Embedding(6, 2)(torch.zeros(3))
    with pytest.raises(ValueError, match="padding_idx is 6 but there are 6 rows"):
        Embedding(6, 2, padding_idx=6)
    with pytest.raises(ValueError, match=r"max_norm=1\.0 has no counterpart"):
        Embedding.from_torch(nn.Embedding(6, 2, max_norm=1.0))
    with pytest.raises(ValueError, match=r"use torch.nn.LayerNorm"):
        LayerNorm(3, elementwise_affine=False)
    with pytest.raises(ValueError, match=r"pass \(\.\.\., 3\)"):
        LayerNorm(3)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"pass \(B, 2, length\) or \(2, length\)"):
        Conv1d(2, 3, 3)(torch.zeros(2, 3, 4))


# -- a value and its noise ------------------------------------------------------------------------


def test_head_against_draws() -> None:
    head = GaussianHead(4, 2, weight_std=0.3, **DOUBLE)
    x = Moments(torch.randn(3, 4, **DOUBLE), 0.2 * torch.rand(3, 4, **DOUBLE))
    value, log_var = (part.detach() for part in head.parts(x))
    count = 200_000
    noise = (0.5 * draw(log_var, count)).exp() * torch.randn(count, 3, 2, **DOUBLE)
    assert_monte_carlo(draw(value, count) + noise, head(x).detach())


def test_noise_of_a_head_is_found() -> None:
    """By `respond`, with the part that its own uncertainty adds, and by a pass at the means."""
    head = GaussianHead(4, 2, weight_std=0.3, **DOUBLE)
    x = torch.randn(3, 4, **DOUBLE)
    _, log_var = head.parts(x)
    found, parts = spgru.respond(head, x, sources=True)
    torch.testing.assert_close(parts["noise"], (log_var.mean + log_var.var / 2).exp())
    torch.testing.assert_close(found.var, head(x).var)  # linear: the closed form is exact
    with at_mean(head):
        torch.testing.assert_close(head(x).var, log_var.mean.exp())


def test_head_learns_noise_that_depends_on_the_input() -> None:
    x = torch.linspace(-1, 1, 256)[:, None]
    y = 2 * x + torch.exp(x) * torch.randn_like(x)
    head = GaussianHead(1, 1, weight_std=0.01)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(200):
        loss = -head(x).log_prob(y).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    ratio = head(x).std / torch.exp(x)
    assert 0.7 < ratio.min() < ratio.max() < 1.4
    report = spgru.calibrate(head, x, y, progress=False)
    assert report is not None
