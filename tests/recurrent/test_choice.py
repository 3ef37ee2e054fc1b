"""Which backend runs when, what is refused, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, KERNELS, needs_compiled, tree_moments
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import spgru
from spgru.families import get
from spgru.functional import Affine
from spgru.functional.products import Convolution, Matrix
from spgru.models.conv_recurrent import ConvCell, ConvGRUCell, ConvLSTMCell
from spgru.nn.contexts import at_mean, sampling
from spgru.recurrent import explain, gru_cell, run
from spgru.recurrent.kernels.native import library

pytest.importorskip("triton")


REFUSED: list[tuple[Any, str]] = [
    (partial(spgru.GRU, reset_after=False), "no kernel for reset_after=False on GPUs"),
    (partial(spgru.GRU, rule="paper"), "no kernel for rule='paper'"),
    (partial(spgru.GRU, family="gamma"), "no kernel for family='gamma'"),
    (partial(spgru.GRU, dtype=torch.float64), "kernels compute in float32"),
    (partial(spgru.LSTM, proj_size=2), "no kernel for proj_size"),
    (partial(spgru.RNN, nonlinearity="relu"), "no kernel for nonlinearity='relu'"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_has_no_kernel_is_refused_by_name_and_done_by_auto(make: Any, reason: str) -> None:
    layer = make(4, 3, backend="triton", device=DEVICE)
    x = torch.rand(2, 1, 4, dtype=next(layer.parameters()).dtype, device=DEVICE)
    with pytest.raises(ValueError, match=f"backend='triton' is not possible: .*{reason}"):
        layer(x)
    layer.backend = "auto"
    assert layer(x)[0].var.min() >= 0


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="backend"):
        spgru.GRU(4, 3, backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend"):
        ConvGRUCell(1, 2, backend="fast")  # type: ignore[arg-type]


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
    with pytest.raises(ValueError, match="kernels cannot run inside a compiler, a transform"):
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
    assert all(before < after for before, after in pairwise(found))


@pytest.mark.parametrize("kind", [ConvGRUCell, ConvLSTMCell])
def test_outputs_of_a_convolution_are_their_own(kind: type[ConvCell]) -> None:
    output, final = kind(2, 3, 3).run(torch.randn(3, 2, 2, 4, 4))
    before = output.mean[-1].clone()
    for state in tree_moments(final):
        state.mean.mul_(0)
    assert torch.equal(output.mean[-1], before)


@pytest.mark.parametrize("backend", KERNELS)
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


@needs_compiled
def test_the_compiled_backend_refuses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = spgru.GRU(4, 3, backend="compiled")
    x = torch.randn(2, 1, 4)
    with pytest.raises(ValueError, match="x is on meta, and it is made for CPUs"):
        layer.to("meta")(x.to("meta"))
    layer = spgru.GRU(4, 3, backend="compiled")
    monkeypatch.setattr(library, "obstacle", lambda: "there is no C compiler")
    with pytest.raises(ValueError, match="there is no C compiler; use backend='auto'"):
        layer(x)


def test_a_gpu_is_needed_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    layer = spgru.GRU(4, 3, backend="triton")
    with pytest.raises(ValueError, match="x is on cpu, and Triton needs a GPU"):
        layer(torch.randn(2, 1, 4))


@pytest.mark.parametrize("backend", KERNELS)
def test_recording_is_refused_by_kernels_and_done_by_auto(backend: Any) -> None:
    layer = spgru.GRU(4, 3, backend=backend, device=DEVICE)
    x = torch.randn(5, 2, 4, device=DEVICE)
    for record in (spgru.trace, partial(spgru.audit, draws=3)):
        with pytest.raises(ValueError, match=r"neurons are recorded.*use backend='auto' or"):
            record(layer, x)
    layer.backend = "auto"
    recorded = spgru.trace(layer, x)["l0"]["state"]
    torch.testing.assert_close(recorded.mean, layer(x)[0].mean)


@needs_compiled
def test_weights_that_are_numbers_are_refused_by_the_compiled_kernels() -> None:
    layer = spgru.GRU(4, 3, backend="compiled")
    x = torch.randn(5, 2, 4)
    for mode in (at_mean(layer), sampling(layer, torch.Generator())):
        with mode, pytest.raises(ValueError, match="no kernel for weights that are drawn or held"):
            layer(x)


def test_an_lstm_at_its_means_is_refused_by_triton() -> None:
    layer = spgru.LSTM(4, 3, backend="triton", device=DEVICE)
    with at_mean(layer), pytest.raises(ValueError, match="no kernel for weights that are drawn or"):
        layer(torch.randn(5, 2, 4, device=DEVICE))


class DilatedConvolution:
    """A product that kernels do not know: that of `SameConvolution`, with holes."""

    def __call__(self, x: Any, weight: Any, bias: Any) -> Any:
        images = torch.nn.functional.conv2d(x.movedim(-1, 1), weight, bias, padding=2, dilation=2)
        return images.movedim(1, -1)


class AnotherMatrix(Matrix):
    """Kernels cannot know what a subclass changes."""


@pytest.mark.parametrize("product", [DilatedConvolution(), Convolution(padding=1), AnotherMatrix()])
def test_other_products_are_refused_by_kernels_and_done_by_auto(product: Any) -> None:
    shape = (9, 3, 3, 3) if not isinstance(product, Matrix) else (9, 3)
    hidden = Affine.of(spgru.Moments(torch.randn(shape), torch.rand(shape)), None, product)
    cell = gru_cell(hidden, 3, get("gaussian"))
    x, h = spgru.certain(torch.randn(2, 1, 5, 5, 9)), spgru.certain(torch.randn(1, 5, 5, 3))
    with pytest.raises(ValueError, match=f"products of the kind {type(product).__name__}"):
        run(cell, x, (h,), backend=KERNELS[0])
    assert explain(cell, x, (h,)).backend == "reference"
    if isinstance(product, DilatedConvolution):
        found = run(cell, x, (h,)).output
        expected = cell.step(x[0], (h,))["state"]
        torch.testing.assert_close(found[0].mean, expected.mean)


@needs_compiled
def test_explain_names_the_backend_and_the_reason() -> None:
    hidden = Affine.of(spgru.Moments(torch.randn(9, 3), torch.rand(9, 3)))
    x, h = spgru.certain(torch.randn(2, 1, 9)), spgru.certain(torch.randn(1, 3))

    def reason(**options: Any) -> tuple[str, str | None]:
        family, rule = get(options.pop("family", "gaussian")), options.pop("rule", "exact")
        value = options.pop("x", x)
        return explain(gru_cell(hidden, 3, family, rule), value, (h,), **options)

    assert reason(backend="compiled") == ("compiled", None)
    assert reason() == ("compiled", None)
    assert reason(backend="reference") == ("reference", "backend='reference' was asked for")
    assert reason(rule="paper") == ("reference", "there is no kernel for rule='paper'")
    assert reason(family="gamma")[1] == "there is no kernel for family='gamma'"
    assert "recorded" in str(reason(record=True)[1])
    assert "float64" in str(reason(x=x.to(torch.float64))[1])


class Subclass(Tensor):
    """Kernels do not look into it."""


@needs_compiled
def test_backend_for_answers_for_all_layers_and_directions() -> None:
    gru = spgru.GRU(3, 4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    assert gru.backend_for(x) == ("compiled", None)
    other = gru.weight_hh_l1_reverse.detach().as_subclass(Subclass)
    gru.weight_hh_l1_reverse = torch.nn.Parameter(other)
    choice = gru.backend_for(x)
    assert choice.backend == "reference"
    assert str(choice.reason).startswith("layer l1_reverse: kernels cannot run inside a compiler")
    gru.backend = "compiled"
    for ask in (gru, gru.backend_for):
        with pytest.raises(ValueError, match="backend='compiled' is not possible"):
            ask(x)
    gru.backend = "reference"
    assert gru.backend_for(x).reason == "backend='reference' was asked for"


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_backend_for_refuses_what_a_call_refuses(name: str) -> None:
    layer = getattr(spgru, name)(3, 4, num_layers=2)
    x, h = torch.randn(5, 2, 3), torch.zeros(2, 2, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.unsqueeze(-1), [5, 4])

    def state(h: Tensor) -> Any:
        return h if name == "GRU" else (h, h)

    for arguments in (
        (x[..., :2],),
        (x.double(),),
        (x[0, 0],),
        (x[None],),
        (x[:0],),
        (x.numpy(),),
        (packed,),
        (spgru.Moments(x, -torch.ones_like(x)),),
        (x, state(h[:1])),
        (x, state(h.double())),
        (x[:, 0], state(h)),
    ):
        with pytest.raises((ValueError, TypeError)) as of_call:
            layer(*arguments)
        with pytest.raises(of_call.type) as of_question:
            layer.backend_for(*arguments)
        assert str(of_question.value) == str(of_call.value)
    for arguments in ((x[:, 0], state(h[:, 0])), (x, state(h)), (x[:, 0],)):
        layer(*arguments)
        assert layer.backend_for(*arguments) == layer.backend_for(x)


def test_asking_for_the_backend_draws_nothing() -> None:
    x = spgru.Moments(torch.zeros(5, 2, 3), torch.ones(5, 2, 3))
    for layer, value in ((spgru.GRU(3, 4), x), (spgru.GRUCell(3, 4), x[0])):
        generator = torch.Generator().manual_seed(0)
        with sampling(layer, generator, every_step=True):
            before = generator.get_state()
            assert "drawn" in str(layer.backend_for(value).reason)
            assert torch.equal(generator.get_state(), before)


SLOW = """
import warnings
import torch, spgru
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        output, _ = spgru.GRU(3, 4)(torch.randn(2, 1, 3))
assert output.var.min() > 0
print(len(caught), *[str(warning.message) for warning in caught])
try:
    spgru.GRU(3, 4, backend="compiled")(torch.randn(2, 1, 3))
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="a matter of CPUs")
def test_a_machine_without_a_compiler_says_once_why_it_is_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SLOW], env={**os.environ, "CC": "/nonexistent -m64"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    reason = "CC names '/nonexistent', which is no program here; install or unset it"
    assert done.stdout.splitlines() == [
        f"1 spgru runs recurrent layers by its slow reference: {reason}",
        f"backend='compiled' is not possible: {reason}; use backend='auto' or 'reference'",
    ], done.stderr
