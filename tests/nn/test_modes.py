"""Modes belong to the block that enters them: other threads do not see them, and blocks nest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils import prune, spectral_norm

import spgru
from spgru import modes
from spgru.nn.contexts import at_mean, frozen, recording, sampling


def draw(layer: torch.nn.Module) -> Any:
    return sampling(layer, torch.Generator().manual_seed(0))


BLOCKS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "sampling": draw,
    "every step": lambda layer: sampling(layer, torch.Generator(), every_step=True),
    "at mean": at_mean,
    "recording": recording,
    "frozen": frozen,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_other_threads_run_as_usual(block: Callable[[torch.nn.Module], Any]) -> None:
    layer, x = spgru.GRU(3, 8), torch.randn(5, 2, 3)
    with torch.no_grad():
        expected = layer(x)[0]
    entered, done = threading.Event(), threading.Event()

    def inside() -> None:
        with block(layer), torch.no_grad():
            entered.set()
            while not done.is_set():
                layer(x)

    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait()
    try:
        wrong = 0
        for _ in range(50):
            with torch.no_grad():
                got = layer(x)[0]
            same = torch.equal(got.mean, expected.mean) and torch.equal(got.var, expected.var)
            wrong += not same
            wrong += bool(modes.records_of(layer)) or modes.frozen_of(layer) is not None
    finally:
        done.set()
        thread.join()
    assert wrong == 0


def test_asyncio_tasks_have_modes_of_their_own() -> None:
    layer, x = spgru.Linear(3, 4), torch.randn(2, 3)

    async def on_means() -> bool:
        with at_mean(layer):
            await asyncio.sleep(0.01)
            return bool(layer(x).var.any())

    async def as_usual() -> bool:
        await asyncio.sleep(0.005)
        return bool(layer(x).var.any())

    async def both() -> list[bool]:
        return await asyncio.gather(on_means(), as_usual())

    assert asyncio.run(both()) == [False, True]


def test_an_inner_block_ends_without_ending_the_outer_one() -> None:
    layer, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    with draw(layer):
        drawn = layer(x)[0].mean
        with at_mean(layer):
            mean = layer(x)[0].mean
            with sampling(layer, torch.Generator().manual_seed(1)):
                other = layer(x)[0].mean
            assert torch.equal(layer(x)[0].mean, mean)
        assert torch.equal(layer(x)[0].mean, drawn)
    assert not torch.equal(drawn, mean)
    assert not torch.equal(drawn, other)
    assert layer(x)[0].var.min() > 0


def test_a_block_for_a_part_leaves_the_rest_alone() -> None:
    model = torch.nn.Sequential(spgru.Linear(3, 4), spgru.Linear(4, 2))
    x = torch.randn(2, 3)
    with at_mean(model[0]):
        inner = model[0](x)
        assert not inner.var.any()
        assert model(x).var.min() > 0
        with at_mean(model[1]):
            assert not model(x).var.any()


def test_nested_recordings_both_receive_the_neurons() -> None:
    model, x = torch.nn.Sequential(spgru.Linear(3, 4)), torch.randn(2, 3)
    with recording(model) as outer:
        with recording(model[0]) as inner:
            model(x)
        model(x)
    assert [len(inner[""]), len(outer["0"])] == [1, 2]


def test_an_error_inside_ends_the_block() -> None:
    layer, x = spgru.Linear(3, 4), torch.randn(2, 3)
    for block in BLOCKS.values():
        with pytest.raises(RuntimeError, match="on purpose"), block(layer):
            raise RuntimeError("on purpose")
    assert modes.weight_mode(layer) is None
    assert modes.frozen_of(layer) is None
    assert not modes.records_of(layer)
    assert layer(x).var.min() > 0


def test_compiled_code_follows_modes() -> None:
    layer, x = spgru.Linear(3, 4), torch.randn(2, 3)
    compiled = torch.compile(layer, backend="eager")
    assert compiled(x).var.min() > 0
    with at_mean(layer):
        assert not compiled(x).var.any()
    assert compiled(x).var.min() > 0


def test_generators_that_end_in_another_order_leave_no_mode_behind() -> None:
    layer, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)

    def stream() -> Iterator[spgru.Moments]:
        with at_mean(layer):
            for x_t in x:
                yield layer.step(x_t)[0]

    first, second = stream(), stream()
    next(first)
    next(second)
    first.close()
    assert not layer(x)[0].var.any()  # the second is still inside its block
    second.close()
    assert layer(x)[0].var.min() > 0


def test_tracing_works_and_auditing_is_refused_while_weights_are_numbers() -> None:
    layer, x = spgru.GRU(3, 4), torch.randn(5, 2, 3)
    with at_mean(layer):
        assert not spgru.trace(layer, x)["l0"]["z"].std.any()
        with pytest.raises(ValueError, match="outside of `sampling` and `at_mean`"):
            spgru.audit(layer, x, draws=2)


def test_sampling_draws_anew_in_every_block_and_follows_torchs_seed() -> None:
    layer, x = spgru.Linear(3, 2, weight_std=0.1), torch.randn(4, 3)

    def two() -> list[torch.Tensor]:
        torch.manual_seed(3)
        found = []
        for _ in range(2):
            with spgru.sampling(layer):
                found.append(layer(x).mean)
        return found

    first, second = two()
    assert not torch.equal(first, second)
    assert all(map(torch.equal, two(), (first, second)))


def test_sampling_leaves_a_pruned_weight_its_gradient() -> None:
    layer = prune.l1_unstructured(spgru.Linear(3, 2, weight_std=0.05), "weight", 2)
    y = layer(torch.randn(4, 3))
    with sampling(layer, torch.Generator()):
        pass
    spgru.loss(y.detach(), torch.zeros(4, 2), layer, data_size=4).backward()
    assert layer.weight_orig.grad.norm() > 0


def test_sampling_takes_no_step_of_spectral_norm() -> None:
    layer = spectral_norm(spgru.Linear(3, 3)).train()
    before = layer.weight_u.clone()
    with sampling(layer, torch.Generator()):
        pass
    assert torch.equal(layer.weight_u, before)
    assert layer.training
