"""A frozen layer on a GPU replays calls that repeat, and answers as if it did not."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import spgru
from spgru.modes import frozen_of
from spgru.nn.contexts import at_mean
from spgru.nn.replay import _CALLS_BEFORE, _MOST

LAYERS: dict[str, Any] = {
    "gru": lambda **options: spgru.GRU(8, 32, **options),
    "gru of two layers": lambda **options: spgru.GRU(8, 16, 2, batch_first=True, **options),
    "lstm in both directions": lambda **options: spgru.LSTM(8, 16, bidirectional=True, **options),
    "rnn": lambda **options: spgru.RNN(8, 16, bias=False, **options),
    "gru by the reference": lambda **options: spgru.GRU(8, 16, rule="paper", **options),
}


def tensors_of(result: Any) -> list[Tensor]:
    output, final = result
    finals = final if isinstance(final, tuple) else (final,)
    return [part for moments in (output, *finals) for part in moments]


def graphs(layer: Any) -> int:
    frozen = frozen_of(layer)
    assert frozen is not None
    return len(frozen.cache.get("recordings", ()))


def test_a_layer_on_a_cpu_is_not_recorded() -> None:
    layer = spgru.GRU(8, 16)
    with torch.no_grad(), spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 2):
            layer(torch.randn(3, 2, 8))
        assert graphs(layer) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("uncertain", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_replayed_results_are_those_of_the_layer(name: str, uncertain: bool) -> None:
    layer = LAYERS[name](device="cuda")

    def inputs() -> Any:
        x = torch.randn(6, 4, 8, device="cuda")
        return spgru.Moments(x, torch.rand_like(x)) if uncertain else x

    pairs, state = [], None
    with torch.no_grad(), spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 4):
            x = inputs()
            result = layer(x, state)
            pairs.append((x, state, result))
            # A state that is given is another kind of call.
            state = result[1] if state is None or len(pairs) % 2 else None
        assert graphs(layer) >= 1
    # After all: results belong to the caller and are not overwritten by later calls.
    with torch.no_grad():
        for x, before, result in pairs:
            for found, expected in zip(
                tensors_of(result), tensors_of(layer(x, before)), strict=True
            ):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_changed_weights_are_noticed() -> None:
    layer, x = spgru.GRU(8, 16, device="cuda"), torch.randn(5, 3, 8, device="cuda")
    with torch.no_grad(), spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 2):
            before = layer(x)[0].mean
        assert graphs(layer) == 1
        layer.weight_hh_l0.mul_(1.5)
        after = layer(x)[0].mean
        assert graphs(layer) == 0
    assert not torch.allclose(before, after, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(after, layer(x)[0].mean)


@pytest.mark.gpu
def test_few_shapes_are_kept() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    with torch.no_grad(), spgru.frozen(layer):
        for steps in range(1, _MOST + 4):
            for _ in range(_CALLS_BEFORE + 1):
                layer(torch.randn(steps, 2, 8, device="cuda"))
        assert graphs(layer) == _MOST


@pytest.mark.gpu
def test_what_must_not_be_recorded_is_not() -> None:
    layer, x = spgru.GRU(8, 16, device="cuda"), torch.randn(5, 3, 8, device="cuda")
    with spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 2):
            layer(x.clone().requires_grad_())[0].mean.sum().backward()
        with torch.no_grad(), at_mean(layer):
            for _ in range(_CALLS_BEFORE + 2):
                assert bool((layer(x)[0].var == 0).all())
        with torch.no_grad():
            for _ in range(_CALLS_BEFORE + 2):
                spgru.trace(layer, x)
        assert graphs(layer) == 0


@pytest.mark.gpu
def test_inference_mode_and_autocast_have_graphs_of_their_own() -> None:
    layer, x = spgru.GRU(8, 16, device="cuda"), torch.randn(5, 3, 8, device="cuda")
    with spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 2):
            with torch.no_grad():
                plain = layer(x)[0].mean
            with torch.inference_mode():
                inferred = layer(x)[0].mean
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                low = layer(x)[0].mean
        assert graphs(layer) == 3
    torch.testing.assert_close(plain, inferred.clone())
    torch.testing.assert_close(plain, low, rtol=0, atol=2e-2)
    assert not torch.equal(plain, low)


@pytest.mark.gpu
def test_threads_that_share_a_block_get_their_own_results() -> None:
    layer = spgru.GRU(8, 16, device="cuda")
    wrong: list[float] = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(5, 3, 8, device="cuda", generator=generator)
                found = layer(x)[0].mean
                wrong.append((found - reference(x)[0].mean).abs().max().item())

    reference = spgru.GRU(8, 16, device="cuda")
    reference.load_state_dict(layer.state_dict())
    with spgru.frozen(layer):
        contexts = [contextvars.copy_context() for _ in range(4)]
        threads = [
            threading.Thread(target=context.run, args=(work, seed))
            for seed, context in enumerate(contexts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert graphs(layer) == 1
    assert len(wrong) == 120
    assert max(wrong) < 1e-5


@pytest.mark.gpu
def test_a_graph_of_the_user_can_hold_a_layer_that_is_replayed() -> None:
    layer, x = spgru.GRU(8, 16, device="cuda"), torch.randn(5, 3, 8, device="cuda")
    with torch.no_grad(), spgru.frozen(layer):
        for _ in range(_CALLS_BEFORE + 2):
            expected = layer(x)[0].mean
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x)[0].mean
        graph.replay()
    torch.testing.assert_close(found, expected)
