"""`torch.compile` sees a layer over time as one operator: quick, for any length, equal to eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import spgru
from spgru import Moments
from spgru.families import Gamma, Gaussian
from spgru.nn import contexts


class Network(nn.Module):
    def __init__(self, recurrent: spgru.nn.sequence.Recurrent, features: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, spgru.Linear(features, 2)

    def forward(self, x: Any, hx: Any = None) -> tuple[Moments, Any]:
        out, final = self.recurrent(x, hx)
        return self.head(out), final


def tensors_of(result: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(result)


def gradients(module: nn.Module, call: Any, *inputs: Any) -> list[Tensor]:
    """Of a function that no symmetry makes 0, with respect to all parameters and inputs."""
    leaves = [leaf for leaf in (*module.parameters(), *tensors_of(inputs)) if leaf.requires_grad]
    total = sum((part * part.detach().cos()).sum() for part in tensors_of(call(*inputs)))
    return list(torch.autograd.grad(total, leaves))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


CASES = {
    "gru": lambda: (spgru.GRU(3, 5), 5),
    "gru, two layers, both directions": lambda: (
        spgru.GRU(3, 5, num_layers=2, bidirectional=True),
        10,
    ),
    "gru, reset before": lambda: (spgru.GRU(3, 5, reset_after=False), 5),
    "gru, reference": lambda: (spgru.GRU(3, 5, backend="reference"), 5),
    "gru, paper": lambda: (spgru.GRU(3, 5, rule="paper"), 5),
    "gru, float64": lambda: (spgru.GRU(3, 5, dtype=torch.float64), 5),
    "gru, no bias": lambda: (spgru.GRU(3, 5, bias=False), 5),
    "lstm": lambda: (spgru.LSTM(3, 5), 5),
    "lstm, projected, both directions": lambda: (
        spgru.LSTM(3, 5, proj_size=2, bidirectional=True),
        4,
    ),
    "rnn": lambda: (spgru.RNN(3, 5), 5),
    "rnn, relu": lambda: (spgru.RNN(3, 5, nonlinearity="relu"), 5),
    "gru, gamma": lambda: (spgru.GRU(3, 5, family=Gamma(c=0.7, gamma=1.5)), 5),
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_values_and_gradients_are_those_of_eager(case: str) -> None:
    recurrent, features = CASES[case]()
    dtype = next(recurrent.parameters()).dtype
    network = Network(recurrent, features).to(dtype)
    x = Moments(torch.rand(6, 4, 3, dtype=dtype), 0.1 + torch.rand(6, 4, 3, dtype=dtype))
    x.mean.requires_grad_(), x.var.requires_grad_()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, backend=counter, fullgraph=True)
    # With and without gradients to come, kernels round differently: 3e-7 were measured.
    for got, wanted in zip(tensors_of(compiled(x)), tensors_of(network(x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    frames = counter.frame_count  # may be 2: Dynamo itself may start over within one compilation
    got, wanted = gradients(network, compiled, x), gradients(network, network, x)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert counter.frame_count == frames
    assert counter.op_count / frames < 120  # one node for all steps; unrolled there are 1,500


def test_lengths_and_batch_sizes_do_not_recompile() -> None:
    network = Network(spgru.GRU(3, 5), 5)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(network, backend=counter, fullgraph=True, dynamic=True)
    for length, batch in ((6, 4), (9, 4), (9, 7), (40, 2)):
        x = torch.randn(length, batch, 3)
        torch.testing.assert_close(compiled(x)[0].mean, network(x)[0].mean, rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1


def test_unasked_only_the_second_length_recompiles() -> None:
    """Dynamo takes a size for a constant until it has seen another one, whatever is compiled."""
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(Network(spgru.GRU(3, 5), 5), backend=counter, fullgraph=True)
    frames = []
    for length in (6, 9, 12, 40):
        compiled(torch.randn(length, 4, 3))
        frames.append(counter.frame_count)
    assert frames == [1, 2, 2, 2]


def test_a_marked_length_does_not_recompile() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(Network(spgru.GRU(3, 5), 5), backend=counter, fullgraph=True)
    for length in (6, 9):
        x = torch.randn(length, 4, 3)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        compiled(x)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # inductor uses torch.jit
def test_inductor_compiles_and_trains() -> None:
    network = Network(spgru.GRU(3, 5), 5)
    compiled = torch.compile(network, fullgraph=True)
    x = torch.randn(6, 4, 3, requires_grad=True)
    for got, wanted in zip(tensors_of(compiled(x)), tensors_of(network(x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    got, wanted = gradients(network, compiled, x), gradients(network, network, x)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_given_state_and_stream_are_those_of_eager() -> None:
    gru = spgru.GRU(3, 5, batch_first=True)
    x = torch.randn(4, 6, 3)
    hx = Moments(torch.randn(1, 4, 5), torch.rand(1, 4, 5))
    compiled = torch.compile(gru, backend="aot_eager", fullgraph=True)
    step = torch.compile(gru.step, backend="aot_eager", fullgraph=True)
    for got, wanted in ((compiled(x, hx), gru(x, hx)), (step(x[:, 0], hx), gru.step(x[:, 0], hx))):
        for a, b in zip(tensors_of(got), tensors_of(wanted), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_frozen_weights_get_no_gradients_and_inputs_do() -> None:
    gru = spgru.GRU(3, 5).requires_grad_(False)
    x = torch.randn(6, 4, 3, requires_grad=True)
    compiled = torch.compile(gru, backend="aot_eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(x)[0].var.sum(), x)
    (wanted,) = torch.autograd.grad(gru(x)[0].var.sum(), x)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cell", [spgru.GRU, spgru.LSTM])
def test_autocast_is_that_of_eager(cell: Any) -> None:
    layer = cell(3, 5)
    x = torch.randn(6, 4, 3)

    def run(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(tensors_of(compiled(x)), tensors_of(run(x)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_weights_at_their_means_are_those_of_eager() -> None:
    gru = spgru.GRU(3, 5)
    x = torch.randn(6, 4, 3)
    compiled = torch.compile(gru, backend="aot_eager", fullgraph=True)
    compiled(x)
    with contexts.at_mean(gru):
        for got, wanted in zip(tensors_of(compiled(x)), tensors_of(gru(x)), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        assert not compiled(x)[0].var.any()


def test_drawn_weights_are_those_of_eager() -> None:
    """Not as one graph: Dynamo does not trace draws with a generator, and says so."""
    gru = spgru.GRU(3, 5)
    x = torch.randn(6, 4, 3)
    compiled = torch.compile(gru, backend="eager")
    for seed in (0, 1):
        with contexts.sampling(gru, torch.Generator().manual_seed(seed)):
            torch.testing.assert_close(compiled(x)[0].mean, gru(x)[0].mean, rtol=1e-5, atol=1e-6)


def test_recorded_neurons_are_those_of_eager() -> None:
    gru = spgru.GRU(3, 5)
    x = torch.randn(3, 4, 3)
    compiled = torch.compile(gru, backend="eager", fullgraph=True)
    with contexts.recording(gru) as records:
        compiled(x)
    wanted = spgru.trace(gru, x)["l0"]
    (record,) = records[""]
    for name, value in wanted.items():
        for a, b in zip(record.neurons[name], value, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forward_ad uses torch.jit
@pytest.mark.parametrize("name", ["vmap", "grad", "jvp"])
def test_transforms_inside_are_those_of_eager(name: str) -> None:
    """Unrolled: an operator has no batching rule, and would drop tangents."""
    rnn = spgru.RNN(3, 5)
    x = torch.randn(2, 2, 4, 3)

    def run(x: Tensor) -> Tensor:
        if name == "vmap":
            return torch.func.vmap(lambda value: rnn(value)[0].mean)(x)
        if name == "grad":
            return torch.func.grad(lambda value: rnn(value)[0].var.sum())(x[0])
        return torch.func.jvp(lambda value: rnn(value)[0].mean, (x[0],), (x[1],))[1]

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), run(x), rtol=1e-5, atol=1e-6)


def test_checkpointing_inside_is_that_of_eager() -> None:
    gru = spgru.GRU(3, 5)
    x = torch.randn(6, 4, 3)

    def run(x: Tensor) -> Tensor:
        output: Tensor = checkpoint(lambda value: gru(value)[0].var, x, use_reentrant=False)
        return output

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for a, b in zip(gradients(gru, compiled, x), gradients(gru, run, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Other(Gaussian):
    """A family that the operator does not know."""

    def candidate(self, x: Any, rule: Any = "exact") -> Any:
        return super().gate(x, rule)


def test_families_that_are_not_ours_are_unrolled() -> None:
    gru = spgru.GRU(3, 5, family=Other(), backend="reference")
    x = torch.randn(2, 4, 3)
    compiled = torch.compile(gru, backend="eager", fullgraph=True)
    for a, b in zip(tensors_of(compiled(x)), tensors_of(gru(x)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_an_impossible_backend_is_refused_with_the_reason() -> None:
    gru = spgru.GRU(3, 5, dtype=torch.float64, backend="compiled")
    compiled = torch.compile(gru, backend="eager", fullgraph=True)
    with pytest.raises(ValueError, match="float64"):
        compiled(torch.randn(2, 4, 3, dtype=torch.float64))


def test_the_operators_obey_the_rules_of_torch() -> None:
    """Fake results have the shapes, dtypes and strides of real ones; no memory is shared."""
    from spgru.recurrent.operator import Description

    call = Description("lstm", "tanh", "gaussian", 0.0, 0.0, "exact", "matrix", "auto", True, None)
    shapes = ((6, 4, 20), (4, 5), (4, 5), (20, 5), (20,))
    tensors = [part for shape in shapes for part in (torch.randn(shape), torch.rand(shape))]
    tensors += [torch.rand(20), torch.rand(5)]  # a gain, a coherence
    torch.library.opcheck(
        torch.ops.spgru.scan,
        ([tensor.requires_grad_() for tensor in tensors], "MMMMM----T--T", *call),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_second_derivatives_of_a_compiled_layer_are_refused() -> None:
    gru, x = spgru.GRU(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    output = torch.compile(gru, backend="eager")(x)[0]
    with pytest.raises(
        RuntimeError, match=r"call it without torch\.compile to differentiate twice"
    ):
        torch.autograd.grad(output.var.sum(), x, create_graph=True)
