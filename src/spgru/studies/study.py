"""What every study is, and the folder it leaves: numbers, figures, report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spgru.reporting.markdown import table
from spgru.reporting.tables import to_csv
from spgru.runtime.storage import write_whole
from spgru.studies.runs import Member, Settings

__all__ = [
    "RESULTS", "Results", "Row", "Study", "findings", "read_results", "write_report",
    "write_results",
]  # fmt: skip

RESULTS = "results.json"

Row = dict[str, Any]
"""Names and plain values: a line of a table."""
Results = dict[str, list[Row]]
"""All numbers of a study, as tables by name."""


@dataclass(frozen=True)
class Study:
    """One experiment of the paper. Training comes before, see `spgru.studies.runs`."""

    name: str
    title: str
    members: Callable[[Settings], list[Member]]
    """the trained networks it needs"""
    measure: Callable[[Settings, Path], Results]
    """all numbers; also leaves the pictures that need a network in the folder"""
    draw: Callable[[Results, Path], None]
    """figures that need the numbers alone"""
    report: Callable[[Results], str]
    """what was found, from the numbers alone, in Markdown"""
    divisible: bool = False
    """whether some of its networks make a report; else it holds them against each other"""


def write_results(
    study: Study, settings: Settings, results: Results, origin: Mapping[str, Any]
) -> None:
    """results.json, with everything that made it, and the configurations as files of their own."""
    folder = settings.folder(study.name)
    members = study.members(settings)
    configs = {member.name: settings.used_config(member) for member in members}
    for name, config in configs.items():
        # JSON is YAML: `spgru train` takes these files.
        _write_json(folder / "configs" / f"{name}.json", config)
    document = {
        "study": study.name,
        "scale": asdict(settings.scale),
        "seeds": sorted({member.seed for member in members}),
        **origin,
        "trained": {member.name: settings.origin(member) for member in members},
        "configs": configs,
        "results": _without_nan(results),
    }
    _write_json(folder / RESULTS, document)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _without_nan(results: Results) -> Results:
    """JSON has neither NaN nor infinity: what cannot be told is null."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {
        name: [{key: plain(value) for key, value in row.items()} for row in rows]
        for name, rows in results.items()
    }


def read_results(folder: Path) -> dict[str, Any]:
    """What `write_results` wrote.

    Raises:
        ValueError: it is not there, or damaged.
    """
    path = folder / RESULTS
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); run the study first") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); run the study again") from error
    if not isinstance(document, dict) or not {"study", "results"} <= set(document):
        raise ValueError(f"{path} holds no results of a study; run the study again")
    return document


def write_report(study: Study, folder: Path) -> Path:
    """Tables as CSV, figures and report.md, from results.json alone.

    Returns:
        path of the report
    """
    document = read_results(folder)
    results: Results = document["results"]
    for name, rows in results.items():
        text = to_csv(rows, list(rows[0])) if rows else ""
        write_whole(folder / f"{name}.csv", text.encode())
    study.draw(results, folder)
    tables = ", ".join(f"[{name}.csv]({name}.csv)" for name in results)
    parts = [
        f"# {study.title}",
        study.report(results).strip(),
        "## How this was made",
        _origin(document),
        *_trained(document),
        f"All numbers: {tables}; together with all settings: [{RESULTS}]({RESULTS}). "
        "Training configurations: [configs](configs).",
    ]
    path = folder / "report.md"
    write_whole(path, ("\n\n".join(parts) + "\n").encode())
    return path


def _origin(document: Mapping[str, Any]) -> str:
    wanted = ("command", "hardware", "python", "torch", "commit", "started", "seconds")
    rows = [[name, document[name]] for name in wanted if name in document]
    rows.append(["seeds", ", ".join(map(str, document["seeds"]))])
    scale = dict(document["scale"])
    rows.append(["scale", scale.pop("name")])
    rows += [[name, value] for name, value in scale.items() if name != "seeds"]
    return table(["", ""], rows)


def _trained(document: Mapping[str, Any]) -> list[str]:
    """A table of the networks: their training may be older than the measurement."""
    if "trained" not in document:
        return []
    wanted = ("steps", "commit", "torch", "hardware")
    rows = [
        [name, *(origin.get(key, "not recorded") for key in wanted)]
        for name, origin in document["trained"].items()
    ]
    return ["Networks, and what they were trained with:", table(["", *wanted], rows)]


def findings(report: Path) -> list[str]:
    """The first list of a report: what was found."""
    found: list[str] = []
    for line in report.read_text(encoding="utf-8").splitlines():
        if line.startswith("- "):
            found.append(line[2:])
        elif found:
            break
    return found
