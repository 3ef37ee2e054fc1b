"""Kernels against the reference in float64: values and every gradient, sequences of equal length.

Without a GPU Triton's kernels run in its interpreter: the same code, element by element.
"""

from __future__ import annotations

from functools import partial
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

import spgru
from spgru.models.conv_recurrent import ConvCell, ConvGRUCell, ConvLSTMCell
from spgru.nn.contexts import at_mean
from spgru.recurrent.kernels.products import PackedMatrixStep

pytest.importorskip("triton")


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("cell", "batch", "weight", "bias"),
    [
        pytest.param("gru", (3,), (15, 5), True, id="gru"),
        pytest.param("gru", (1,), (51, 17), False, id="gru-no-bias"),
        pytest.param("gru", (2, 3, 4), (9, 3, 3, 3), True, id="conv"),
        pytest.param("gru", (1, 1, 5), (12, 4, 5, 5), False, id="conv-no-bias"),
        pytest.param("lstm", (3,), (20, 5), True, id="lstm"),
        pytest.param("lstm", (1,), (68, 17), False, id="lstm-no-bias"),
        pytest.param("lstm", (2, 3, 4), (12, 3, 3, 3), True, id="conv-lstm"),
        pytest.param("lstm", (1, 1, 5), (16, 4, 5, 5), False, id="conv-lstm-no-bias"),
        pytest.param("gru", (19,), (96, 32), True, id="gru-at-once"),
        pytest.param("lstm", (19,), (64, 16), True, id="lstm-at-once"),
        pytest.param("rnn", (3,), (32, 32), True, id="rnn-at-once"),
        pytest.param("rnn", (3,), (5, 5), True, id="rnn"),
        pytest.param("rnn", (2,), (300, 300), False, id="rnn-wide"),
    ],
)
def test_values_and_every_gradient(
    cell: str, batch: Any, weight: Any, bias: bool, reverse: bool, backend: str
) -> None:
    check_values_and_gradients(cell, batch, weight, bias, reverse, backend)


@needs_compiled
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("batch", "weight", "bias"),
    [
        ((3,), (15, 5), True),
        ((2,), (210, 70), False),
        ((2, 3, 4), (9, 3, 3, 3), True),
    ],
    ids=["matrix", "several-blocks-no-bias", "convolution"],
)
def test_values_and_every_gradient_of_a_reset_before_the_product(
    batch: Any, weight: Any, bias: bool, reverse: bool
) -> None:
    check_values_and_gradients("gru_reset_before", batch, weight, bias, reverse, "compiled")


def check_values_and_gradients(
    cell: str, batch: Any, weight: Any, bias: bool, reverse: bool, backend: str
) -> None:
    # A first step, one between, a last one.
    start = leaves(cell, (3, *batch), batch, weight, bias)
    expected = results_and_gradients(cell, start, bias, torch.float64, "reference", reverse=reverse)
    found = results_and_gradients(cell, start, bias, torch.float32, backend, reverse=reverse)
    for got, truth in zip(found, expected, strict=True):
        assert relative_error(got, truth) < 2e-6


