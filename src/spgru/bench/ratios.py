"""Ratios of what one run measured, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from spgru.bench.shapes import BARS, Bar
from spgru.reporting.tables import Row

__all__ = ["Ratio", "Verdict", "judge", "ratios"]


class Ratio(NamedTuple):
    """One of ours over its counterpart of the same case and mode; None where not measured."""

    row: Row
    over_plain: float | None
    over_plain_graph: float | None
    sampling_over: float | None
    """the fastest form of MC-LSTM, over this"""
    memory_over_plain: float | None
    """weights, and what the work allocates at its peak"""


def _case(row: Row) -> tuple[Any, ...]:
    names = ("batch", "steps", "inputs", "hidden", "dtype", "grows", "mode")
    return tuple(row[name] for name in names)


def _seconds(row: Row | None) -> float | None:
    return None if row is None else row["seconds"]


def _memory(row: Row | None) -> float | None:
    if row is None or row["work_bytes"] is None:
        return None
    return float(row["work_bytes"] + row["parameter_bytes"])


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Every row of ours that has a time."""
    timed = [row for row in rows if row["status"] == "timed"]
    found = []
    for row in timed:
        if row["kind"] != "ours":
            continue
        beside = {other["contender"]: other for other in timed if _case(other) == _case(row)}
        plain = beside.get(f"nn.{row['cell']}")
        graph = beside.get(f"nn.{row['cell']}, graph")
        sampled = [other["seconds"] for other in beside.values() if other["kind"] == "sampling"]
        found.append(
            Ratio(
                row,
                _over(_seconds(row), _seconds(plain)),
                _over(_seconds(row), _seconds(graph)),
                _over(min(sampled, default=None), _seconds(row)),
                _over(_memory(row), _memory(plain)),
            )
        )
    return found


class Verdict(NamedTuple):
    bar: Bar
    ratio: float | None
    contender: str
    """of ours, whose ratio it is: the fastest"""
    alike: float | None = None
    """times only: over nn.GRU run the same way, in a graph where ours is"""

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "met" if self.bar.is_met(self.ratio) else "NOT met"


def judge(document: dict[str, Any], bars: Iterable[Bar] = BARS) -> list[Verdict]:
    """The bars of this kind of device."""
    everything = ratios(document["rows"])
    return [_judge(bar, everything) for bar in bars if bar.device == document["device"]]


def _judge(bar: Bar, everything: Sequence[Ratio]) -> Verdict:
    shape = bar.shape
    case = (shape.batch, shape.steps, shape.inputs, shape.hidden, bar.dtype, "", bar.mode)
    ours = [one for one in everything if one.row["cell"] == "GRU" and _case(one.row) == case]
    # The fastest of ours, or for memory the fastest whose memory is counted.
    ours.sort(key=lambda one: float(one.row["seconds"]))
    for one in ours:
        ratio = {
            "time over nn.GRU": one.over_plain,
            "MC-LSTM over ours": one.sampling_over,
            "memory over nn.GRU": one.memory_over_plain,
        }[bar.quantity]
        if ratio is not None:
            name = one.row["contender"]
            alike = one.over_plain_graph if name.endswith(", graph") else one.over_plain
            is_time = bar.quantity == "time over nn.GRU"
            return Verdict(bar, ratio, name, alike if is_time else None)
    return Verdict(bar, None, "")
