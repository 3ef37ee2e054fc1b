"""A layer on a GPU replays training calls that repeat, and learns as if it did not."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import spgru
from spgru import Moments
from spgru.nn.training_replay import _CALLS_BEFORE, _recordings

pytestmark = pytest.mark.gpu

LAYERS: dict[str, Callable[[], Any]] = {
    "gru": lambda: spgru.GRU(8, 32, device="cuda"),
    "gru of two layers": lambda: spgru.GRU(8, 16, 2, batch_first=True, device="cuda"),
    "lstm in both directions": lambda: spgru.LSTM(8, 16, bidirectional=True, device="cuda"),
    "rnn": lambda: spgru.RNN(8, 16, bias=False, device="cuda"),
    "gru by the reference": lambda: spgru.GRU(8, 16, rule="paper", device="cuda"),
    "gru, gamma": lambda: spgru.GRU(8, 16, family="gamma", device="cuda"),
}


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    yield
    spgru.set_cuda_graphs(True)


def graphs(layer: Any) -> int:
    return len(_recordings.get(layer, ()))


def loss_of(result: Any) -> Tensor:
    """That no symmetry makes 0, of the output and the final state."""
    output, final = result
    finals = final if isinstance(final, tuple) else (final,)
    parts = [part for moments in (output, *finals) for part in moments]
    return sum((part * part.detach().cos()).sum() for part in parts)  # type: ignore[return-value]


def random_input(requires_grad: bool = False, uncertain: bool = True) -> Any:
    x = torch.rand(6, 4, 8, device="cuda", requires_grad=requires_grad)
    return Moments(x, torch.rand(6, 4, 8, device="cuda")) if uncertain else x


def warm_up(layer: Any, make: Callable[[], Any] = random_input) -> None:
    """As often as it takes to have a graph, or not to get one."""
    for _ in range(_CALLS_BEFORE + 2):
        loss_of(layer(make())).backward()
    layer.zero_grad()


def gradients(layer: Any, x: Any, *options: Any) -> list[Tensor]:
    layer.zero_grad()
    loss_of(layer(x, *options)).backward()
    return [parameter.grad.clone() for parameter in layer.parameters()]


def check_gradients(layer: Any, x: Any, *options: Any) -> None:
    """Those of the layer's own code."""
    found = gradients(layer, x, *options)
    spgru.set_cuda_graphs(False)
    expected = gradients(layer, x, *options)
    spgru.set_cuda_graphs(True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("uncertain", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_training_is_that_of_the_layer(name: str, uncertain: bool) -> None:
    layer = LAYERS[name]()
    plain = copy.deepcopy(layer)
    optimizers = [torch.optim.SGD(module.parameters(), 1e-3) for module in (layer, plain)]
    for _ in range(_CALLS_BEFORE + 6):
        x = random_input(uncertain=uncertain)
        losses = []
        for module, optimizer in zip((layer, plain), optimizers, strict=True):
            spgru.set_cuda_graphs(module is layer)
            optimizer.zero_grad()
            losses.append(loss_of(module(x)))
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    assert graphs(layer) == 1
    assert graphs(plain) == 0
    for found, expected in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_inputs_and_states_get_gradients() -> None:
    layer = spgru.GRU(8, 16, device="cuda")

    def inputs() -> tuple[Any, Any]:
        hx = Moments(torch.randn(1, 4, 16, device="cuda"), torch.rand(1, 4, 16, device="cuda"))
        x = random_input(requires_grad=True)
        for part in (x.var, hx.mean, hx.var):
            part.requires_grad_()
        return x, hx

    for k in range(_CALLS_BEFORE + 3):
        x, hx = inputs()
        leaves = [x.mean, x.var, hx.mean, hx.var]
        found = torch.autograd.grad(loss_of(layer(x, hx)), leaves)
        spgru.set_cuda_graphs(False)
        expected = torch.autograd.grad(loss_of(layer(x, hx)), leaves)
        spgru.set_cuda_graphs(True)
        assert graphs(layer) == (k >= _CALLS_BEFORE)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_part_of_the_results_can_be_used() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    x = random_input()
    found = torch.autograd.grad(layer(x)[0].mean[-1].sum(), layer.weight_ih_l0)
    spgru.set_cuda_graphs(False)
    expected = torch.autograd.grad(layer(x)[0].mean[-1].sum(), layer.weight_ih_l0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_several_forward_passes_before_their_backward_passes() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    xs = [random_input() for _ in range(3)]
    losses = [loss_of(layer(x)) for x in xs]
    for loss, x in reversed(list(zip(losses, xs, strict=True))):
        found = torch.autograd.grad(loss, layer.weight_hh_l0)
        spgru.set_cuda_graphs(False)
        expected = torch.autograd.grad(loss_of(layer(x)), layer.weight_hh_l0)
        spgru.set_cuda_graphs(True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_retained_graph_can_be_used_twice_with_another_call_between() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    loss = loss_of(layer(random_input()))
    first = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(layer.parameters()), retain_graph=True)
    loss_of(layer(random_input())).backward()
    third = torch.autograd.grad(loss, list(layer.parameters()))
    for found in (second, third):
        torch.testing.assert_close(found, first, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_gradients_add_up_over_calls() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    xs = [random_input() for _ in range(3)]
    for x in xs:
        loss_of(layer(x)).backward()
    found = layer.weight_ih_l0.grad
    layer.zero_grad()
    spgru.set_cuda_graphs(False)
    for x in xs:
        loss_of(layer(x)).backward()
    torch.testing.assert_close(found, layer.weight_ih_l0.grad, rtol=1e-4, atol=1e-5)


def test_results_that_are_kept_do_not_change() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    result = layer(random_input())[0].mean
    before = result.clone()
    result.sum().backward()
    warm_up(layer)
    assert torch.equal(result, before)


def test_second_derivatives_are_those_of_the_layer() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer, lambda: random_input(requires_grad=True))
    x = random_input(requires_grad=True)
    found = []
    for enabled in (True, False):
        spgru.set_cuda_graphs(enabled)
        (gradient,) = torch.autograd.grad(loss_of(layer(x)), x.mean, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), layer.weight_ih_l0)[0])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_weights_that_move_are_recorded_anew() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    layer.weight_ih_l0.data = torch.randn_like(layer.weight_ih_l0)
    check_gradients(layer, random_input())
    warm_up(layer)
    check_gradients(layer, random_input())
    assert graphs(layer) == 1


def test_frozen_parameters_get_no_gradient() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    layer.weight_hh_l0.requires_grad_(False)
    warm_up(layer)
    loss_of(layer(random_input())).backward()
    assert layer.weight_hh_l0.grad is None
    assert layer.weight_ih_l0.grad is not None
    layer.requires_grad_(False)
    assert not layer(random_input())[0].mean.requires_grad


def test_what_changes_a_call_keeps_it_from_being_recorded() -> None:
    def hooked() -> Any:
        layer = spgru.GRU(8, 16, device="cuda")
        layer.weight_ih_l0.register_hook(lambda gradient: 2 * gradient)
        return layer

    def pruned() -> Any:
        layer = spgru.GRU(8, 16, device="cuda")
        return prune.random_unstructured(layer, "weight_hh_l0", 0.5)

    def normed() -> Any:
        layer = spgru.GRU(8, 16, device="cuda")
        return parametrizations.weight_norm(layer, "weight_hh_l0")

    for make in (hooked, pruned, normed):
        layer = make()
        warm_up(layer)
        assert graphs(layer) == 0
        check_gradients(layer, random_input())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_that_of_the_layer(reentrant: bool) -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer, lambda: random_input(requires_grad=True, uncertain=False))

    def mean(x: Tensor) -> Tensor:
        return layer(x)[0].mean

    x = random_input(requires_grad=True, uncertain=False)
    expected = torch.autograd.grad(mean(x).square().sum(), layer.weight_ih_l0)[0]
    checkpoint(mean, x, use_reentrant=reentrant).square().sum().backward()
    torch.testing.assert_close(layer.weight_ih_l0.grad, expected, rtol=1e-4, atol=1e-5)


