"""Kernels against the reference in float64, and which backend runs when.

Without a GPU the kernels run in Triton's interpreter: the same code, element by element.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import spgru
from spgru import Moments
from spgru.families import get
from spgru.functional import Affine, sigmoid
from spgru.models.conv_recurrent import ConvCell, ConvGRUCell, ConvLSTMCell, _convolve
from spgru.nn.contexts import at_mean
from spgru.recurrent import lstm_step, make_gru_step, rnn_step, run
from spgru.recurrent.kernels.native import library
from spgru.recurrent.kernels.products import Matrix, PackedMatrix

pytest.importorskip("triton")
import triton
import triton.language as tl
from torch.utils._pytree import tree_leaves

from spgru.functional.kernels.logistic import logistic, logistic_with_slopes
from spgru.recurrent.kernels import persistent, planning
from spgru.recurrent.kernels.plain_gru import plain_gru_scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# In the interpreter Triton's kernels run on a CPU too; on a GPU there is only Triton.
BACKENDS = ["triton", "compiled"] if DEVICE == "cpu" else ["triton"]


@triton.jit
def _logistic_kernel(mean, var, values, slopes, count, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    mask = place < count
    m, v = tl.load(mean + place, mask, 0.0), tl.load(var + place, mask, 0.0)
    short, long = logistic(m, v), logistic_with_slopes(m, v)
    for k in tl.static_range(2):
        tl.store(values + k * count + place, short[k], mask)
    for k in tl.static_range(6):
        tl.store(slopes + k * count + place, long[k], mask)


def run_logistic(mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = len(mean)
    values = torch.full((2, count), torch.nan, device=DEVICE)
    slopes = torch.full((6, count), torch.nan, device=DEVICE)
    _logistic_kernel[(triton.cdiv(count, 512),)](mean, var, values, slopes, count, 512)
    return values, slopes


def test_the_logistic_and_its_derivatives() -> None:
    """Against autograd through the float64 reference, on both sides of the handover."""
    count = 10_001
    mean = (6 * torch.randn(count)).to(DEVICE)
    var = (10 ** (8 * torch.rand(count) - 6)).to(DEVICE)
    var[:50] = 0
    values, slopes = run_logistic(mean, var)
    m, v = mean.double().requires_grad_(), var.double().requires_grad_()
    exact = sigmoid(Moments(m, v))
    by = [
        *torch.autograd.grad(exact.mean.sum(), (m, v), retain_graph=True),
        *torch.autograd.grad(exact.var.sum(), (m, v)),
    ]
    expected = torch.stack([exact.mean - 0.5, exact.var, *by]).detach()
    assert (values - slopes[:2]).abs().max() < 1e-7
    # Rounding of float32, as measured: no approximation beyond the reference's own.
    assert (slopes - expected).abs().max() < 3e-7
    assert slopes[1].min() >= 0
    assert not slopes[1, :50].any()
    # Small variances keep their relative accuracy.
    narrow = (var > 0) & (var < 1) & (mean.abs() < 5)
    assert ((slopes[1] / expected[1] - 1)[narrow]).abs().max() < 5e-6


def test_the_logistic_is_never_negative_or_lost() -> None:
    mean = torch.linspace(-300, 300, 601, device=DEVICE).repeat(40)
    var = torch.logspace(-30, 8, 40, device=DEVICE).repeat_interleave(601)
    _, slopes = run_logistic(mean, var)
    assert torch.isfinite(slopes).all()
    assert slopes[1].min() >= 0
    assert slopes[0].abs().max() <= 0.5


def leaves(gates: int, states: int, batch: Any, weight: Any, bias: bool) -> list[torch.Tensor]:
    """Moments of inputs, weight, bias and states, float64, over all sizes of variance."""

    def pair(*shape: int, mean: float, var: float) -> list[torch.Tensor]:
        noise = torch.randn(2, *shape, dtype=torch.float64)
        return [mean * noise[0], var * noise[1].exp()]

    size, fan = weight[1], torch.Size(weight[1:]).numel()
    found = [
        *pair(4, *batch, gates * size, mean=1, var=0.3),
        *pair(*weight, mean=fan**-0.5, var=0.2 / fan),
        *pair(gates * size, mean=0.1, var=0.01),
    ]
    for _ in range(states):
        found += pair(*batch, size, mean=0.5, var=0.1)
    return found if bias else [*found[:4], *found[6:]]


GRU_STEP = partial(make_gru_step, reset_after=True)


def _lstm(hidden: Any, size: int, weighted_sum: Any = None, **options: Any) -> Any:
    if weighted_sum is not None:
        hidden = partial(hidden, weighted_sum=weighted_sum)
    return partial(lstm_step, hidden=hidden, projection=None, **options)


def _rnn(hidden: Affine, size: int, **options: Any) -> Any:
    return partial(rnn_step, hidden=hidden, nonlinearity="tanh", **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("kernel", "make_step", "gates", "states", "batch", "weight", "bias"),
    [
        ("gru", GRU_STEP, 3, 1, (3,), (15, 5), True),
        ("gru", GRU_STEP, 3, 1, (1,), (51, 17), False),
        ("gru", partial(GRU_STEP, weighted_sum=_convolve), 3, 1, (2, 3, 4), (9, 3, 3, 3), True),
        ("gru", partial(GRU_STEP, weighted_sum=_convolve), 3, 1, (1, 1, 5), (12, 4, 5, 5), False),
        ("lstm", _lstm, 4, 2, (3,), (20, 5), True),
        ("lstm", _lstm, 4, 2, (1,), (68, 17), False),
        ("lstm", partial(_lstm, weighted_sum=_convolve), 4, 2, (2, 3, 4), (12, 3, 3, 3), True),
        ("lstm", partial(_lstm, weighted_sum=_convolve), 4, 2, (1, 1, 5), (16, 4, 5, 5), False),
        ("gru", GRU_STEP, 3, 1, (19,), (96, 32), True),
        ("lstm", _lstm, 4, 2, (19,), (64, 16), True),
        ("rnn", _rnn, 1, 1, (3,), (32, 32), True),
        ("rnn", _rnn, 1, 1, (3,), (5, 5), True),
        ("rnn", _rnn, 1, 1, (2,), (300, 300), False),
    ],
    ids=[
        "gru",
        "gru-no-bias",
        "conv",
        "conv-no-bias",
        "lstm",
        "lstm-no-bias",
        "conv-lstm",
        "conv-lstm-no-bias",
        "gru-at-once",
        "lstm-at-once",
        "rnn-at-once",
        "rnn",
        "rnn-wide",
    ],
)
def test_values_and_every_gradient(
    kernel: Any,
    make_step: Any,
    gates: int,
    states: int,
    batch: tuple[int, ...],
    weight: tuple[int, ...],
    bias: bool,
    reverse: bool,
    backend: str,
) -> None:
    start = leaves(gates, states, batch, weight, bias)
    size, convolves = weight[1], len(weight) > 2
    pull = [torch.randn(4, *batch, size, dtype=torch.float64) for _ in range(2)]
    pull += [torch.randn(*batch, size, dtype=torch.float64) for _ in range(2 * states)]

    def go(dtype: torch.dtype, backend: Any) -> list[torch.Tensor]:
        inputs = [x.to(DEVICE, dtype).detach().clone().requires_grad_() for x in start]
        pairs = [Moments(*inputs[k : k + 2]) for k in range(0, len(inputs), 2)]
        x, matrix, *rest = pairs
        hidden = Affine.of(matrix, rest.pop(0) if bias else None)
        step = make_step(hidden, size, family=get("gaussian"), rule="exact")
        output, final, _ = run(
            kernel, step, x, tuple(rest), hidden, get("gaussian"), "exact", backend,
            weighted_sum=_convolve if convolves else None, reverse=reverse,
        )  # fmt: skip
        results = [part for moments in (output, *final) for part in moments]
        sum(
            (value * grad.to(DEVICE, dtype)).sum()
            for value, grad in zip(results, pull, strict=True)
        ).backward()
        return [*(value.detach() for value in results), *(value.grad for value in inputs)]

    expected = go(torch.float64, "reference")
    for got, truth in zip(go(torch.float32, backend), expected, strict=True):
        assert (got - truth).norm() / truth.norm() < 2e-6


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


@pytest.mark.parametrize("reverse", [False, True])
def test_plain_results_may_be_written_to_and_gradients_are_left_alone(reverse: bool) -> None:
    """What a user does with the last state must not reach what is kept for the backward pass."""
    hidden = Affine.of(torch.randn(15, 5, device=DEVICE, requires_grad=True))
    inputs = torch.randn(4, 3, 15, device=DEVICE, requires_grad=True)
    state = torch.randn(3, 5, device=DEVICE)
    pull = torch.randn(3, 5, device=DEVICE)
    before, found = pull.clone(), []
    for write in (False, True):
        output, last = plain_gru_scan(inputs, state, hidden, Matrix(), reverse)
        loss = (last * pull).sum()
        if write:
            with torch.no_grad():
                last.zero_()
                output.zero_()
            grads = torch.autograd.grad(last, [inputs, hidden.weight], pull)
        else:
            grads = torch.autograd.grad(loss, [inputs, hidden.weight])
        found.append(grads)
    assert torch.equal(pull, before)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
        assert a.abs().max() > 0.01


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}])
def test_the_layer_is_the_same_with_either(name: str, options: dict[str, Any]) -> None:
    layers = [
        getattr(spgru, name)(6, 5, weight_std=0.2, backend=backend, device=DEVICE, **options)
        for backend in ("reference", "triton")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(7, 3, 6, device=DEVICE)
    outputs = [layer(x) for layer in layers]
    flat = [(o, *(s if isinstance(s, tuple) else (s,))) for o, s in outputs]
    for a, b in zip(*flat, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a.var, b.var, rtol=1e-5, atol=1e-6)
    assert torch.equal(outputs[1][0].mean, layers[1](x)[0].mean)


@pytest.mark.parametrize("backend", BACKENDS)
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


def tree_moments(tree: Any) -> list[Moments]:
    return [tree] if isinstance(tree, Moments) else [m for part in tree for m in tree_moments(part)]


@pytest.mark.skipif(DEVICE != "cpu", reason="a matter of CPUs")
def test_wide_layers_with_packed_weights() -> None:
    """Wide enough for oneDNN's packed weights, frozen and not, at one batch size and another."""
    assert PackedMatrix.is_possible(torch.empty(3 * 512, 512))
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


