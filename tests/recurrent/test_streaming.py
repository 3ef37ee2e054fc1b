"""Single steps: in one call of C where batches are small, else as a sequence of one step."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from kernel_cases import CELLS, needs_compiled, relative_error

import spgru
from spgru import Moments
from spgru.functional import Affine
from spgru.recurrent import run, single_step
from spgru.recurrent.kernels.native import whole_steps

pytestmark = needs_compiled


def problem(name: str, batch: tuple[int, ...], inputs: int, size: int, bias: bool) -> Any:
    """Input, states, and the maps of input and state, float64."""
    _, gates, states = CELLS[name]

    def moments(*shape: int, scale: float) -> Moments:
        return Moments(*(scale * part for part in torch.rand(2, *shape, dtype=torch.float64) - 0.5))

    def positive(value: Moments) -> Moments:
        return Moments(value.mean, value.var.abs())

    x = positive(moments(*batch, inputs, scale=2))
    state = tuple(positive(moments(*batch, size, scale=1)) for _ in range(states))
    maps = [
        (
            positive(moments(gates * size, width, scale=0.3)),
            positive(moments(gates * size, scale=1)),
        )
        for width in (inputs, size)
    ]
    return x, state, [(weight, b if bias else None) for weight, b in maps]


def step(name: str, x: Any, state: Any, maps: Any, dtype: torch.dtype, backend: Any) -> Any:
    make_cell, _, _ = CELLS[name]
    input_map, hidden = (
        Affine.of(weight.to(dtype), None if bias is None else bias.to(dtype))
        for weight, bias in maps
    )
    cell = make_cell(hidden, hidden.weight.shape[1])
    before = tuple(part.to(dtype) for part in state)
    return single_step(cell, x.to(dtype), before, input_map, backend), cell


@torch.no_grad()
@pytest.mark.parametrize("is_certain", [False, True], ids=["moments", "tensor"])
@pytest.mark.parametrize(
    ("batch", "inputs", "size", "bias"),
    [((), 3, 5, True), ((1,), 16, 32, False), ((2,), 37, 70, True)],
)
@pytest.mark.parametrize("name", CELLS)
def test_one_call_of_c_is_the_reference(
    name: str, batch: Any, inputs: int, size: int, bias: bool, is_certain: bool
) -> None:
    x, state, maps = problem(name, batch, inputs, size, bias)
    x = x.mean if is_certain else x
    expected, _ = step(name, x, state, maps, torch.float64, "reference")
    found, cell = step(name, x, state, maps, torch.float32, "compiled")
    assert whole_steps.WholeSteps in cell.hidden.cache  # it was taken
    for got, truth in zip(found, expected, strict=True):
        assert got.shape == (*batch, size)
        for a, b in zip(got, truth, strict=True):
            assert relative_error(a, b) < 1e-6


def test_gradients_and_large_batches_take_the_usual_way() -> None:
    x, state, maps = problem("lstm", (2,), 4, 5, True)
    found, cell = step("lstm", x, state, maps, torch.float32, "auto")
    assert whole_steps.WholeSteps not in cell.hidden.cache
    with torch.no_grad():
        at_once, _ = step("lstm", x, state, maps, torch.float32, "auto")
    for a, b in zip(found, at_once, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-6, atol=1e-6)
    x, state, maps = problem("gru", (4000,), 4, 5, True)
    with torch.no_grad():
        found, _ = step("gru", x, state, maps, torch.float32, "auto")
        expected, _ = step("gru", x, state, maps, torch.float64, "reference")
    assert relative_error(found[0].var, expected[0].var) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_sequence_in_one_call_of_c_is_the_reference(name: str, reverse: bool) -> None:
    make_cell, _, _ = CELLS[name]
    x, state, maps = problem(name, (2,), 5, 7, True)
    x = Moments(*(torch.stack([part, -2 * part, part]) for part in x))
    x = Moments(x.mean, x.var.abs())
    results = []
    for dtype, backend in ((torch.float32, "compiled"), (torch.float64, "reference")):
        input_map, hidden = (Affine.of(weight.to(dtype), b.to(dtype)) for weight, b in maps)
        cell = make_cell(hidden, 7)
        before = tuple(part.to(dtype) for part in state)
        output, final, _ = run(
            cell, x.to(dtype), before, input_map=input_map, backend=backend, reverse=reverse
        )
        assert (whole_steps.WholeSteps in hidden.cache) == (backend == "compiled")
        results.append([part for moments in (output, *final) for part in moments])
    for got, truth in zip(*results, strict=True):
        assert relative_error(got, truth) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("frozen", [False, True])
def test_a_stream_is_the_sequence(frozen: bool) -> None:
    layer = spgru.LSTM(3, 5, num_layers=2).requires_grad_(not frozen)
    x = torch.randn(6, 2, 3)
    expected, _ = layer(x)
    state, found = None, []
    for now in x:
        output, state = layer.step(now, state)
        before = [part.clone() for moments in state for part in moments]
        # Results are their own: writing to the output does not reach the state.
        found.append(output.mean.clone())
        output.mean.zero_()
        after = [part for moments in state for part in moments]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    torch.testing.assert_close(torch.stack(found), expected.mean, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_weights_that_change_are_seen_at_once() -> None:
    layer = spgru.GRU(3, 5).requires_grad_(False)
    x = torch.randn(1, 3)
    first, _ = layer.step(x)
    layer.weight_ih_l0.add_(1.0)
    second, _ = layer.step(x)
    truth = spgru.GRU(3, 5, dtype=torch.float64, backend="reference")
    truth.load_state_dict(layer.state_dict())
    assert (first.mean - second.mean).abs().max() > 0.01
    assert relative_error(second.mean, truth.step(x.double())[0].mean) < 1e-6


@torch.no_grad()
def test_wrong_shapes_are_refused_before_c_reads_them() -> None:
    x, state, maps = problem("gru", (2,), 4, 5, True)
    with pytest.raises(ValueError, match=r"x must be float32 on the CPU of shape \(2, 4\)"):
        step("gru", x[:1], state, maps, torch.float32, "compiled")
    with pytest.raises(ValueError, match="state has 2 parts but the cell has 1"):
        step("gru", x, state * 2, maps, torch.float32, "compiled")


def test_first_step_inside_a_transform() -> None:
    """In a process of its own, where nothing has been imported by a step before."""
    script = """
import torch, spgru
gru, x = spgru.GRU(3, 4), torch.randn(2, 3)
with torch.no_grad():
    mean, _ = torch.func.jvp(lambda x: gru.step(x)[0].mean, (x,), (x,))
    torch.testing.assert_close(mean, gru.step(x)[0].mean)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
