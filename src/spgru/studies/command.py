"""From the words of the command line to `StudyConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from spgru.runtime.errors import ConfigError
from spgru.studies.runs import StudyConfig
from spgru.studies.scales import SCALES, Scale
from spgru.training.config import parse_override
from spgru.training.schema import from_mapping

__all__ = ["make_study_config"]


def make_study_config(
    scale: str,
    *,
    output: Path,
    device: str,
    seeds: Iterable[int] | None,
    mnist: Path | None,
    official: Path | None,
    overrides: Iterable[str],
    use: Iterable[str],
    only: Iterable[str],
) -> StudyConfig:
    """Args:
    scale: a key of `SCALES`
    overrides: "name=value"; names that start with "scale." are fields of the scale
    use: "run=checkpoint"
    only: names of runs
    """
    changes = dict(parse_override(text) for text in overrides)
    of_scale = {
        name.removeprefix("scale."): changes.pop(name)
        for name in tuple(changes)
        if name.startswith("scale.")
    }
    given = [text.partition("=") for text in use]
    for run, _, checkpoint in given:
        if not run or not checkpoint:
            raise ConfigError(f"--use {run!r} is not of the form RUN=CHECKPOINT")
    return StudyConfig(
        scale=from_mapping(Scale, dataclasses.asdict(SCALES[scale]) | of_scale, "scale"),
        output=output,
        device=device,
        seeds=tuple(dict.fromkeys(seeds)) if seeds else None,
        mnist=None if mnist is None else str(mnist),
        official=official,
        overrides=changes,
        given={run: Path(checkpoint) for run, _, checkpoint in given},
        only=tuple(only),
    )