REFUSED: list[tuple[Any, str]] = [
    (partial(spgru.GRU, reset_after=False), "no kernel for reset_after=False"),
    (partial(spgru.GRU, rule="paper"), "no kernel for rule='paper'"),
    (partial(spgru.GRU, family="gamma"), "no kernel for family='gamma'"),
    (partial(spgru.GRU, dtype=torch.float64), "kernels compute in float32"),
    (partial(spgru.LSTM, proj_size=2), "no kernel for proj_size"),
    (partial(spgru.RNN, nonlinearity="relu"), "no kernel for nonlinearity='relu'"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_has_no_kernel_is_refused_by_name_and_done_by_auto(make: Any, reason: str) -> None:
    layer = make(4, 3, backend="triton")
    x = torch.rand(2, 1, 4, dtype=next(layer.parameters()).dtype)
    with pytest.raises(ValueError, match=f"backend='triton' is not possible: .*{reason}"):
        layer(x)
    layer.backend = "auto"
    assert layer(x)[0].var.min() >= 0


@pytest.mark.skipif(DEVICE != "cpu", reason="a matter of CPUs")
def test_the_compiled_backend_refuses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 1, 4)
    with pytest.raises(ValueError, match=r"'compiled' is not possible: .*reset_after=False"):
        spgru.GRU(4, 3, backend="compiled", reset_after=False)(x)
    layer = spgru.GRU(4, 3, backend="compiled")
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match="it computes in float32 alone"),
    ):
        layer(x)
    monkeypatch.setattr(library, "obstacle", lambda: "there is no C compiler")
    with pytest.raises(ValueError, match="there is no C compiler; use backend='auto'"):
        layer(x)
    layer.backend = "auto"
    assert layer(x)[0].var.min() > 0


