"""All steps in one kernel: plans, weights that stay on the chip, chips that are too small."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, gradients, relative_error
from torch.utils._pytree import tree_leaves

import spgru

pytest.importorskip("triton")
from spgru.recurrent.kernels.steps import Steps
from spgru.recurrent.kernels.triton import gru, persistent, planning


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_all_steps_at_once_in_16_bits(name: str) -> None:
    """float16 everywhere; the interpreter cannot multiply bfloat16."""
    options: dict[str, Any] = {"device": DEVICE}
    dtypes = (torch.float16, torch.bfloat16) if DEVICE == "cuda" else (torch.float16,)
    # On a GPU all weights of the first size stay on the chip, and a part of the second's.
    for dtype, (size, batch) in itertools.product(dtypes, [(16, 2), (48, 19)]):
        layer = getattr(spgru, name)(3, size, backend="triton", dtype=dtype, **options)
        truth = getattr(spgru, name)(3, size, backend="reference", dtype=torch.float64, **options)
        truth.load_state_dict(layer.state_dict())
        x = torch.randn(3, batch, 3, device=DEVICE).to(dtype)
        found, expected = layer(x)[0], truth(x.double())[0]
        for part, exact in zip(found, expected, strict=True):
            error = (part.double() - exact).norm() / exact.norm()
            assert error < (4e-3 if dtype == torch.float16 else 3e-2)


@pytest.mark.parametrize("held", [0, 16, 32])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_weights_that_stay_on_the_chip(
    name: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None, some or all; one program has all units, as holding its weights asks for."""
    monkeypatch.setattr(planning, "UNITS", 32)
    monkeypatch.setattr(planning, "make_plan", planning.make_plan.__wrapped__)
    monkeypatch.setattr(planning, "inner_terms", lambda *_: 16)
    monkeypatch.setattr(planning, "held_terms", lambda *_: held)
    layer = getattr(spgru, name)(3, 32, weight_std=0.1, backend="triton", device=DEVICE)
    truth = getattr(spgru, name)(3, 32, backend="reference", dtype=torch.float64, device=DEVICE)
    truth.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 3, device=DEVICE)
    found, expected = layer(x)[0], truth(x.double())[0]
    for part, exact in zip(found, expected, strict=True):
        assert (part.double() - exact).norm() < 1e-6 * exact.norm()
        part.sum().backward(retain_graph=True)
        exact.sum().backward(retain_graph=True)
    for found_grad, exact_grad in zip(gradients(layer), gradients(truth), strict=True):
        assert (found_grad.double() - exact_grad).norm() < 1e-5 * exact_grad.norm()


def test_a_chip_without_room_for_weights_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def launch(*arguments: Any) -> bool:
        tried.append(arguments[-1]["held"])
        return tried[-1] == 0

    kernels = persistent.Persistent(None, None, gates=3)
    monkeypatch.setattr(kernels, "_launch", launch, raising=False)
    monkeypatch.setattr(planning, "exact", lambda: False)
    tensors = {
        "x_mean": torch.empty(2 * 30, 384), "h_mean": torch.empty(3 * 30, 128),
        "weight": torch.empty(384, 128),
    }  # fmt: skip
    steps = Steps([30, 30], reverse=False)
    assert kernels.forward(planning.Plan(16, 16), steps, keeps_products=False, **tensors)
    assert tried == [128, 0]


