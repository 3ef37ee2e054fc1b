"""One report of networks that were measured one at a time."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from spgru.runtime.errors import ConfigError
from spgru.studies.runs import StudyConfig
from spgru.studies.study import ORIGIN, RESULTS, Study, Tables, read_results, write_json
from spgru.studies.training_log import LOGS

__all__ = ["join_parts"]


def join_parts(study: Study, config: StudyConfig) -> None:
    """Make the folder of several runs from the folders in which they were measured.

    A run is looked for in the folder of its own, then in that of the whole study. Its pictures,
    configuration and log come along; the animation is that of the last run.

    Raises:
        ConfigError: the study compares its networks with each other, or a run was not measured.
    """
    if study.labels is None:
        raise ConfigError(f"{study.name} compares its networks with each other; measure it whole")
    folder = config.folder(study.name)
    sources = {run: _measured(study, config, run) for run in dict.fromkeys(config.only)}
    documents = {run: read_results(source) for run, source in sources.items()}
    tables: Tables = {}
    joined: dict[str, Any] = {"trained": {}, "configs": {}}
    for run, document in documents.items():
        for name, rows in document["results"].items():
            tables.setdefault(name, []).extend(_rows_of(rows, study.labels[run]))
        for part, all_of_it in joined.items():
            all_of_it |= {k: v for k, v in document.get(part, {}).items() if _is_of(k, run)}
        _copy_files(sources[run], folder, run)
    first = next(iter(documents.values()))
    write_json(
        folder / RESULTS,
        {
            "study": study.name,
            "scale": first["scale"],
            "seeds": sorted({seed for found in documents.values() for seed in found["seeds"]}),
            "parts": {
                run: {name: found[name] for name in ORIGIN if name in found}
                for run, found in documents.items()
            },
            **joined,
            "results": tables,
        },
    )


def _measured(study: Study, config: StudyConfig, run: str) -> Path:
    """The folder with numbers of this run."""
    assert study.labels is not None
    for only in ((run,), ()):
        folder = dataclasses.replace(config, only=only).folder(study.name)
        if (folder / RESULTS).is_file():
            tables = read_results(folder)["results"]
            if any(_rows_of(rows, study.labels[run]) for rows in tables.values()):
                return folder
    raise ConfigError(
        f"{run} was not measured: there is no {study.name} of it in {config.output}; run the study "
        f"with --only {run} first"
    )


def _rows_of(rows: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["model"] == label]


def _is_of(name: str, run: str) -> bool:
    """Whether this is the name of a network, RUN-SEED, of that run."""
    return name.rpartition("-")[0] == run


def _copy_files(source: Path, folder: Path, run: str) -> None:
    # By task, since the name of one run may begin as that of another.
    wanted = [source / f"{run}_{task}.png" for task in ("prediction", "reconstruction")]
    wanted.append(source / "prediction.gif")
    wanted += [*source.glob(f"configs/{run}-*.json"), *source.glob(f"{LOGS}/{run}-*.jsonl")]
    for path in wanted:
        if path.is_file():
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