@pytest.mark.parametrize(
    "make",
    [
        partial(spgru.GRU, 6, 5),
        partial(spgru.GRU, 6, 5, bias=False, num_layers=2, bidirectional=True),
        partial(ConvGRUCell, 6, 5, 3),
    ],
    ids=["matrix", "two-layers", "convolution"],
)
def test_plain_numbers_and_every_gradient(make: Any) -> None:
    """Weights at their means: the kernel's gradients are those of the float64 reference."""
    layer = make(backend="triton", device=DEVICE)
    reference = make(backend="reference", dtype=torch.float64, device=DEVICE)
    reference.load_state_dict(layer.state_dict())
    is_image = isinstance(layer, ConvGRUCell)
    shape = (4, 3, 6, 3, 4) if is_image else (4, 3, 6)
    x = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    results = []
    for module in (layer, reference):
        value = x.to(next(module.parameters()).dtype).requires_grad_()
        with at_mean(module):
            output, final = (module.run if is_image else module)(value)
        (output.mean * torch.linspace(-1, 1, output.mean.shape[-1], device=DEVICE)).sum().add(
            final.mean.square().sum()
        ).backward()
        grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        assert not output.var.any()
        results.append({"output": output.mean.detach(), "x": value.grad, **grads})
    assert results[0].keys() == results[1].keys()
    for name, truth in results[1].items():
        assert (results[0][name] - truth).norm() / truth.norm() < 1e-6, name


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}])
def test_the_layer_is_the_same_with_either(name: str, options: dict[str, Any]) -> None:
    layers = [
        getattr(spgru, name)(6, 5, weight_std=0.2, backend=backend, device=DEVICE, **options)
        for backend in ("reference", "triton")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(4, 3, 6, device=DEVICE)
    outputs = [layer(x) for layer in layers]
    flat = [(o, *(s if isinstance(s, tuple) else (s,))) for o, s in outputs]
    for a, b in zip(*flat, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a.var, b.var, rtol=1e-5, atol=1e-6)
    assert torch.equal(outputs[1][0].mean, layers[1](x)[0].mean)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", [ConvGRUCell, ConvLSTMCell])
@pytest.mark.parametrize("in_channels", [2, 0])
def test_conv_cells_are_the_same_with_any(
    kind: type[ConvCell], in_channels: int, backend: Any
) -> None:
    layer = kind(in_channels, 5, 3, weight_std=0.2, backend=backend, device=DEVICE)
    reference = kind(in_channels, 5, 3, backend="reference", dtype=torch.float64, device=DEVICE)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(4, 2, in_channels, 3, 4, device=DEVICE)
    # Two calls, so that a state comes back in.
    results = []
    for module in (layer, reference):
        value = x.to(next(module.parameters()).dtype)
        first, state = module.run(value[:3])
        second, state = module.run(value[3:], state)
        found = [part for moments in tree_moments((first, second, state)) for part in moments]
        sum((k + 1) * part.square().sum() for k, part in enumerate(found)).backward()
        grads = [parameter.grad for parameter in module.parameters()]
        results.append([*(part.detach() for part in found), *grads])
    assert len(results[0]) == 4 + 2 * len(kind.state_names) + len(list(layer.parameters()))
    for got, truth in zip(*results, strict=True):
        assert (got - truth).norm() / truth.norm() < 2e-6


@needs_compiled
def test_wide_layers_with_packed_weights() -> None:
    """Wide enough for oneDNN's packed weights, frozen and not, at one batch size and another."""
    assert PackedMatrixStep.is_possible(torch.empty(3 * 512, 512))
    layer = spgru.GRU(3, 512, weight_std=0.02, backend="compiled")
    reference = spgru.GRU(3, 512, backend="reference", dtype=torch.float64)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(4, 5, 3)
    results = []
    for module in (layer, reference):
        output = module(x.to(next(module.parameters()).dtype))[0]
        (output.mean.square().sum() + output.var.sum()).backward()
        grads = [parameter.grad for parameter in module.parameters()]
        results.append([output.mean.detach(), output.var.detach(), *grads])
    for got, truth in zip(*results, strict=True):
        assert (got - truth).norm() / truth.norm() < 2e-6
    layer.requires_grad_(False)
    for batch in (5, 2, 5):
        torch.testing.assert_close(
            layer(x[:, :batch])[0].var, results[0][1][:, :batch], rtol=1e-5, atol=1e-9
        )


def test_certain_weights_are_torch() -> None:
    plain = torch.nn.GRU(6, 5, device=DEVICE)
    layer = spgru.GRU.from_torch(plain, weight_std=0.0, backend="triton")
    x = torch.randn(7, 3, 6, device=DEVICE)
    output, _ = layer(x)
    # In float64, not by another library's float32, whose rounding is its own.
    truth, _ = plain.double()(x.double())
    assert (output.mean - truth).abs().max() < 1e-6
    assert not output.var.any()


def test_half_precision_keeps_its_state_in_float32() -> None:
    layer = spgru.GRU(6, 8, weight_std=0.2, backend="triton", device=DEVICE)
    x = torch.randn(5, 3, 6, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        output, _ = layer(x)
    expected = spgru.GRU(6, 8, weight_std=0.2, backend="reference", device=DEVICE)
    expected.load_state_dict(layer.state_dict())
    truth, _ = expected.double()(x.double())
    assert output.dtype == torch.float32
    assert (output.mean - truth.mean).norm() / truth.mean.norm() < 1e-2
    assert (output.var - truth.var).norm() / truth.var.norm() < 1e-2
    assert output.var.min() >= 0
    output.var.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_layers_of_16_bits_stay_what_they_are() -> None:
    """Outside autocast a bfloat16 layer gives bfloat16, so that layers can follow one another."""
    layer = spgru.GRU(3, 4, num_layers=2, dtype=torch.bfloat16, backend="triton", device=DEVICE)
    output, final = layer(torch.randn(2, 5, 3, dtype=torch.bfloat16, device=DEVICE))
    assert output.dtype == final.dtype == torch.bfloat16


@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_and_biases_of_any_layout(backend: Any) -> None:
    """Transposed gradients of the final cell, and biases that are not one number after another."""
    x, grads = torch.randn(2, 5, 3, device=DEVICE), []
    for name in (backend, "reference"):
        torch.manual_seed(0)
        layer = spgru.LSTM(3, 4, backend=name, device=DEVICE)
        with torch.no_grad():
            spread = torch.linspace(-1, 1, 32, device=DEVICE)[::2]
            layer.bias_hh_l0 = torch.nn.Parameter(spread)
        value = x.clone().requires_grad_()
        cell = layer(value)[1][1]
        weight = torch.arange(20.0, device=DEVICE).view(1, 4, 5)
        (cell.mean.transpose(1, 2) * weight).sum().backward()
        grads.append(value.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@needs_compiled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"reset_after": False}, {"bidirectional": True}])
