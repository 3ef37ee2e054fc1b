"""Training calls of a layer on a GPU, forward and backward, recorded as CUDA graphs and replayed.

A recorded call has one set of activations, so a graph serves one forward pass at a time: it is
taken until the backward pass that lets go of the activations (`retain_graph=False`), or until
nobody can ask for one any more. Calls meanwhile go through the layer's own code.

Weights may change in place, as optimisers change them: a graph reads them anew at every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.stateless import _reparametrize_module

from spgru.checks import is_transformed
from spgru.nn.layer import Layer
from spgru.nn.recordings import Call, Recordings, Signature, arguments, copies, describe

__all__ = ["replayed_training"]

# A training makes thousands; fewer are a test, or warm up for a graph of the user.
_CALLS_BEFORE = 8
# Lengths and batches that alternate, as at the end of an epoch.
_MOST = 2
# Gate values of a call: more keep the GPU busy while the host launches, and a graph with all the
# activations of a call would take more than a GB.
_MOST_VALUES = 2**25

Forward = Callable[[Any, Any], Any]

# Not an attribute of the layer: graphs can neither be copied nor pickled.
_recordings: WeakKeyDictionary[Layer, Recordings[_Graph]] = WeakKeyDictionary()


def replayed_training(layer: Any, forward: Forward, input: Any, hx: Any) -> Any:
    """What `forward(input, hx)` gives with gradients, by CUDA graphs where calls repeat.

    Args:
        layer: a `Recurrent`
        forward: the layer's own, which has no side effects and draws no random numbers
    """
    call = describe(layer, input, hx) if _is_possible() else None
    if call is None or _gate_values(layer, call.tensors[0]) > _MOST_VALUES:
        return forward(input, hx)
    sources = layer.weight_sources()
    if not all(_is_plain_leaf(source) for source in sources):
        return forward(input, hx)  # parametrized, pruned, or with hooks
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    if not parameters and not any(tensor.requires_grad for tensor in call.tensors):
        return forward(input, hx)
    call = call._replace(key=(*call.key, *parameters))
    recordings = _recordings.setdefault(layer, Recordings(_Addresses, _CALLS_BEFORE, _MOST))
    with recordings.lock:
        graph = recordings.graph_of(
            call, layer, sources, lambda: _Graph(layer, forward, call, parameters)
        )
        if graph is None or graph.is_taken:
            return forward(input, hx)
        use = _Use(graph, recordings, layer, forward, call.kinds, tuple(parameters))
        results = _Replay.apply(use, *call.tensors, *parameters.values())  # type: ignore[no-untyped-call]
    return graph.signature.result(results)


def _is_possible() -> bool:
    return not (
        torch.is_autocast_enabled("cuda")
        or torch.is_anomaly_enabled()
        # Checkpointing, for instance, must find the same tensors saved when it repeats a call.
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    )


def _gate_values(layer: Any, x: Tensor) -> int:
    rows = x.numel() // layer.input_size
    return int(rows * layer.num_layers * layer._directions * layer.gates * layer.hidden_size)


def _is_plain_leaf(tensor: Tensor) -> bool:
    # A hook would be recorded, and then called in every backward pass besides.
    return tensor.is_leaf and not tensor._backward_hooks


class _Addresses:
    """Weights by where they are: what they are may change."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._addresses = [tensor.data_ptr() for tensor in tensors]

    def is_current(self, tensors: list[Tensor]) -> bool:
        return self._addresses == [tensor.data_ptr() for tensor in tensors]


def _leaves(call: Call) -> list[Tensor]:
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]