@pytest.mark.skipif(DEVICE != "cpu", reason="a matter of CPUs")
def test_what_is_not_a_number_stays_none() -> None:
    x = torch.randn(3, 2, 4)
    x[1, 0, 2] = torch.nan
    output, _ = spgru.GRU(4, 3, backend="compiled")(x)
    assert output.mean[1:, 0].isnan().all()
    assert output.var[1:, 0].isnan().all()
    assert not output.mean[:, 1].isnan().any()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(library.CompileError, match=r"(?s)could not compile .*error: "):
        library._compile("gcc", "this is no C", tmp_path / "x.so")
    assert not list(tmp_path.iterdir())

    def fails() -> None:
        raise library.CompileError("no luck")

    monkeypatch.setattr(library, "_library", fails)
    assert library.obstacle.__wrapped__() == "no luck"


def test_packed_sequences_are_refused_and_a_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = spgru.GRU(4, 3, backend="triton")
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    with pytest.raises(ValueError, match="no kernel for packed sequences"):
        layer(packed)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="x is on cpu, and Triton needs a GPU"):
        layer(torch.randn(2, 1, 4))


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="backend"):
        spgru.GRU(4, 3, backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend"):
        ConvGRUCell(1, 2, backend="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_biases_of_any_layout(backend: Any) -> None:
    """Transposed gradients of the final cell, and biases that are not one number after another."""
    x, grads = torch.randn(2, 5, 3, device=DEVICE), []
    for name in (backend, "reference"):
        torch.manual_seed(0)
        layer = spgru.LSTM(3, 4, backend=name, device=DEVICE)
        with torch.no_grad():
            spread = torch.linspace(-1, 1, 32, device=DEVICE)[::2]
            layer.bias_hh_l0.mean = torch.nn.Parameter(spread)
        value = x.clone().requires_grad_()
        cell = layer(value)[1][1]
        weight = torch.arange(20.0, device=DEVICE).view(1, 4, 5)
        (cell.mean.transpose(1, 2) * weight).sum().backward()
        grads.append(value.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_are_refused_not_wrong(backend: Any) -> None:
    layer = spgru.GRU(3, 4, backend=backend, device=DEVICE)
    x = torch.randn(4, 5, 3, device=DEVICE, requires_grad=True)
    output = layer(x)[0].mean.sum()
    with pytest.raises(RuntimeError, match="backend='reference' to differentiate twice"):
        torch.autograd.grad(output, x, create_graph=True)


# torch's own forward differentiation scripts a function when it is first used.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("frozen", [False, True])
def test_transformations_are_left_to_the_reference(frozen: bool) -> None:
    """torch.func, forward differentiation, compilers and subclasses work as without kernels."""
    layer = spgru.GRU(3, 4).requires_grad_(not frozen)
    x = torch.randn(2, 5, 3)
    expected = layer(x)[0].mean

    many = torch.func.vmap(lambda value: layer(value)[0].mean)(torch.stack([x, x]))
    torch.testing.assert_close(many[1], expected)
    stacked = {name: torch.stack([p.detach()] * 2) for name, p in layer.named_parameters()}
    ensemble = torch.func.vmap(
        lambda parameters: torch.func.functional_call(layer, parameters, (x,))[0].mean
    )(stacked)
    torch.testing.assert_close(ensemble[0], expected)

    with forward_ad.dual_level():
        dual = layer(forward_ad.make_dual(x, torch.ones_like(x)))[0].mean
        assert forward_ad.unpack_dual(dual).tangent.any()

    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x)[0].mean, expected)
    layer.backend = "triton"
    with pytest.raises(ValueError, match="a compiler, a transformation or a kind of tensor"):
        torch.func.vmap(lambda value: layer(value)[0].mean)(x[None])


def test_frozen_layers_take_other_parameters_at_once() -> None:
    """Weights swapped in and out by functional_call may come to lie at one another's address."""
    layer = spgru.GRU(3, 300)
    x, found = torch.ones(1, 2, 3), []
    for spread in range(-8, 2):
        parameters = {
            name: torch.full_like(value, float(spread))
            for name, value in layer.named_parameters()
            if name.startswith("spread_")
        }
        with spgru.frozen(layer):
            found.append(torch.func.functional_call(layer, parameters, (x,))[0].var.mean().item())
        del parameters
    assert all(before < after for before, after in itertools.pairwise(found))


def test_layers_of_16_bits_stay_what_they_are() -> None:
    """Outside autocast a bfloat16 layer gives bfloat16, so that layers can follow one another."""
    layer = spgru.GRU(3, 4, num_layers=2, dtype=torch.bfloat16, backend="triton", device=DEVICE)
    output, final = layer(torch.randn(2, 5, 3, dtype=torch.bfloat16, device=DEVICE))
    assert output.dtype == final.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [ConvGRUCell, ConvLSTMCell])