def test_16_bits_on_a_cpu_are_float32_inside(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """The result is that of the same weights in float64, rounded once; gradients likewise."""
    layer = spgru.GRU(6, 5, dtype=dtype, backend="compiled", weight_std=0.1, **options)
    truth = spgru.GRU(6, 5, dtype=torch.float64, backend="reference", **options)
    truth.load_state_dict(layer.state_dict())
    x, results = torch.randn(7, 3, 6).to(dtype), []
    for module in (layer, truth):
        value = x.detach().to(next(module.parameters()).dtype, copy=True).requires_grad_()
        output, final = module(value)
        sum(part.double().square().sum() for part in (*output, *final)).backward()
        results.append([*output, *final, value.grad, *gradients(module)])
    # Half of the spacing of numbers; gradients pass two roundings more.
    rounding = torch.finfo(dtype).eps / 2
    for k, (found, exact) in enumerate(zip(*results, strict=True)):
        assert found.dtype == dtype
        assert relative_error(found, exact) < rounding * (1 if k < 4 else 3)


@needs_compiled
@pytest.mark.parametrize("reset_after", [True, False])
def test_autocast_on_a_cpu_is_float32_inside(reset_after: bool) -> None:
    layer = spgru.GRU(6, 5, backend="compiled", weight_std=0.1, reset_after=reset_after)
    x = torch.randn(7, 3, 6)
    expected = layer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)[0]
    total = found.mean.sum() + found.var.sum()
    grads = torch.autograd.grad(total, layer.parameters(), retain_graph=True)
    truth = torch.autograd.grad(expected.mean.sum() + expected.var.sum(), layer.parameters())
    assert found.dtype == torch.float32
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.var, expected.var)
    for a, b in zip(grads, truth, strict=True):
        assert torch.equal(a, b)
    # A backward pass under autocast leaves the kernel's own products alone.
    weight = layer.weight_hh_l0
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(total, weight, retain_graph=True)
    assert torch.equal(inside, torch.autograd.grad(total, weight)[0])


@needs_compiled
@pytest.mark.parametrize("options", [{}, {"reset_after": False}])
def test_a_batch_without_sequences(options: dict[str, Any]) -> None:
    layer = spgru.GRU(6, 5, backend="compiled", **options)
    output, final = layer(torch.randn(4, 0, 6))
    assert output.shape == (4, 0, 5)
    assert final.shape == (1, 0, 5)
    output.var.sum().backward()
    assert not layer.weight_hh_l0.grad.any()