class _Graph:
    """A recorded call: two graphs, forward and backward, that share the activations."""

    def __init__(
        self, layer: Layer, forward: Forward, call: Call, parameters: dict[str, Tensor]
    ) -> None:
        self.is_taken = False
        # Compiles and sets up what cannot be compiled or set up while recording.
        results, leaves, _ = self._run(layer, forward, call.kinds, _leaves(call), parameters)
        self._gradients = [torch.zeros_like(result) for result in results]
        self._differentiate(results, leaves)
        # Nodes of this pass belong to another stream and must not live on in the one recorded.
        del results, leaves
        inputs = _leaves(call)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # thread_local: other threads may go on using the GPU.
        with torch.cuda.graph(self._forward, capture_error_mode="thread_local"):
            run = self._run(layer, forward, call.kinds, inputs, parameters)
        results, leaves, self.signature = run
        with torch.cuda.graph(
            self._backward, pool=self._forward.pool(), capture_error_mode="thread_local"
        ):
            # retained: else what is computed last takes the memory of activations used first, and
            # a second backward pass would find them overwritten.
            self._found = self._differentiate(results, leaves, retain_graph=True)
        self._count = len(leaves)
        self._inputs = [tensor.detach() for tensor in inputs]
        self._results = [result.detach() for result in results]

    @staticmethod
    def _run(
        layer: Layer,
        forward: Forward,
        kinds: str,
        inputs: list[Tensor],
        parameters: dict[str, Tensor],
    ) -> tuple[list[Tensor], list[Tensor], Signature]:
        """Results, and the leaves they depend on: inputs, and aliases of the parameters.

        Aliases, because hooks, and nodes that add up gradients, belong to the caller.
        """
        aliases = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        with _weights_of(layer, aliases):
            results, signature = Signature.of(forward(*arguments(inputs, kinds)))
        return results, [*inputs, *aliases.values()], signature

    def _differentiate(
        self, results: list[Tensor], leaves: list[Tensor], **options: Any
    ) -> list[Tensor]:
        self._needed = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
        reached = [k for k, result in enumerate(results) if result.requires_grad]
        found = torch.autograd.grad(
            [results[k] for k in reached],
            [leaves[k] for k in self._needed],
            [self._gradients[k] for k in reached],
            allow_unused=True,
            materialize_grads=True,
            **options,
        )
        return [gradient.detach() for gradient in found]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        torch._foreach_copy_(self._inputs, list(tensors))
        self._forward.replay()
        return copies(self._results)

    def run_backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        for static, gradient in zip(self._gradients, gradients, strict=True):
            if gradient is None:
                static.zero_()
            else:
                static.copy_(gradient)
        self._backward.replay()
        found: list[Tensor | None] = [None] * self._count
        for k, gradient in zip(self._needed, copies(self._found), strict=True):
            found[k] = gradient
        return found


class _Use:
    """A forward pass by a graph, which is taken as long as a backward pass may come."""

    def __init__(
        self,
        graph: _Graph,
        recordings: Recordings[_Graph],
        layer: Layer,
        forward: Forward,
        kinds: str,
        names: tuple[str, ...],
    ) -> None:
        self.graph, self.lock = graph, recordings.lock
        self._layer, self._forward, self._kinds, self._names = layer, forward, kinds, names
        self._is_over = False
        graph.is_taken = True

    def end(self) -> None:
        if not self._is_over:
            self._is_over, self.graph.is_taken = True, False

    __del__ = end

    def inputs(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Without the parameters."""
        return tensors[: len(tensors) - len(self._names)]

    def differentiate(
        self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Gradients by the layer's own code, to be differentiated again or within a transform."""
        again = torch.is_grad_enabled()
        parameters = dict(zip(self._names, tensors[-len(self._names) :], strict=True))
        with torch.enable_grad(), _weights_of(self._layer, parameters):
            call = arguments(list(self.inputs(tensors)), self._kinds)
            results, _ = Signature.of(self._forward(*call))
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        needed = [k for k, tensor in enumerate(tensors) if tensor.requires_grad]
        found: list[Tensor | None] = [None] * len(tensors)
        answer = torch.autograd.grad(
            [result for result, _ in pairs],
            [tensors[k] for k in needed],
            [gradient for _, gradient in pairs],
            create_graph=again,
            allow_unused=True,
        )
        for k, gradient in zip(needed, answer, strict=True):
            found[k] = gradient
        return found


class _Replay(torch.autograd.Function):
    """Tensors of the call and parameters in, tensors of the results out."""

    @staticmethod
    def forward(ctx: Any, use: _Use, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.use = use
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(use.graph.run(use.inputs(tensors)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        use: _Use = ctx.use
        tensors = ctx.saved_tensors  # torch says so if they are gone
        if torch.is_grad_enabled() or is_transformed(*gradients):
            return None, *use.differentiate(tensors, gradients)
        with use.lock:
            found = use.graph.run_backward(gradients)
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                use.end()
        return None, *found


@contextmanager
def _weights_of(layer: Layer, parameters: dict[str, Tensor]) -> Iterator[None]:
    """Block in which the layer has these tensors for parameters."""
    with _reparametrize_module(layer, parameters):
        yield