def test_batched_gradients_are_those_of_the_layer() -> None:
    layer, x = spgru.GRU(8, 16, device="cuda"), random_input()
    warm_up(layer)
    rows = torch.eye(16, device="cuda")
    output = layer(x)[0].mean[-1, 0]
    (found,) = torch.autograd.grad(output, layer.weight_ih_l0, rows, is_grads_batched=True)
    spgru.set_cuda_graphs(False)
    output = layer(x)[0].mean[-1, 0]
    for row, gradient in zip(rows, found, strict=True):
        (one,) = torch.autograd.grad(output, layer.weight_ih_l0, row, retain_graph=True)
        torch.testing.assert_close(gradient, one, rtol=1e-4, atol=1e-5)


def test_several_shapes_take_turns() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    for _ in range(_CALLS_BEFORE + 2):
        for steps in (5, 7):
            loss_of(layer(torch.randn(steps, 3, 8, device="cuda"))).backward()
    assert graphs(layer) == 2
    for steps in (5, 7, 6):
        check_gradients(layer, torch.randn(steps, 3, 8, device="cuda"))


def test_graphs_go_with_the_layer() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    warm_up(layer)
    assert graphs(layer) == 1
    assert graphs(copy.deepcopy(layer)) == 0
    dead = weakref.ref(layer)
    del layer
    gc.collect()
    assert dead() is None


# It warms up on a stream of its own.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_a_training_step_of_ours_is_a_graph_of_torch() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    plain = copy.deepcopy(layer)
    x = torch.randn(5, 3, 8, device="cuda")
    graphed = torch.cuda.make_graphed_callables(layer, (x,))  # type: ignore[no-untyped-call]
    for _ in range(3):
        x = torch.randn_like(x)
        for module in (plain, graphed):
            module.zero_grad()  # torch's graph writes its gradients to the same tensors again
            loss_of(module(x)).backward()
        for found, expected in zip(layer.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
