"""What counts as a source of a response, how often, and what is refused because it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import spgru
from spgru import Moments
from spgru.nn.contexts import sampling

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _AddsFourTimes(nn.Module):
    """Noise by the same two tensors at each of four uses."""

    def __init__(self, learns: bool) -> None:
        super().__init__()
        self.linear = spgru.Linear(2, 1, weight_std=0.0, dtype=DOUBLE)
        self.shift = nn.Parameter(torch.zeros(1, 1, dtype=DOUBLE), requires_grad=learns)

    def forward(self, x: Tensor) -> Moments:
        y = self.linear(x)
        var = torch.ones_like(self.shift)
        for _ in range(4):
            y = y + Moments(self.shift, var)
        return y


@pytest.mark.parametrize("learns", [True, False])
def test_noise_made_several_times_of_the_same_tensors_counts_once_each(learns: bool) -> None:
    y = spgru.respond(_AddsFourTimes(learns), torch.randn(3, 2, dtype=DOUBLE))
    torch.testing.assert_close(y.var, torch.full_like(y.var, 4.0))


def test_noise_of_a_learned_mean_is_followed_from_each_of_its_uses_alone() -> None:
    layer = spgru.Linear(2, 1, weight_std=0.0)
    network = nn.Sequential(nn.Linear(2, 1), nn.Tanh())

    def forward(x: Tensor) -> Moments:
        mean, y = network(x), layer(x)
        for _ in range(3):
            y = 0.5 * y + Moments(mean, torch.full_like(mean, 0.1))
        return y

    y = spgru.respond(layer, torch.randn(4, 2), function=forward)
    expected = 0.1 * (1 + 0.25 + 0.0625)
    torch.testing.assert_close(y.var, torch.full_like(y.var, expected))


def test_noise_added_to_packed_moments_counts() -> None:
    gru = spgru.GRU(2, 3, weight_std=0.01)
    packed: Any = pack_padded_sequence(torch.randn(4, 2, 2), torch.tensor([4, 2]))

    def forward(packed: Any) -> Moments:
        y: Any = gru(packed)[0]
        return Moments(y.mean, y.var._replace(data=y.var.data + 1.0))

    with_noise = spgru.respond(gru, packed, function=forward).var.data
    without = spgru.respond(gru, packed)[0].var.data
    torch.testing.assert_close(with_noise, without + 1)


def test_the_same_moments_in_two_arguments_are_one_source() -> None:
    layer = spgru.Linear(3, 1, bias=False, weight_std=0.0)
    x = Moments(torch.randn(2, 3), torch.rand(2, 3))
    y, parts = spgru.respond(layer, x, x, function=lambda a, b: layer(a + b), sources=True)
    torch.testing.assert_close(y.var, layer(x + x).var)
    assert "input" in parts


def test_different_moments_of_the_same_tensors_are_independent() -> None:
    lstm, x = spgru.LSTM(2, 3, weight_std=0.0), torch.randn(5, 1, 2)
    zeros, var = torch.zeros(1, 1, 3), torch.full((1, 1, 3), 0.3)
    shared = Moments(zeros, var), Moments(zeros, var)
    own = Moments(zeros, var.clone()), Moments(zeros.clone(), var)
    found, expected = (spgru.respond(lstm, x, state)[0].var for state in (shared, own))
    assert torch.equal(found, expected)


def test_an_input_changed_in_place_is_the_same_in_every_pass() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2)
    expected = spgru.respond(layer, 2 * x)
    found = spgru.respond(layer, x, function=lambda x: layer(x.mul_(2)))
    assert torch.equal(found.var, expected.var)
    assert torch.equal(found.mean, expected.mean)


def test_what_is_detached_and_leads_nowhere_changes_nothing() -> None:
    gru, head, x = spgru.GRU(2, 3), spgru.Linear(3, 1), torch.randn(3, 4, 2)
    module, kept = nn.ModuleList([gru, head]), []

    def forward(x: Tensor) -> Moments:
        y = gru(x)[0]
        kept.append(y.detach())
        with torch.no_grad():
            kept.append(y * 1.0)
        return head(y)

    expected = spgru.respond(module, x, function=lambda x: head(gru(x)[0])).var
    assert torch.equal(spgru.respond(module, x, function=forward).var, expected)


def test_predictions_may_be_written_into_a_buffer_and_read_back() -> None:
    cell, head = spgru.GRUCell(1, 3), spgru.Linear(3, 1)
    x = torch.randn(2, 1)

    def forward(x: Tensor, by_buffer: bool) -> Moments:
        mean, var = torch.zeros(2, 4, 1), torch.zeros(2, 4, 1)
        y: Any = x
        h, outputs = None, []
        for k in range(4):
            h = cell(y, h)
            y = head(h)
            outputs.append(y)
            if by_buffer:
                mean[:, k], var[:, k] = y.mean, y.var
                y = Moments(mean[:, k], var[:, k])
        return spgru.stack(outputs, 1)

    module = nn.ModuleList([cell, head])
    found, expected = (
        spgru.respond(module, x, function=lambda x, way=way: forward(x, way)).var
        for way in (True, False)
    )
    torch.testing.assert_close(found, expected)


def test_layers_outside_whose_means_alone_are_used_are_let_be() -> None:
    encoder, layer, x = spgru.GRU(2, 3), spgru.Linear(3, 1), torch.randn(4, 2, 2)

    def forward(x: Tensor) -> Moments:
        with torch.no_grad():
            features = encoder(x)[0].mean
        return layer(features)

    expected = spgru.respond(layer, encoder(x)[0].mean.detach()).var
    torch.testing.assert_close(spgru.respond(layer, x, function=forward).var, expected)


def test_numbers_of_numpy_and_scalars_are_taken() -> None:
    gru, x = spgru.GRU(2, 3), torch.randn(4, 2, 2)
    expected = spgru.respond(gru, x, gain=2.0)[0].var
    for options in (
        {"gain": torch.tensor(2.0)},
        {"gain": np.float32(2), "memory": np.int64(2**20), "batch_dim": np.int64(1)},
    ):
        torch.testing.assert_close(spgru.respond(gru, x, **options)[0].var, expected)


def test_masks_of_dropout_are_the_same_in_every_pass() -> None:
    layer, dropout = spgru.Linear(6, 2, weight_std=0.1), nn.Dropout()
    x = torch.randn(5, 6)
    torch.manual_seed(3)
    y, parts = spgru.respond(
        layer, x, function=lambda x: layer(dropout(x)), gain=1.5, sources=True
    )  # fmt: skip
    assert not parts["mean"].any()
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.testing.assert_close(y.mean, layer(dropout(x)).mean)
    assert after == torch.rand(1)  # as after one pass


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_a_large_sequence_that_reaches_small_ones_weakly_is_noticed(scale: float) -> None:
    layer = spgru.Linear(3, 1, bias=False, weight_std=0.1)
    x, sizes = torch.randn(4, 3), torch.tensor([[scale], [1.0], [1.0], [1.0]])

    def forward(x: Tensor) -> Moments:
        y = layer(x) * sizes
        return y + 1e-3 * torch.sum(y, 0, keepdim=True)

    scaled = x * sizes
    expected = 0.01 * (scaled + 1e-3 * scaled.sum(0)).square().sum(1)
    found = spgru.respond(layer, x, function=forward).var[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("features", "within"), [(4, 0.06), (32, 0.04)])
def test_layer_normalisation_has_its_closed_variance(features: int, within: float) -> None:
    norm, layer = nn.LayerNorm(features), spgru.Linear(1, 1)
    x = Moments(torch.randn(50, features), torch.full((50, features), 0.3))
    response = spgru.respond(layer, x, function=norm).var.sum()
    assert abs(response / norm(x).var.sum() - 1) < within


def _pruned() -> spgru.Linear:
    return prune.l1_unstructured(spgru.Linear(3, 2, weight_std=0.05), "weight", 2)


def _normed() -> Any:
    with pytest.warns(FutureWarning):
        return weight_norm(spgru.Linear(3, 2, weight_std=0.05))


@pytest.mark.parametrize("make", [_pruned, _normed])
def test_weights_that_hooks_compute_are_those_of_now(make: Callable[[], Any]) -> None:
    layer, x = make(), torch.randn(4, 3)
    layer(x)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1.0)
    found = spgru.respond(layer, x).mean
    torch.testing.assert_close(found, layer(x).mean)


def test_drawn_weights_follow_a_change_of_a_pruned_layer() -> None:
    layer, x = _pruned(), torch.randn(4, 3)
    with torch.no_grad():
        layer.weight_orig.add_(1.0)
    drawn = []
    for _ in range(2):
        with sampling(layer, torch.Generator().manual_seed(0)):
            drawn.append(layer(x).mean)
    assert torch.equal(*drawn)


def test_indices_of_32_bits_are_followed() -> None:
    embedding, index = spgru.Embedding(5, 3), torch.tensor([[0, 4], [2, 2]])
    expected = spgru.respond(embedding, index).var
    torch.testing.assert_close(spgru.respond(embedding, index.int()).var, expected)


def test_tensors_beside_moments_keep_no_graph() -> None:
    gru = spgru.GRU(2, 3)
    y, plain = spgru.respond(
        gru, torch.randn(4, 2, 2), function=lambda x: (gru(x)[0], gru(x)[0].mean)
    )
    assert not plain.requires_grad
    assert not y.mean.requires_grad


def test_a_recurrent_layer_that_no_output_depends_on_has_no_part_in_it() -> None:
    gru, layer, x = spgru.GRU(2, 3), spgru.Linear(2, 1), torch.randn(4, 2, 2)

    def forward(x: Tensor) -> Moments:
        gru(x)
        return layer(x)

    found = spgru.respond(nn.ModuleList([gru, layer]), x, function=forward)
    assert torch.equal(found.var, spgru.respond(layer, x).var)


def test_tensors_made_in_inference_mode_are_taken() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2)
    with torch.inference_mode():
        offset = torch.ones(3, 1)
    found = spgru.respond(layer, x, function=lambda x: Moments(offset, offset) + layer(x))
    torch.testing.assert_close(found.var, spgru.respond(layer, x).var + 1)
    found = spgru.respond(layer, x, function=lambda x: spgru.certain(offset) + layer(x))
    torch.testing.assert_close(found.var, spgru.respond(layer, x).var)


def test_an_input_that_is_empty_alone_is_taken() -> None:
    layer, x, none = spgru.Linear(2, 1), torch.randn(3, 2), torch.zeros(0, 3)
    found = spgru.respond(layer, none, x, function=lambda none, x: layer(x))
    assert torch.equal(found.var, spgru.respond(layer, x).var)


def test_checkpoints_change_nothing() -> None:
    gru, x = spgru.GRU(2, 3), torch.randn(4, 2, 2)

    def forward(x: Tensor) -> Moments:
        y: Any = checkpoint(lambda x: gru(x)[0], x, use_reentrant=False)
        return y

    found = spgru.respond(gru, x, function=forward)
    assert torch.equal(found.var, spgru.respond(gru, x)[0].var)


def test_checkpoints_that_run_without_gradients_are_refused() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        spgru.respond(layer, x, function=lambda x: checkpoint(layer, x, use_reentrant=True))


# -- refused ---------------------------------------------------------------------------------------


def test_captured_moments_are_refused_by_a_cell_and_by_a_matrix() -> None:
    cell, linear = spgru.GRUCell(2, 3), spgru.Linear(3, 3)
    x, h = torch.randn(1, 2), Moments(torch.zeros(1, 3), torch.full((1, 3), 0.3))
    for module, function in (
        (cell, lambda x: cell(x, h)),
        (linear, lambda x: linear(linear(h))),
        (spgru.GRU(2, 3), None),
    ):
        if function is None:
            gru, captured = module, Moments(torch.randn(4, 1, 2), torch.ones(4, 1, 2))
            function = lambda x, gru=gru, captured=captured: gru(captured)[0]  # noqa: E731
        with pytest.raises(RuntimeError, match="pass them as arguments"):
            spgru.respond(module, x, function=function)


@pytest.mark.parametrize("how", ["detach", "no_grad"])
@pytest.mark.parametrize("std", [0.1, 1e-6])
def test_a_variance_without_a_way_back_is_refused(how: str, std: float) -> None:
    first, second = (spgru.Linear(*sizes, weight_std=std) for sizes in ((2, 4), (4, 1)))

    def forward(x: Tensor) -> Moments:
        h = first(x)
        if how == "detach":
            return second(h.detach())
        with torch.no_grad():
            h = torch.tanh(h)
        return second(h)

    with pytest.raises(RuntimeError, match=r"detached, or computed under torch\.no_grad"):
        spgru.respond(nn.ModuleList([first, second]), torch.randn(3, 2), function=forward)


def test_missing_values_in_noise_are_not_taken_for_a_detached_variance() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2)
    var = torch.tensor([[1.0], [torch.nan], [1.0]])
    found = spgru.respond(layer, x, function=lambda x: layer(x) + Moments(var * 0, var)).var
    expected = spgru.respond(layer, x).var + var
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_noise_on_top_of_a_detached_variance_does_not_hide_it() -> None:
    first, second = spgru.Linear(2, 4), spgru.Linear(4, 1)

    def forward(x: Tensor) -> Moments:
        mean, var = first(x).detach()
        return second(Moments(mean, var + 1.0))

    with pytest.raises(RuntimeError, match="mean was detached"):
        spgru.respond(nn.ModuleList([first, second]), torch.randn(3, 2), function=forward)


def test_captured_moments_of_a_learned_mean_are_refused() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2)
    mean = nn.Parameter(torch.zeros(3, 2))
    captured = Moments(mean * 1.0, torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="pass them as arguments"):
        spgru.respond(layer, x, function=lambda x: layer(captured) + layer(x))


def test_a_variance_changed_in_place_is_refused() -> None:
    layer, x = spgru.Linear(2, 1), torch.randn(3, 2)

    def forward(x: Tensor, change: Callable[[Tensor], Any]) -> Moments:
        y = layer(x)
        change(y.var)
        return y

    with pytest.raises(RuntimeError, match="the variance of Moments was changed in place"):
        spgru.respond(layer, x, lambda var: var.add_(1.0), function=forward)
    # What adds nothing to a variance of 0 is no noise.
    found = spgru.respond(layer, x, lambda var: var.clamp_(min=0), function=forward)
    assert torch.equal(found.var, spgru.respond(layer, x).var)


def test_a_mean_changed_in_place_is_refused() -> None:
    gru, head = spgru.GRU(2, 4), spgru.Linear(4, 1)

    def forward(x: Tensor) -> Moments:
        mean, var = head(gru(x)[0][-1])
        mean *= 3
        var *= 9
        return Moments(mean, var)

    with pytest.raises(RuntimeError, match="changed in place"):
        spgru.respond(nn.ModuleList([gru, head]), torch.randn(5, 2, 2), function=forward)


def test_layers_outside_of_the_module_are_refused() -> None:
    gru, head = spgru.GRU(2, 3), spgru.Linear(3, 1)
    with pytest.raises(RuntimeError, match="no part of the module"):
        spgru.respond(gru, torch.randn(4, 2, 2), function=lambda x: head(gru(x)[0]))


def test_one_weight_in_two_places_is_refused() -> None:
    first, second = spgru.Linear(2, 2), spgru.Linear(2, 2)
    second.weight, second.spread_w = first.weight, first.spread_w
    gru = spgru.GRU(3, 3, num_layers=2)
    gru.weight_hh_l1, gru.spread_w_hh_l1 = gru.weight_hh_l0, gru.spread_w_hh_l0
    for module, x in (
        (nn.Sequential(first, second), torch.randn(3, 2)),
        (gru, torch.randn(4, 2, 3)),
    ):
        with pytest.raises(ValueError, match="made of the same Parameters"):
            spgru.respond(module, x)


@pytest.mark.parametrize("shared", ["weight", "spread_w"])
def test_a_mean_or_a_spread_in_two_layers_is_taken(shared: str) -> None:
    first, second = spgru.Linear(2, 2), spgru.Linear(2, 2)
    setattr(second, shared, getattr(first, shared))
    _, parts = spgru.respond(nn.Sequential(first, second), torch.randn(3, 2), sources=True)
    assert {"0.weight", "1.weight"} <= parts.keys()


def test_arguments_of_the_module_with_names_of_ours_are_explained() -> None:
    gru, x = spgru.GRU(2, 3), torch.randn(4, 2, 2)
    for options in ({"memory": x}, {"gain": x}, {"batch_dim": "x"}, {"gain": None}):
        with pytest.raises(TypeError, match=r"must be a number.*function=lambda"):
            spgru.respond(gru, x, **options)
    with pytest.raises(ValueError, match="memory must be a positive"):
        spgru.consistent_gain(gru, x, memory=0)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sequence"):
        spgru.respond(spgru.Linear(3, 2), torch.randn(0, 3))


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_finds_noise_that_a_step_adds_to_a_layer_in_evaluation() -> None:
    gru, x = spgru.GRU(2, 3, weight_std=0.01).eval(), torch.randn(4, 1, 2)

    def step(x_t: Tensor, state: Any) -> tuple[Moments, Any]:
        y, state = gru.step(x_t, state)
        return Moments(y.mean, y.var + 0.1), state

    y, _ = spgru.Stream(gru, function=step)(x)
    assert (y.var > 0.1).all()


def test_a_stream_sees_that_its_module_was_put_into_training() -> None:
    gru = spgru.GRU(2, 8, num_layers=2, dropout=0.5, weight_std=0.001).eval()
    stream, x = spgru.Stream(gru), torch.randn(6, 1, 2)
    certain = stream(x)[0].var.mean()
    gru.train()
    assert stream(x)[0].var.mean() > 10 * certain


def test_a_stream_refuses_states_of_other_directions() -> None:
    gru, x = spgru.GRU(2, 3), torch.randn(4, 5, 2)
    stream = spgru.Stream(gru, seed=0)
    _, state = stream(x)
    with pytest.raises(ValueError, match="other directions"):
        spgru.Stream(gru, seed=1)(x, state)
    stream.learn(x, 2)
    _, learned = stream(x)
    stream.learn(x.flip(0) * 3, 2)
    with pytest.raises(ValueError, match="other directions"):
        stream(x, learned)


def test_a_stream_of_single_readings_keeps_sequences_apart() -> None:
    gru = spgru.GRU(1, 4)

    def step(x_t: Tensor, state: Any) -> tuple[Moments, Any]:
        return gru.step(x_t.unsqueeze(-1), state)

    x = torch.randn(6, 3)
    others = torch.cat([x[:, :1], 5 * torch.randn(6, 2)], 1)
    stream = spgru.Stream(gru, function=step)
    alone, beside = (stream(values)[0].var[:, 0] for values in (x, others))
    torch.testing.assert_close(alone, beside)


def test_a_stream_takes_expanded_states_and_runs_under_autocast() -> None:
    gru, x = spgru.GRU(2, 3), torch.randn(4, 5, 2)
    first = torch.zeros(1, 1, 3)
    stream = spgru.Stream(gru)
    expected = stream(x, first.expand(1, 5, 3).contiguous())[0].var
    torch.testing.assert_close(stream(x, first.expand(1, 5, 3))[0].var, expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(stream(x, first.expand(1, 5, 3))[0].var, expected)


def test_a_stream_names_what_it_cannot_run_along() -> None:
    with pytest.raises(TypeError, match="got dict; run other inputs step by step"):
        spgru.Stream(spgru.GRU(2, 3))({"x": torch.randn(4, 5, 2)})


class _Steps(nn.Module):
    """A stream whose step lets `between` change what passes from one layer to the next."""

    def __init__(self, between: Callable[[Moments], Moments]) -> None:
        super().__init__()
        self.gru, self.head, self.between = spgru.GRU(2, 3), spgru.Linear(3, 1), between

    def step(self, x_t: Tensor, state: Any) -> tuple[Moments, Any]:
        h, state = self.gru.step(x_t, state)
        return self.head(self.between(h)), state


_outside = spgru.Linear(3, 3)
_captured = Moments(torch.zeros(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (lambda h: _outside(h), "no part of the module"),
        (lambda h: _captured, "pass them as arguments"),
        (lambda h: h.detach(), "mean was detached"),
    ],
    ids=["outside", "captured", "detached"],
)
def test_a_stream_refuses_what_respond_refuses(between: Any, message: str) -> None:
    module = _Steps(between)
    with pytest.raises(RuntimeError, match=message):
        spgru.Stream(module).step(torch.randn(2, 2))


def test_a_stream_refuses_a_variance_changed_in_place() -> None:
    gru = spgru.GRU(2, 3)

    def step(x_t: Tensor, state: Any) -> tuple[Moments, Any]:
        y, state = gru.step(x_t, state)
        y.var.add_(1.0)
        return y, state

    with pytest.raises(RuntimeError, match="the variance of Moments was changed in place"):
        spgru.Stream(gru, function=step).step(torch.randn(2, 2))


def test_a_stream_lets_be_what_is_detached_and_leads_nowhere() -> None:
    seen: list[Any] = []

    def look(h: Moments) -> Moments:
        seen.append((h.detach() * 2.0).shape)
        return h

    module, x = _Steps(look), torch.randn(4, 2, 2)
    found = spgru.Stream(module)(x)[0]
    assert set(seen) == {(2, 3)}
    module.between = lambda h: h
    assert torch.equal(found.var, spgru.Stream(module)(x)[0].var)


def test_a_stream_refuses_a_module_without_a_step_at_once() -> None:
    with pytest.raises(TypeError, match="has no method `step`"):
        spgru.Stream(nn.Sequential(spgru.Linear(2, 1)))
