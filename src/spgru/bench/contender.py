"""A contender: something to time, and how to tell that it is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spgru.bench.check import Comparison, compare
from spgru.bench.problem import Answer, Cell, Problem
from spgru.bench.shapes import Mode
from spgru.runtime.device import GRAPH_WARMUP

__all__ = ["Absent", "Contender", "Kind", "Made", "bytes_of", "network"]

Kind = Literal["ours", "plain", "sampling", "peer"]
Outputs = Callable[[Any, Tensor], Sequence[Tensor]]
"""From a layer and x (T, B, I) to mean, or mean and variance, (T, B, H)"""


@dataclass(frozen=True)
class Contender:
    name: str
    kind: Kind
    cell: Cell
    work: Callable[[], Any]
    """what is timed"""
    check: Callable[[], list[Comparison]]
    """runs `work`, or its parts, and compares with the truth"""
    parameter_bytes: int
    repeats: int = 1
    """calls of `work` that make up the method; its time is multiplied by this"""
    has_memory: bool = True
    """whether the memory that `work` allocates can be counted"""
    release: Callable[[], None] = lambda: None
    """frees what the last `work` left, its gradients, so that those of the next are counted"""


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part."""

    name: str
    kind: Kind
    cell: Cell
    status: Literal["refused", "not installed", "skipped", "failed"]
    reason: str


Made = Contender | Absent
"""What comes of preparing a contender."""


def bytes_of(layer: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in layer.parameters())


def network(
    name: str,
    kind: Kind,
    cell: Cell,
    layer: nn.Module,
    outputs: Outputs,
    gradients: Callable[[Any], Answer],
    truth: Callable[[], Answer],
    problem: Problem,
    mode: Mode,
    limit: float,
    graph: bool = False,
) -> Contender:
    """A module that is called with x, or called and differentiated.

    Args:
        layer: for this contender alone
        gradients: of the layer's weights after a backward pass, as the truth orders them
        graph: replay a CUDA graph instead of calling; how much it holds is not counted
    """
    if mode == "forward":
        layer.eval().requires_grad_(False)
        work = _forward(layer, outputs, problem)
    else:
        layer.train()
        work = _training(layer, outputs, problem)
    if graph:
        name, work = f"{name}, graph", _captured(work, problem.device)

    def check() -> list[Comparison]:
        answer = dict(zip(("mean", "var"), work(), strict=False))
        if mode == "training":
            answer |= gradients(layer)
        return compare(answer, truth(), limit)

    return Contender(
        name, kind, cell, work, check, bytes_of(layer),
        has_memory=not graph, release=layer.zero_grad,
    )  # fmt: skip


def _forward(
    layer: nn.Module, outputs: Outputs, problem: Problem
) -> Callable[[], Sequence[Tensor]]:
    @torch.no_grad()
    def work() -> Sequence[Tensor]:
        return outputs(layer, problem.x)

    return work


def _training(
    layer: nn.Module, outputs: Outputs, problem: Problem
) -> Callable[[], Sequence[Tensor]]:
    parameters = list(layer.parameters())

    def work() -> Sequence[Tensor]:
        for parameter in parameters:
            parameter.grad = None
        values = outputs(layer, problem.x)
        # Gradients of a loss that is linear in the outputs: it costs no time itself.
        torch.autograd.backward(values, problem.cotangents[: len(values)])
        return [value.detach() for value in values]

    return work


def _captured(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The same work as one CUDA graph: recorded at the first call, then replayed."""
    graph: torch.cuda.CUDAGraph | None = None
    values: Any = None

    def replay() -> Any:
        nonlocal graph, values
        if graph is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(GRAPH_WARMUP):
                    work()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                values = work()
        graph.replay()
        return values

    return replay
