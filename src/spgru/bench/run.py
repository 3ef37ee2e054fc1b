"""Check, then time, then count memory, case by case."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from spgru.bench.check import limit_for, worst
from spgru.bench.contender import Absent, Contender, Made
from spgru.bench.contenders import OURS, make_contenders
from spgru.bench.problem import CELLS, Cell, Problem
from spgru.bench.shapes import MODES, Case, Mode
from spgru.bench.timing import Effort, take_turns
from spgru.reporting.tables import Row
from spgru.runtime.memory import peak_bytes
from spgru.runtime.precision import float32_products
from spgru.runtime.provenance import provenance

__all__ = ["FIELDS", "BenchConfig", "measure"]

FIELDS = (
    "batch", "steps", "inputs", "hidden", "dtype", "grows", "mode", "contender", "kind", "cell",
    "status", "reason", "checked", "error", "limit", "seconds", "least", "largest", "samples",
    "repeats", "work_bytes", "parameter_bytes",
)  # fmt: skip
_PACKAGES = (
    "triton", "numpy", "blitz-bayesian-pytorch", "bayesian-torch", "laplace-torch", "pytagi",
)  # fmt: skip


@dataclass(frozen=True)
class BenchConfig:
    """What to measure and how.

    Args:
        tf32: whether a GPU may multiply float32 in TF32
        threads: of a CPU
        peers: whether other libraries take part
        backends: of our layers
    """

    cases: Sequence[Case]
    device: torch.device
    cells: Sequence[Cell] = CELLS
    effort: Effort = field(default_factory=Effort)
    tf32: bool = True
    threads: int = 2
    peers: bool = True
    backends: Sequence[str] = OURS

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 products round to TF32: asked for, and on a GPU."""
        return self.tf32 and self.device.type == "cuda"


def measure(
    config: BenchConfig,
    command: str = "",
    say: Callable[[str], None] = print,
    make: Callable[..., list[Made]] = make_contenders,
) -> dict[str, Any]:
    """Everything a report is made of: where it comes from, and one row for each contender.

    Args:
        command: what was typed, for the record
        say: called with a line for each case
        make: makes the contenders
    """
    if not config.cases:
        raise ValueError("there is no case to measure; give a shape or a preset")
    rows: list[Row] = []
    with _prepared(config):
        origin = provenance(config.device) | _versions(config.device)
        start = time.perf_counter()
        try:
            for case, mode in itertools.product(config.cases, MODES):
                found = _measure_case(case, mode, config, make)
                rows += found
                timed = sum(row["status"] == "timed" for row in found)
                label = f"{case.shape} {case.dtype} {mode}"
                elapsed = time.perf_counter() - start
                say(f"{label}: {timed} of {len(found)} timed, {elapsed:.0f} s so far")
        except KeyboardInterrupt:
            if not rows:
                raise
            say("interrupted; what was measured until now is reported")
            command += " (interrupted)"
    return {
        "command": command,
        **origin,
        "device": config.device.type,
        "threads": config.threads,
        "tf32": config.uses_tf32,
        "seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }


@contextmanager
def _prepared(config: BenchConfig) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        on_gpu = config.device.type == "cuda"
        with (
            torch.cuda.device(config.device) if on_gpu else nullcontext(),
            float32_products(config.uses_tf32),
        ):
            yield
    finally:
        torch.set_num_threads(threads)


def _versions(device: torch.device) -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return versions


def _measure_case(
    case: Case, mode: Mode, config: BenchConfig, make: Callable[..., list[Made]]
) -> list[Row]:
    problem = Problem(case, config.device)
    limit = limit_for(problem.dtype, config.uses_tf32)
    made = make(problem, mode, limit, config.cells, config.peers, config.backends)
    rows = {one.name: _checked(one, case, mode) for one in made}
    fine = {one.name: one for one in made if isinstance(one, Contender) and not _verdict(rows, one)}
    works = {name: one.work for name, one in fine.items()}
    with ExitStack() as blocks:
        for one in fine.values():
            blocks.enter_context(one.block())
        times = take_turns(works, config.device, config.effort, problem.refresh)
    for name, one in fine.items():
        seconds = [one.repeats * value for value in times[name]]
        rows[name] |= {
            "status": "timed",
            "seconds": statistics.median(seconds),
            "least": min(seconds),
            "largest": max(seconds),
            "samples": len(seconds),
            "repeats": one.repeats,
            "work_bytes": _work_bytes(one, config.device),
            "parameter_bytes": one.parameter_bytes,
        }
    del problem, made, fine, works
    gc.collect()
    if config.device.type == "cuda":
        torch.cuda.empty_cache()
    return list(rows.values())


def _work_bytes(contender: Contender, device: torch.device) -> int | None:
    if not contender.has_memory:
        return None
    contender.release()
    with contender.block():
        return peak_bytes(contender.work, device)


def _verdict(rows: dict[str, Row], contender: Contender) -> str:
    """The status of a checked contender; empty if it may be timed."""
    return str(rows[contender.name]["status"])


def _checked(one: Made, case: Case, mode: Mode) -> Row:
    """The row of a contender after its check; the status is empty if it passed."""
    shape = case.shape
    row: Row = dict.fromkeys(FIELDS)
    row |= {
        "batch": shape.batch,
        "steps": shape.steps,
        "inputs": shape.inputs,
        "hidden": shape.hidden,
        "dtype": case.dtype,
        "grows": case.grows,
        "mode": mode,
        "contender": one.name,
        "kind": one.kind,
        "cell": one.cell,
        "status": "",
        "reason": "",
    }
    if isinstance(one, Absent):
        return row | {"status": one.status, "reason": _one_line(one.reason)}
    try:
        with one.block():
            comparison = worst(one.check())
    except Exception as error:  # listed, and the others are still measured
        return row | {"status": "failed", "reason": _one_line(f"{type(error).__name__}: {error}")}
    row |= {"checked": comparison.what, "error": comparison.error, "limit": comparison.limit}
    if not comparison.is_fine:
        what, off, limit = comparison
        reason = f"{what} is off by {off:.2g}, allowed is {limit:g}"
        row |= {"status": "wrong", "reason": reason}
    return row


def _one_line(text: str, most: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