def test_outputs_of_a_convolution_are_their_own(kind: type[ConvCell]) -> None:
    output, final = kind(2, 3, 3).run(torch.randn(3, 2, 2, 4, 4))
    before = output.mean[-1].clone()
    for state in tree_moments(final):
        state.mean.mul_(0)
    assert torch.equal(output.mean[-1], before)


def test_recorded_neurons_are_the_references_work() -> None:
    layer = spgru.GRU(4, 3, backend="triton", device=DEVICE)
    x = torch.randn(5, 2, 4, device=DEVICE)
    recorded = spgru.trace(layer, x)["l0"]["state"]
    torch.testing.assert_close(recorded.mean, layer(x)[0].mean)
    assert spgru.audit(layer, x, draws=3) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_without_gradients_may_be_written_to(backend: Any) -> None:
    layer = spgru.LSTM(3, 16, backend=backend, device=DEVICE).requires_grad_(False)
    output, (h, c) = layer(torch.randn(4, 2, 3, device=DEVICE))
    before = c.mean.clone()
    learns = torch.ones(16, device=DEVICE, requires_grad=True)
    for part in (*output, *h):
        part.add_(learns)
    output.mean.sum().backward()
    assert learns.grad is not None
    assert torch.equal(c.mean, before)
    # What is kept with the output is the states it consists of, and one more.
    assert output.mean.untyped_storage().nbytes() <= 5 * 2 * 16 * 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traced_layers_run_the_reference() -> None:
    """A trace records torch's operations, and a kernel is none."""
    layer = spgru.GRU(3, 16, device=DEVICE).requires_grad_(False)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return layer(x)[0].mean

    x, other = torch.randn(2, 4, 2, 3, device=DEVICE)
    traced = torch.jit.trace(mean, x, check_trace=False)
    assert (traced(other) - mean(other)).abs().max() < 1e-6
    exported = make_fx(mean)(x)
    assert (exported(other) - mean(other)).abs().max() < 1e-6


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
    x = torch.randn(4, 2, 3, device=DEVICE)
    found, expected = layer(x)[0], truth(x.double())[0]
    for part, exact in zip(found, expected, strict=True):
        assert (part.double() - exact).norm() < 1e-6 * exact.norm()
        part.sum().backward(retain_graph=True)
        exact.sum().backward(retain_graph=True)
    for found_grad, exact_grad in zip(gradients(layer), gradients(truth), strict=True):
        assert (found_grad.double() - exact_grad).norm() < 1e-5 * exact_grad.norm()


