"""From the options of `spgru compare` to a `CompareConfig`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spgru.compare.method import Budget
from spgru.compare.run import CompareConfig, described
from spgru.compare.tasks import PACKAGED, PUBLISHED, packaged_tasks, read_tasks, thinned
from spgru.reporting.tables import Row
from spgru.runtime.provenance import commit

__all__ = ["known_rows", "make_compare_config"]


def make_compare_config(
    data: Path | None,
    tasks: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    steps: int,
    hidden_size: int,
    series: int | None,
    members: int,
    draws: int,
    samples: int,
    threads: int,
) -> CompareConfig:
    """See `spgru compare --help`; empty for an option left out."""
    if not tasks:
        tasks = [*PACKAGED, *(PUBLISHED if data is not None else ())]
    for name in tasks:
        if name not in PACKAGED and name not in PUBLISHED:
            raise ValueError(
                f"there is no task {name!r}; there are {', '.join([*PACKAGED, *PUBLISHED])}"
            )
    published = [name for name in tasks if name in PUBLISHED]
    if published and data is None:
        raise ValueError(f"{published[0]} needs its files; pass their folder by --data")
    found = packaged_tasks([name for name in tasks if name in PACKAGED])
    if data is not None:
        found += read_tasks(data, published)
    if series is not None:
        found = [thinned(task, series) for task in found]
    budget = Budget(steps, hidden_size, members=members, draws=draws, samples=samples)
    return CompareConfig(found, range(seeds), budget, methods or None, threads)


def known_rows(path: Path, config: CompareConfig) -> list[Row]:
    """Rows of an earlier compare.json that this one need not measure again.

    None where commit, budget or threads differ.
    """
    if not path.exists():
        return []
    before: dict[str, Any] = json.loads(path.read_text())
    now = {"commit": commit(), "budget": asdict(config.budget), "threads": config.threads}
    if any(before.get(name) != value for name, value in now.items()):
        return []
    same = [task for task in map(described, config.tasks) if task in before["tasks"]]
    names = {task["name"] for task in same}
    return [row for row in before["rows"] if row["task"] in names and not row["reason"]]
