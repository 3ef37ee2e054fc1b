"""What every study is, and the folder it leaves: numbers, figures, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from spgru.reporting.markdown import bullets, figure, table
from spgru.reporting.plain import for_json
from spgru.reporting.tables import Row, to_csv
from spgru.runtime.storage import write_whole
from spgru.studies.networks import Networks
from spgru.studies.runs import Member, StudyConfig
from spgru.studies.training_log import LOGS, PLOT, draw_logs, keep_logs

__all__ = [
    "ORIGIN", "RESULTS", "Conclusion", "Study", "Tables", "WrittenReport", "read_results",
    "write_json", "write_report", "write_results",
]  # fmt: skip

RESULTS = "results.json"
ORIGIN = ("command", "hardware", "python", "torch", "commit", "started", "seconds")
"""What is kept of how numbers were measured."""

Tables = dict[str, list[Row]]
"""All numbers of a study, as tables by name."""


@dataclass(frozen=True)
class Conclusion:
    """What the numbers of a study say."""

    introduction: str
    """what was done"""
    findings: list[str]
    """a sentence each"""
    sections: list[str]
    """tables, figures and text that follow, in Markdown"""

    def to_markdown(self) -> str:
        found = ["## What was found", bullets(self.findings)]
        return "\n\n".join([self.introduction, *found, *self.sections])


class WrittenReport(NamedTuple):
    """Where a study's report is, and what it found, a sentence each."""

    path: Path
    findings: list[str]


@dataclass(frozen=True)
class Study:
    """One experiment of the paper. Training comes before, see `spgru.studies.networks`."""

    name: str
    title: str
    members: Callable[[StudyConfig], list[Member]]
    """the trained networks it needs"""
    measure: Callable[[StudyConfig, Networks, Path], Tables]
    """all numbers; also leaves the pictures that need a network in the folder"""
    draw: Callable[[Tables, Path], None]
    """figures that need the numbers alone"""
    conclude: Callable[[Tables], Conclusion]
    """what was found, from the numbers alone"""
    labels: Mapping[str, str] | None = None
    """what its tables call the networks, by run, if some of them make a report; None for a study
    that compares them with each other"""
    calibrates: bool = False
    """whether it measures the variance after calibration too; otherwise the plain one alone"""


def write_results(
    study: Study, networks: Networks, tables: Tables, origin: Mapping[str, Any]
) -> None:
    """results.json, with everything that made it, and the configurations as files of their own."""
    folder = networks.config.folder(study.name)
    members = study.members(networks.config)
    keep_logs(networks, members, folder)
    configs = {member.name: networks.used_config(member) for member in members}
    for name, content in configs.items():
        # JSON is YAML: `spgru train` takes these files.
        write_json(folder / "configs" / f"{name}.json", content)
    trained = {member.name: networks.origin(member) for member in members}
    if study.calibrates:
        for member in members:
            trained[member.name]["calibration"] = networks.calibration(member)
    document = {
        "study": study.name,
        "scale": asdict(networks.config.scale),
        "seeds": sorted({member.seed for member in members}),
        **origin,
        "trained": trained,
        "configs": configs,
        "results": for_json(tables),
    }
    write_json(folder / RESULTS, document)


def write_json(path: Path, content: Any) -> None:
    """With the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


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


def write_report(study: Study, folder: Path) -> WrittenReport:
    """Tables as CSV, figures and report.md, from results.json and the logs of the trainings."""
    document = read_results(folder)
    tables: Tables = document["results"]
    for name, rows in tables.items():
        # Rows that were measured at different times may have different columns.
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = to_csv(rows, columns) if rows else ""
        write_whole(folder / f"{name}.csv", text.encode())
    study.draw(tables, folder)
    conclusion = study.conclude(tables)
    files = ", ".join(f"[{name}.csv]({name}.csv)" for name in tables)
    parts = [
        f"# {study.title}",
        conclusion.to_markdown(),
        "## How this was made",
        _origin(document),
        *_trained(document),
        *_training(document, folder),
        f"All numbers: {files}; together with all settings: [{RESULTS}]({RESULTS}). "
        "Training configurations: [configs](configs).",
    ]
    path = folder / "report.md"
    write_whole(path, ("\n\n".join(parts) + "\n").encode())
    return WrittenReport(path, conclusion.findings)


def _origin(document: Mapping[str, Any]) -> str:
    # Networks that were measured one at a time have an origin each.
    parts: Mapping[str, Mapping[str, Any]] = document.get("parts", {"": document})
    rows = [
        [f"{run}: {name}" if run else name, part[name]]
        for run, part in parts.items()
        for name in ORIGIN
        if name in part
    ]
    rows.append(["seeds", ", ".join(map(str, document["seeds"]))])
    scale = dict(document["scale"])
    rows.append(["scale", scale.pop("name")])
    rows += [[name, value] for name, value in scale.items() if name != "seeds"]
    return table(["", ""], rows)


def _trained(document: Mapping[str, Any]) -> list[str]:
    """A table of the networks: their training may be older than the measurement."""
    if "trained" not in document:
        return []
    trained: Mapping[str, Mapping[str, Any]] = document["trained"]
    wanted = ["steps", "commit", "torch", "hardware"]
    if any("calibration" in origin for origin in trained.values()):
        wanted.append("calibration")
    rows = [
        [name, *(origin.get(key, "not recorded") for key in wanted)]
        for name, origin in trained.items()
    ]
    return ["Networks, and what they were trained with:", table(["", *wanted], rows)]


def _training(document: Mapping[str, Any], folder: Path) -> list[str]:
    """A plot of the trainings, where their logs are."""
    if not draw_logs(folder, document.get("configs", {})):
        return []
    return [figure(PLOT, "Loss in training"), f"Logs: [{LOGS}]({LOGS})."]
