"""Packed sequences: kernels against the reference in float64, and each sequence by itself."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from kernel_cases import (
    DEVICE,
    KERNELS,
    gradients,
    leaves,
    needs_compiled,
    relative_error,
    results_and_gradients,
    tree_moments,
)
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import spgru
from spgru.nn.contexts import at_mean, sampling
from spgru.recurrent.kernels.steps import Steps

pytest.importorskip("triton")

BATCH_SIZES = [4, 2, 2, 1]
CASES = [
    ("gru", (15, 5), True),
    ("lstm", (64, 16), True),
    ("lstm", (20, 5), False),
    ("rnn", (32, 32), True),
]


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(("cell", "weight", "bias"), CASES, ids=["gru", "lstm", "no-bias", "rnn"])
def test_values_and_every_gradient(
    cell: str, weight: Any, bias: bool, reverse: bool, backend: str
) -> None:
    check(cell, weight, bias, reverse, backend, BATCH_SIZES)


@needs_compiled
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_values_and_every_gradient_of_a_reset_before_the_product(reverse: bool) -> None:
    check("gru_reset_before", (15, 5), True, reverse, "compiled", BATCH_SIZES)


@pytest.mark.parametrize("batch_sizes", [[1], [3], [3, 3], [2, 1], [5, 4, 3, 2, 1]])
def test_lengths_of_all_kinds(batch_sizes: list[int]) -> None:
    for reverse in (False, True):
        check("lstm", (20, 5), True, reverse, KERNELS[-1], batch_sizes)


def check(
    cell: str, weight: Any, bias: bool, reverse: bool, backend: str, batch_sizes: list[int]
) -> None:
    start = leaves(cell, (sum(batch_sizes),), batch_sizes[:1], weight, bias)
    options: Any = {"reverse": reverse, "batch_sizes": torch.tensor(batch_sizes)}
    expected = results_and_gradients(cell, start, bias, torch.float64, "reference", **options)
    found = results_and_gradients(cell, start, bias, torch.float32, backend, **options)
    for got, truth in zip(found, expected, strict=True):
        assert relative_error(got, truth) < 2e-6


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_each_sequence_is_as_it_is_alone(name: str, backend: Any) -> None:
    """Two layers, both directions, an initial state, any lengths; without gradients too."""
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "device": DEVICE}
    layer = getattr(spgru, name)(3, 4, weight_std=0.2, backend=backend, **options)
    alone = getattr(spgru, name)(3, 4, backend="reference", dtype=torch.float64, **options)
    alone.load_state_dict(layer.state_dict())
    sequences = [torch.randn(length, 3, device=DEVICE) for length in (2, 3, 1, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    hx: Any = spgru.Moments(*torch.rand(2, 4, 4, 4, device=DEVICE))
    pick = hx
    if name == "LSTM":
        hx = (hx, spgru.Moments(*torch.rand(2, 4, 4, 4, device=DEVICE)))
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output, final = layer(packed, hx)
        for k, part in enumerate(output):
            padded, lengths = pad_packed_sequence(part)
            for b, sequence in enumerate(sequences):
                start = tree_map_state(hx, b)
                expected, expected_final = alone(sequence.double().unsqueeze(1), start)
                truth = list(expected)[k].squeeze(1)
                assert lengths[b] == len(sequence)
                assert (padded[: lengths[b], b] - truth).abs().max() < 2e-6
                for got, exact in zip(
                    tree_moments(final), tree_moments(expected_final), strict=True
                ):
                    assert (list(got)[k][:, b] - list(exact)[k][:, 0]).abs().max() < 2e-6
    assert pick.shape[1] == len(sequences)


def tree_map_state(state: Any, b: int) -> Any:
    if isinstance(state, tuple):
        return tuple(tree_map_state(part, b) for part in state)
    return state.to(torch.float64)[:, b : b + 1]


@pytest.mark.parametrize("backend", KERNELS)
def test_moments_that_are_packed(backend: Any) -> None:
    lengths = torch.tensor([4, 2, 1])
    moments = spgru.Moments(torch.randn(4, 3, 5), torch.rand(4, 3, 5)).to(DEVICE)
    packed = spgru.pack_padded_moments(moments, lengths)
    layer = spgru.GRU(5, 4, backend=backend, device=DEVICE)
    truth = spgru.GRU(5, 4, backend="reference", device=DEVICE)
    truth.load_state_dict(layer.state_dict())
    for module in (layer, truth):
        output, _ = module(packed)
        assert isinstance(output.mean, PackedSequence)
        (output.mean.data.sum() + output.var.data.square().sum()).backward()
    for found, expected in zip(gradients(layer), gradients(truth), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_plain_numbers_in_packed_sequences() -> None:
    """Weights at their means, by the kernel for plain numbers."""
    packed = pack_sequence(
        [torch.randn(n, 3, device=DEVICE) for n in (1, 4, 2)], enforce_sorted=False
    )
    layer = spgru.GRU(3, 4, bidirectional=True, backend="triton", device=DEVICE)
    truth = layer.to_torch()
    with at_mean(layer):
        output, final = layer(packed)
    expected, expected_final = truth(packed)
    torch.testing.assert_close(output.mean.data, expected.data)
    torch.testing.assert_close(final.mean, expected_final)
    output.mean.data.square().sum().backward()
    expected.data.square().sum().backward()
    torch.testing.assert_close(layer.weight_hh_l0.grad, truth.weight_hh_l0.grad)


def test_weights_redrawn_at_every_step_of_packed_sequences() -> None:
    """One row of a batch of equal sequences is what the packed sequence of that length gives."""
    layer = spgru.GRU(3, 4, bidirectional=True, weight_std=0.3)
    x = torch.randn(4, 3)
    results = []
    for lengths in ([4, 4], [4, 2]):
        packed = pack_sequence([x[:n] for n in lengths])
        with sampling(layer, torch.Generator().manual_seed(0), every_step=True):
            output, final = layer(packed)
        padded, _ = pad_packed_sequence(output.mean)
        results.append((padded, final.mean))
    # The longest is there at every step, so it is the same in both but for rounding: a product of
    # one row may add up in another order than one of two.
    torch.testing.assert_close(results[0][0][:, 0], results[1][0][:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1][:, 0], results[1][1][:, 0], rtol=1e-5, atol=1e-6)
    # Forward, the shorter one is the first part of the longer.
    torch.testing.assert_close(
        results[1][0][:2, 1, :4], results[0][0][:2, 1, :4], rtol=1e-5, atol=1e-6
    )
    assert not results[1][0][2:, 1].any()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("batch_sizes", [[3, 3, 2, 1], [2, 2], [1], [4, 1, 1]])
def test_rows_of_the_slots(batch_sizes: list[int], reverse: bool) -> None:
    """Every row of the buffer named by time and sequence, as a plain loop would fill it."""
    steps = Steps(batch_sizes, reverse)
    state = torch.arange(float(steps.sequences))[:, None]  # its value names its sequence
    buffer = torch.full((steps.total, 1), torch.nan)
    steps.put_initial(buffer, state)
    slots = steps.split_slots(buffer)
    read = []
    for k, (t, n) in enumerate(zip(steps.times, steps.sizes, strict=True)):
        before = slots[k][:n]
        assert torch.equal(before % 10, state[:n])
        read.append(before.clone())
        slots[k + 1][:n] = state[:n] + 10 * (t + 1)
    assert torch.equal(steps.before(buffer), torch.cat(read))
    expected = [state[:n] + 10 * (t + 1) for t, n in enumerate(batch_sizes)]
    assert torch.equal(steps.after(buffer), torch.cat(expected))
    lengths = [sum(n > b for n in batch_sizes) for b in range(steps.sequences)]
    starts = [0, *accumulate(batch_sizes)]
    last = [starts[0 if reverse else length - 1] + b for b, length in enumerate(lengths)]
    final = torch.cat(expected)[last]
    assert torch.equal(steps.final(steps.after(buffer)), final)
    assert torch.equal(steps.final_of(buffer), final)
