"""From the options of `spgru bench` to a `BenchConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spgru.bench.contenders import OURS
from spgru.bench.problem import CELLS
from spgru.bench.run import BenchConfig
from spgru.bench.shapes import Case, Shape, growth_cases, preset_cases
from spgru.bench.timing import QUICK, Effort
from spgru.runtime.device import choose_device

__all__ = ["make_bench_config"]

_QUICK_SHAPE = "8,10,32,32"


def make_bench_config(
    preset: str | None,
    shapes: Sequence[str],
    dtypes: Sequence[Any] | None,
    cells: Sequence[Any] | None,
    backends: Sequence[str] | None,
    device: str,
    threads: int,
    tf32: bool,
    peers: bool,
    quick: bool,
) -> BenchConfig:
    """See `spgru bench --help`; None for an option left out."""
    where = choose_device(device)
    if quick and preset is None and not shapes:
        shapes = [_QUICK_SHAPE]
    if preset is None:
        preset = "none" if shapes else "all"
    wanted = [Shape.parse(text) for text in shapes]
    cases = [Case(shape, dtype) for dtype in dtypes or ["float32"] for shape in wanted]
    if preset in ("issue", "all"):
        cases += preset_cases(where.type, dtypes)
    if preset in ("growth", "all"):
        cases += [
            case for dtype in dtypes or ["float32"] for case in growth_cases(where.type, dtype)
        ]
    return BenchConfig(
        list(dict.fromkeys(cases)),
        where,
        cells or CELLS,
        QUICK if quick else Effort(),
        tf32,
        threads,
        peers,
        backends or OURS,
    )
