"""Tables and figures of a run, on the screen and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spgru.bench.pictures import save_growth, save_times
from spgru.bench.ratios import judge, ratios
from spgru.bench.run import FIELDS
from spgru.reporting.markdown import number, table
from spgru.reporting.tables import Row, to_csv
from spgru.runtime.storage import write_whole

__all__ = ["summary", "write"]

_ORIGIN = ("command", "hardware", "python", "torch", "cuda", "cudnn", "commit", "tf32", "seconds")


def write(document: dict[str, Any], folder: Path) -> list[Path]:
    """Files bench.csv, bench.json, bench.md and figures; without matplotlib no figures.

    Args:
        document: what `measure` returned, or what bench.json holds
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "bench.csv": to_csv(document["rows"], FIELDS),
        "bench.json": json.dumps(document, indent=1) + "\n",
        "bench.md": _markdown(document),
    }
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    written = [folder / name for name in texts]
    try:
        written += save_times(document, folder) + save_growth(document, folder)
    except ModuleNotFoundError as error:
        print(f"no figures: {error}")
    return written


def _shape(row: Row) -> str:
    return ",".join(str(row[name]) for name in ("batch", "steps", "inputs", "hidden"))


def _megabytes(row: Row) -> object:
    if row["work_bytes"] is None:
        return None
    return (row["work_bytes"] + row["parameter_bytes"]) / 1e6


def _times(rows: list[Row]) -> str:
    header = [
        "B,T,I,H", "dtype", "mode", "contender", "ms, median", "least to largest",
        "MB with weights", "largest error (allowed)",
    ]  # fmt: skip
    cells = []
    for row in rows:
        start = [_shape(row), row["dtype"], row["mode"], row["contender"]]
        if row["status"] == "timed":
            extent = f"{number(1e3 * row['least'])} to {number(1e3 * row['largest'])}"
            error = f"{row['checked']} {row['error']:.1e} ({row['limit']:g})"
            cells.append([*start, 1e3 * row["seconds"], extent, _megabytes(row), error])
        else:
            cells.append([*start, row["status"], row["reason"], None, None])
    return table(header, cells)


def _ratios(document: dict[str, Any]) -> str:
    header = [
        "B,T,I,H", "dtype", "mode", "ours", "ms", "/ torch.nn", "/ torch.nn in a graph",
        "MC-LSTM / ours", "memory / torch.nn",
    ]  # fmt: skip
    cells = [
        [
            _shape(one.row),
            one.row["dtype"],
            one.row["mode"],
            one.row["contender"].removeprefix("ours "),
            1e3 * one.row["seconds"],
            one.over_plain,
            one.over_plain_graph,
            one.sampling_over,
            one.memory_over_plain,
        ]
        for one in ratios(document["rows"])
    ]
    return table(header, cells)


def _bars(document: dict[str, Any]) -> str:
    header = [
        "B,T,I,H",
        "dtype",
        "mode",
        "ratio",
        "must",
        "found",
        "by",
        "over nn.GRU run alike",
        "",
    ]
    verdicts = judge(document)
    if all(verdict.ratio is None for verdict in verdicts):
        return "None of what has a bar was measured."
    cells = []
    for verdict in verdicts:
        bar = verdict.bar
        sign = "≥" if bar.quantity == "MC-LSTM over ours" else "≤"
        cells.append(
            [
                str(bar.shape), bar.dtype, bar.mode, bar.quantity, f"{sign} {bar.limit:g}",
                verdict.ratio, verdict.contender, verdict.alike, verdict.word,
            ]
        )  # fmt: skip
    return table(header, cells)


def summary(document: dict[str, Any]) -> str:
    """What to print: times, then ratios, then the bars."""
    return "\n\n".join([_times(document["rows"]), _ratios(document), _bars(document)])


def _markdown(document: dict[str, Any]) -> str:
    single = [row for row in document["rows"] if not row["grows"]]
    series = [row for row in document["rows"] if row["grows"]]
    origin = [[name, document[name]] for name in _ORIGIN if name in document]
    hidden = {*_ORIGIN, "rows", "device"}
    origin += [[name, value] for name, value in document.items() if name not in hidden]
    parts = [
        "# What uncertainty costs",
        "Every contender was compared with float64 before it was timed; one that failed has no "
        "time. All of a case took turns in one process: ratios travel between machines, times do "
        "not. `forward` is without gradients and with frozen weights, `training` forward and "
        "backward. Memory is that of the weights and of what the work allocates at its peak"
        + (" (on a CPU of the results of operations, not their scratch space)."
           if document["device"] == "cpu" else "."),
        "## Bars", _bars(document),
    ]  # fmt: skip
    if single:
        parts += ["## Ratios", _ratios({**document, "rows": single})]
        parts += ["## Times", _times(single), "![times](times.png)"]
    if series:
        parts += ["## Growth", "![growth](growth.png)", _times(series)]
    parts += ["## How this was made", table(["", ""], origin)]
    return "\n\n".join(parts) + "\n"
