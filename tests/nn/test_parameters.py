"""A layer's parameters are where code written for `torch.nn` expects them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import spgru
from spgru import Moments
from spgru.models.conv_recurrent import ConvGRUCell
from spgru.nn.weight import from_old_layout, is_spread

PAIRS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "linear": (spgru.Linear, nn.Linear, (3, 4)),
    "conv": (spgru.Conv2d, nn.Conv2d, (3, 4, 3)),
    "gru": (spgru.GRU, nn.GRU, (3, 4, 2)),
    "lstm": (spgru.LSTM, nn.LSTM, (3, 4)),
    "rnn": (spgru.RNN, nn.RNN, (3, 4)),
    "gru cell": (spgru.GRUCell, nn.GRUCell, (3, 4)),
    "lstm cell": (spgru.LSTMCell, nn.LSTMCell, (3, 4)),
    "rnn cell": (spgru.RNNCell, nn.RNNCell, (3, 4)),
}


def variances(layer: spgru.nn.Layer) -> dict[str, Tensor]:
    return {name: weight.moments().var.detach() for name, weight in layer.weights().items()}


@pytest.mark.parametrize("name", PAIRS)
def test_means_come_first_with_the_names_shapes_and_values_of_torch(name: str) -> None:
    ours, theirs, sizes = PAIRS[name]
    torch.manual_seed(0)
    layer = ours(*sizes)
    torch.manual_seed(0)
    plain = dict(theirs(*sizes).named_parameters())
    assert [key for key, _ in layer.named_parameters()][: len(plain)] == list(plain)
    for key, value in plain.items():
        assert isinstance(getattr(layer, key), nn.Parameter)
        assert getattr(layer, key).shape == value.shape
    others = [key for key, _ in layer.named_parameters() if key not in plain]
    assert len(others) == len(plain)
    assert not any("weight" in key or "bias" in key for key in others)


@pytest.mark.parametrize("name", PAIRS)
def test_a_state_dict_of_torch_is_taken_as_means(name: str) -> None:
    ours, theirs, sizes = PAIRS[name]
    layer, plain = ours(*sizes), theirs(*sizes)
    before = variances(layer)
    result = layer.load_state_dict(plain.state_dict(), strict=False)
    assert result.unexpected_keys == []
    for key, value in plain.named_parameters():
        assert torch.equal(getattr(layer, key), value)
    assert all(torch.equal(var, before[key]) for key, var in variances(layer).items())


def test_the_usual_initialisers_leave_variances_alone() -> None:
    model = nn.Sequential(spgru.Linear(3, 8, weight_std=0.05), spgru.Linear(8, 2, weight_std=0.05))
    for name, parameter in model.named_parameters():
        if "weight" in name:
            nn.init.xavier_uniform_(parameter)
        elif "bias" in name:
            nn.init.zeros_(parameter)
    for layer in model:
        for var in variances(layer).values():
            torch.testing.assert_close(var, torch.full_like(var, 0.05**2))
    gru = spgru.GRU(3, 4)
    nn.init.orthogonal_(gru.weight_hh_l0[:4])
    torch.testing.assert_close(gru.weight_hh_l0[:4] @ gru.weight_hh_l0[:4].T, torch.eye(4))


def test_an_initialiser_for_all_matrices_changes_variances_by_a_bounded_factor() -> None:
    layer = spgru.GRU(30, 40, weight_std=0.01)
    for parameter in layer.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    limit = math.sqrt(6 / (30 + 3 * 40))
    for var in variances(layer).values():
        assert (var / 1e-4).log().abs().max() <= limit + 1e-5


def test_plain_weight_decay_pulls_spreads_to_their_start_and_no_further() -> None:
    layer = spgru.GRU(3, 4, weight_std=0.05)
    with torch.no_grad():
        layer.spread_w_hh_l0.fill_(3.0)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=1.0)
    for _ in range(200):
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
    for var in variances(layer).values():
        torch.testing.assert_close(var, torch.full_like(var, 0.05**2))


def test_forget_gates_can_be_opened_as_usual() -> None:
    lstm = spgru.LSTM(3, 4)
    lstm.bias_ih_l0.data[4:8] = 1
    assert torch.equal(lstm.weight_moments("bias_ih_l0").mean[4:8], torch.ones(4))


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("name", ["gru", "linear"])
def test_parametrized_weights_are_used_and_learn(name: str) -> None:
    ours, _, sizes = PAIRS[name]
    layer, x = ours(*sizes), torch.randn(5, 2, 3)
    key = "weight_ih_l0" if name == "gru" else "weight"
    doubled = copy.deepcopy(layer)
    with torch.no_grad():
        getattr(doubled, key).mul_(2)
    parametrize.register_parametrization(layer, key, Doubled())

    def out(module: Any) -> Moments:
        result = module(x)
        return result[0] if isinstance(result, tuple) else result

    torch.testing.assert_close(out(layer).mean, out(doubled).mean)
    torch.testing.assert_close(out(layer).var, out(doubled).var)
    (out(layer).mean + out(layer).var).sum().backward()
    assert layer.parametrizations[key].original.grad.any()
    with spgru.frozen(layer), torch.no_grad():
        before = out(layer).mean
        layer.parametrizations[key].original.mul_(3)
        assert not torch.equal(out(layer).mean, before)


def test_weight_norm_and_pruning() -> None:
    gru, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    want = gru(x)[0]
    parametrizations.weight_norm(gru, "weight_hh_l0")
    torch.testing.assert_close(gru(x)[0].var, want.var)
    prune.l1_unstructured(gru, "weight_ih_l0", 0.5)
    assert (gru.weight_moments("weight_ih_l0").mean == 0).sum() == gru.weight_ih_l0.numel() // 2
    gru(x)[0].mean.sum().backward()
    assert gru.weight_ih_l0_orig.grad.any()


def test_moving_averages() -> None:
    model, other = spgru.GRU(3, 4), spgru.GRU(3, 4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    average.update_parameters(model)
    average.update_parameters(other)
    mean = 0.75 * model.weight_hh_l0 + 0.25 * other.weight_hh_l0
    torch.testing.assert_close(average.module.weight_hh_l0, mean)
    x = torch.randn(5, 2, 3)
    again = copy.deepcopy(model)
    with torch.no_grad():
        for p, q in zip(again.parameters(), average.module.parameters(), strict=True):
            p.copy_(q)
    assert torch.equal(average(x)[0].var, again(x)[0].var)


# -- variances ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "std", [0.3, torch.tensor(0.3), {"weight": torch.full((4, 3), 0.3), "bias": 0.3}], ids=str
)
def test_weight_std_may_be_a_number_a_tensor_or_one_for_each_weight(std: Any) -> None:
    layer = spgru.Linear(3, 4, weight_std=std)
    for var in variances(layer).values():
        torch.testing.assert_close(var, torch.full_like(var, 0.09))
    assert all(not p.any() for name, p in layer.named_parameters() if is_spread(name))


def test_a_tensor_of_standard_deviations_is_kept_by_state_dict_and_reset() -> None:
    std = {"weight": torch.rand(4, 3) + 0.1}
    layer = spgru.Linear(3, 4, weight_std=std)
    torch.testing.assert_close(variances(layer)["weight"], std["weight"] ** 2)
    other = spgru.Linear(3, 4, weight_std=0.7)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(variances(other)["weight"], std["weight"] ** 2)
    with torch.no_grad():
        layer.spread_w.add_(1.0)
    layer.reset_parameters()
    torch.testing.assert_close(variances(layer)["weight"], std["weight"] ** 2)
    converted = spgru.Linear.from_torch(nn.Linear(3, 4), weight_std=std)
    torch.testing.assert_close(variances(converted)["weight"], std["weight"] ** 2)


@pytest.mark.parametrize("start", [0.0, 0.2])
def test_any_moments_can_be_set_whatever_the_start(start: float) -> None:
    layer = spgru.Linear(3, 4, weight_std=start)
    moments = Moments(torch.randn(4, 3), torch.rand(4, 3))
    moments.var[0] = 0
    layer.set_weight_("weight", moments)
    torch.testing.assert_close(layer.weight_moments("weight").mean, moments.mean)
    torch.testing.assert_close(layer.weight_moments("weight").var, moments.var)


def test_a_model_made_on_meta_and_emptied_is_reset_to_its_variances() -> None:
    layer = spgru.GRU(3, 4, weight_std=0.05, device="meta")
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    for var in variances(layer).values():
        torch.testing.assert_close(var, torch.full_like(var, 0.05**2))
    assert layer(torch.randn(5, 2, 3))[0].var.isfinite().all()


@pytest.mark.parametrize(
    ("std", "message"),
    [
        (math.inf, "must be finite"),
        (-1.0, "got -1"),
        (torch.tensor([0.1, -0.1, 0.1]), "not negative"),
        (torch.ones(5), r"has shape \(5,\) but weight has \(4, 3\)"),
        ({"wieght": 0.1}, "names wieght, which the layer does not have; it has weight, bias"),
        ("small", "got str"),
    ],
    ids=str,
)
def test_unusable_standard_deviations_are_refused(std: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        spgru.Linear(3, 4, weight_std=std)


# -- state dicts of version 0.1 -------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.0, 0.3])
@pytest.mark.parametrize(
    "make", [lambda **o: spgru.GRU(3, 4, 2, **o), lambda **o: ConvGRUCell(3, 4, 3, **o)]
)
def test_state_dicts_of_the_old_layout_are_read(make: Any, start: float) -> None:
    source = make(weight_std=0.2)
    with torch.no_grad():
        for spread in source.spread_parameters():
            spread.normal_()
    old = {}
    for name, weight in source.weights().items():
        moments = weight.moments()
        old[f"rnn.{name}.mean"] = moments.mean.detach()
        old[f"rnn.{name}.log_var"] = moments.var.detach().log()
    holder = nn.ModuleDict({"rnn": make(weight_std=start)})
    holder.load_state_dict(old)
    for name, weight in source.weights().items():
        got = holder["rnn"].weight_moments(name)
        assert torch.equal(got.mean, weight.moments().mean)
        torch.testing.assert_close(got.var, weight.moments().var)
    model = nn.ModuleDict({"rnn": make(weight_std=start)})
    converted = from_old_layout(old, model.state_dict())
    assert set(converted) == set(model.state_dict())
    assert all(value.isfinite().all() for value in converted.values())


# -- weights of variance 0 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: spgru.Linear(3, 2, weight_std=0.0),
        lambda: spgru.Linear.from_torch(nn.Linear(3, 2), weight_std=0.0),
        lambda: spgru.Linear(3, 2, weight_std={"weight": torch.zeros(2, 3), "bias": 0.0}),
    ],
)
def test_certain_weights_stay_certain_under_decay_averages_and_initialisers(make: Any) -> None:
    layer, x = make(), torch.randn(4, 3)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        y = layer(x)
        (y.mean.square() + y.var).sum().backward()
        optimiser.step()
    average = AveragedModel(layer, use_buffers=True)
    for _ in range(2):
        average.update_parameters(layer)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    for module in (layer, average):
        assert not module(x).var.any()
    assert sum(p.pow(2).sum() for p in layer.parameters()).isfinite()


def test_setting_a_weight_reaches_through_parametrizations_and_pruning() -> None:
    new = Moments(torch.randn(4, 4), torch.full((4, 4), 0.01))
    orthogonal, _ = torch.linalg.qr(torch.randn(4, 4))
    layer = spgru.Linear(4, 4)
    parametrizations.orthogonal(layer, "weight")
    layer.set_weight_("weight", Moments(orthogonal, new.var))
    torch.testing.assert_close(layer.weight_moments("weight").mean, orthogonal)
    pruned = spgru.Linear(4, 4)
    prune.l1_unstructured(pruned, "weight", 0.5)
    pruned.set_weight_("weight", new)
    pruned(torch.randn(2, 4))
    torch.testing.assert_close(pruned.weight, new.mean * pruned.weight_mask)


def test_layers_are_made_from_weights_without_values() -> None:
    layer = spgru.GRU.from_torch(nn.GRU(3, 4, device="meta"), weight_std=0.1)
    assert layer.weight_hh_l0.device.type == "meta"
    with FakeTensorMode():
        fake = spgru.Linear(3, 4, weight_std=torch.full((), 0.1))
        assert fake(torch.randn(2, 3)).var.shape == (2, 4)


def test_pruned_weights_have_no_variance() -> None:
    gru, x = spgru.GRU(3, 4, bias=False), torch.randn(5, 2, 3)
    before = gru.weight_moments("weight_ih_l0")
    prune.l1_unstructured(gru, "weight_ih_l0", 0.5)
    mask = gru.weight_ih_l0_mask
    assert 0 < mask.sum() < mask.numel()
    moments = gru.weight_moments("weight_ih_l0")
    torch.testing.assert_close(moments.var, before.var * mask)
    assert (gru(x)[0].var > 0).any()
    # What is left out of the network is left out of its distance from the prior.
    prior, q = spgru.Prior("gaussian", std=1.0), before[mask.bool()]
    rest = gru.weight_moments("weight_hh_l0")
    want = [gru.family.kl(part, prior.moments(n, part)).sum() for part, n in ((q, 3), (rest, 4))]
    divergence = spgru.kl_divergence(gru, prior)
    torch.testing.assert_close(divergence, sum(want))
    (divergence + gru(x)[0].var.sum()).backward()
    assert all(p.grad.isfinite().all() for p in gru.parameters())
    assert not gru.spread_w_ih_l0.grad[mask == 0].any()
    for name in ("weight_ih_l0", "weight_hh_l0"):
        prune.custom_from_mask(gru, name, torch.zeros_like(getattr(gru, name)))
    assert not gru(x)[0].var.any()


def test_variance_of_pruned_weights_after_the_mask_is_removed() -> None:
    layer = spgru.Linear(4, 3)
    before = layer.weight_moments("weight")
    prune.random_unstructured(layer, "weight", 0.5)
    mask = layer.weight_mask
    prune.remove(layer, "weight")
    torch.testing.assert_close(layer.weight_moments("weight").var, before.var)
    prune.custom_from_mask(layer, "weight", mask)
    layer.set_weight_("weight", layer.weight_moments("weight"))
    prune.remove(layer, "weight")
    after = layer.weight_moments("weight")
    torch.testing.assert_close(after.var, before.var * mask)
    torch.testing.assert_close(after.mean, before.mean * mask)
