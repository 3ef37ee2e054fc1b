"""Who takes part: ours with every backend, `torch.nn`, sampling, other libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spgru.bench.contender import Absent, Contender, Made, network
from spgru.bench.peers import peers
from spgru.bench.problem import CELLS, Cell, Problem, ours_gradients, plain_gradients
from spgru.bench.sampling import sampling_contenders
from spgru.bench.shapes import Mode
from spgru.recurrent import BACKENDS

__all__ = ["make_contenders"]

OURS = tuple(backend for backend in BACKENDS if backend != "auto")
"""Backends that take part."""


def make_contenders(
    problem: Problem,
    mode: Mode,
    limit: float,
    cells: Sequence[Cell] = CELLS,
    with_peers: bool = True,
    backends: Sequence[str] = OURS,
) -> list[Made]:
    """All that take part in one case, and those that cannot, with the reason.

    In a series that shows growth only the main ones do: our GRU, `nn.GRU` and folded sampling.
    """
    grows = bool(problem.case.grows)
    cells = ("GRU",) if grows else cells
    made: list[Made] = []
    for cell in cells:
        for backend in backends:
            made += _ours(problem, cell, backend, mode, limit)
        made += _plain(problem, cell, mode, limit)
    if mode == "forward":
        made += sampling_contenders(problem, limit, looped=not grows)
    if with_peers and not grows:
        made += peers(problem, mode, limit)
    return made


def _moments(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    output, _ = layer(x)
    return output.mean, output.var


def _ours(problem: Problem, cell: Cell, backend: str, mode: Mode, limit: float) -> list[Made]:
    name = f"ours {cell}, {backend}"
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1":
        reason = "TRITON_INTERPRET=1: the time of the interpreter is not that of the kernels"
        return [Absent(name, "ours", cell, "refused", reason)]

    def make(graph: bool) -> Contender:
        return network(
            name, "ours", cell, problem.ours(cell, backend), _moments, ours_gradients,
            lambda: problem.truth(cell), problem, mode, limit, graph,
        )  # fmt: skip

    try:
        make(graph=False).work()
    except ValueError as refusal:
        return [Absent(name, "ours", cell, "refused", str(refusal))]
    except Exception as error:
        return [Absent(name, "ours", cell, "failed", f"{type(error).__name__}: {error}")]
    return [make(graph) for graph in _ways(problem)]


def _plain(problem: Problem, cell: Cell, mode: Mode, limit: float) -> list[Made]:
    return [
        network(
            f"nn.{cell}", "plain", cell, problem.plain(cell), lambda layer, x: (layer(x)[0],),
            plain_gradients, lambda: problem.plain_truth(cell), problem, mode, limit, graph,
        )
        for graph in _ways(problem)
    ]  # fmt: skip


def _ways(problem: Problem) -> tuple[bool, ...]:
    """Called, and on a GPU also as one graph, which is how training runs."""
    return (False, True) if problem.device.type == "cuda" else (False,)