def gradients(layer: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]


def test_a_chip_without_room_for_weights_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def launch(*_: Any, held: int, **__: Any) -> bool:
        tried.append(held)
        return held == 0

    kernels = persistent.Persistent(None, None, gates=3)
    monkeypatch.setattr(kernels, "_launch", launch, raising=False)
    monkeypatch.setattr(planning, "exact", lambda: False)
    weight = torch.empty(384, 128)
    assert kernels.forward(weight=weight, plan=planning.Plan(16, 16), rows=30, size=128)
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
        spgru.GRU(3, 16, backend="triton", device=DEVICE)(torch.randn(2, 2, 3, device=DEVICE))
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("backend", BACKENDS)
def test_batched_gradients_are_refused_in_a_sentence(backend: Any) -> None:
    layer = spgru.GRU(3, 4, backend=backend, device=DEVICE)
    x = torch.randn(2, 1, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="one gradient at a time"):
        torch.autograd.functional.jacobian(lambda v: layer(v)[0].mean, x, vectorize=True)


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
            f"spgru.recurrent.kernels.persistent.Persistent.{name}", lambda *_, **__: False
        )
    x = torch.randn(3, 2, 3, device=DEVICE)
    for module in (layer, truth):
        output, _ = module(x.to(next(module.parameters()).dtype))
        (output.mean.sum() + 10 * output.var.sum()).backward()
    for found, exact in zip(layer.parameters(), truth.parameters(), strict=True):
        assert (found.grad - exact.grad).norm() / exact.grad.norm() < 2e-6