def test_how_many_weights_stay_on_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(size: int, dtype: torch.dtype, rows: int = 30, columns: int = 64) -> int:
        plan = planning.Plan(-(-rows // 16) * size // 16, 16)
        return planning.held_terms(torch.empty(1, size, dtype=dtype), plan, rows, columns)

    monkeypatch.setattr(planning, "exact", lambda: False)
    assert [held(size, torch.bfloat16) for size in (48, 128, 1024)] == [32, 128, 256]
    assert [held(size, torch.float32) for size in (48, 128, 256, 512)] == [0, 128, 256, 0]
    assert held(128, torch.float32, columns=16) == 0
    several = planning.Plan(1, 16)
    assert planning.held_terms(torch.empty(1, 128), several, 30, 64) == 0
    large_blocks = planning.Plan(64, 32)
    assert planning.held_terms(torch.empty(1, 128), large_blocks, 30, 64) == 0
    monkeypatch.setattr(planning, "exact", lambda: True)
    assert held(128, torch.float32) == 0
    assert held(128, torch.bfloat16) == 128


@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_all_steps_at_once_without_gradients(name: str, dtype: Any, bidirectional: bool) -> None:
    """Nothing is kept for a backward pass then, and rounded states are themselves the output."""
    options: dict[str, Any] = {"bidirectional": bidirectional, "device": DEVICE}
    layer = getattr(spgru, name)(3, 32, weight_std=0.1, backend="triton", dtype=dtype, **options)
    truth = getattr(spgru, name)(3, 32, backend="reference", dtype=torch.float64, **options)
    truth.load_state_dict(layer.state_dict())
    x = torch.randn(3, 2, 3, device=DEVICE).to(dtype)
    with torch.no_grad():
        found, expected = layer(x), truth(x.double())
    for part, exact in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert part.dtype == dtype
        error = (part.double() - exact).norm() / exact.norm()
        assert error < (1e-3 if DEVICE == "cuda" else 1e-6 if dtype == torch.float32 else 1e-3)
    # Output and final state are apart.
    before = [part.clone() for part in tree_leaves(found[1])]
    for part in found[0]:
        part.zero_()
    for part, kept in zip(tree_leaves(found[1]), before, strict=True):
        assert torch.equal(part, kept)


def test_torchs_own_switch_for_tf32() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert not planning.exact()
        layer = spgru.GRU(3, 16, backend="triton", device=DEVICE)
        truth = spgru.GRU(3, 16, backend="reference", dtype=torch.float64, device=DEVICE)
        truth.load_state_dict(layer.state_dict())
        x = torch.randn(2, 2, 3, device=DEVICE)
        # TF32 has 11 bits; the interpreter multiplies in float32.
        assert relative_error(layer(x)[0].mean, truth(x.double())[0].mean) < 2e-3
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("too_large", ["both", "backward"])
def test_a_chip_that_is_too_small_launches_every_step(
    too_large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = spgru.GRU(3, 16, backend="triton", device=DEVICE)
    truth = spgru.GRU(3, 16, backend="reference", dtype=torch.float64, device=DEVICE)
    truth.load_state_dict(layer.state_dict())
    names = ["forward", "backward"] if too_large == "both" else ["backward"]
    for name in names:
        monkeypatch.setattr(
            f"spgru.recurrent.kernels.triton.persistent.Persistent.{name}", lambda *_, **__: False
        )
    x = torch.randn(3, 2, 3, device=DEVICE)
    for module in (layer, truth):
        output, _ = module(x.to(next(module.parameters()).dtype))
        (output.mean.sum() + 10 * output.var.sum()).backward()
    for found, exact in zip(layer.parameters(), truth.parameters(), strict=True):
        assert (found.grad - exact.grad).norm() / exact.grad.norm() < 2e-6


@pytest.mark.gpu
def test_what_was_compiled_is_used_again_for_the_same_alignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step by itself: of 16 units all rows are aligned, of 5 units some are not."""
    monkeypatch.setattr(persistent.Persistent, "plan", lambda *_: None)
    compiled = gru.KERNELS.forward._launch._compiled
    found = []
    for size in (16, 5):
        layer = spgru.GRU(3, size, backend="triton", device="cuda").requires_grad_(False)
        for _ in range(2):
            layer(torch.randn(4, 3, 3, device="cuda"))
            found.append(len(compiled))
    assert found[0] == found[1] >= 1
    assert found[1] < found[2] == found[3]
