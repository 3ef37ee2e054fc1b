"""From a study's name to its folder: train what is missing, measure, report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from spgru.data import MovingMNISTTest
from spgru.reporting.pictures import require_matplotlib
from spgru.runtime.lock import locked
from spgru.runtime.provenance import provenance
from spgru.studies import controlled, deep_markov, maps, out_of_domain, speed, two_digits
from spgru.studies.runs import Member, Settings, Stopped, train_all
from spgru.studies.study import Study, read_results, write_report, write_results
from spgru.training import ConfigError, load_model
from spgru.training.model import AnyModelConfig
from spgru.training.progress import Show

__all__ = ["STUDIES", "UnfinishedError", "rebuild", "reproduce"]

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (controlled, maps, speed, two_digits, out_of_domain, deep_markov)
}
"""In the order of the paper; the slow trainings are shared."""


class UnfinishedError(RuntimeError):
    """Training stopped before its end; checkpoints are kept and the same call continues."""

    def __init__(self, stopped: Stopped) -> None:
        self.stopped = stopped
        super().__init__(
            f"stopped at step {stopped.step} of {stopped.steps} of {stopped.member.name}; "
            "run again to continue"
        )


def reproduce(
    names: Sequence[str],
    settings: Settings,
    *,
    max_seconds: float | None = None,
    show: Show = "auto",
    command: str = "",
) -> list[Path]:
    """Train what the studies need and is not trained yet, then measure and report each.

    Args:
        names: keys of `STUDIES`
        max_seconds: of training; measuring comes on top
        show: how training reports progress
        command: kept with the results

    Returns:
        the reports

    Raises:
        UnfinishedError: time was up, or a signal came.
        ConfigError: something that was asked for cannot be done; told before any training.
        CheckpointError: a given network does not exist, or is damaged.
        FolderInUseError: another process works in `settings.output`.
    """
    studies = [STUDIES[name] for name in names]
    for study in studies:
        _check_part(study, settings)
    wanted = dict.fromkeys(member for study in studies for member in study.members(settings))
    _check(settings, names, wanted)
    with locked(settings.output):
        return _reproduce(studies, wanted, settings, max_seconds, show, command)


def _reproduce(
    studies: Sequence[Study],
    wanted: Iterable[Member],
    settings: Settings,
    max_seconds: float | None,
    show: Show,
    command: str,
) -> list[Path]:
    origin = {"command": command, **provenance(settings.where)}
    stopped = train_all(settings, wanted, max_seconds, show)
    if stopped is not None:
        raise UnfinishedError(stopped)
    reports = []
    for study in studies:
        if show != "none":
            print(f"measuring: {study.name}", flush=True)
        folder = settings.folder(study.name)
        folder.mkdir(parents=True, exist_ok=True)
        started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
        results = study.measure(settings, folder)
        seconds = round(time.perf_counter() - clock, 1)
        write_results(study, settings, results, {**origin, "started": started, "seconds": seconds})
        reports.append(write_report(study, folder))
    return reports


def _check(settings: Settings, names: Sequence[str], wanted: Iterable[Member]) -> None:
    """All that can be wrong and can be told before hours of training."""
    require_matplotlib("a report")
    configs = {member.run: settings.config(member) for member in wanted}
    for run, source in settings.given.items():
        if run not in configs:
            raise ConfigError(
                f"--use {run}: {', '.join(names)} takes {', '.join(configs)}; leave it out"
            )
        found, own = load_model(source).config.model, configs[run].model
        if type(found) is not type(own) or _looks_back(found) != _looks_back(own):
            raise ConfigError(
                f"--use {run}={source}: that is a network of kind {found.kind}, and {run} one of "
                f"kind {own.kind}"
            )
        if (found.height, found.width) != (own.height, own.width):
            raise ConfigError(
                f"--use {run}={source}: that network reads frames of {found.height} x "
                f"{found.width}, and the study has {own.height} x {own.width}"
            )
    if settings.official is not None:
        if two_digits.STUDY.name not in names:
            raise ConfigError(
                f"the official file is the test set of {two_digits.STUDY.name} alone; "
                f"leave it out for {', '.join(names)}"
            )
        MovingMNISTTest(settings.official)


def _looks_back(model: AnyModelConfig) -> bool:
    return model.kind == "autoencoder"


def _check_part(study: Study, settings: Settings) -> None:
    """Refuse runs of `settings.only` that the study does not have, or cannot do with alone."""
    whole = study.members(dataclasses.replace(settings, only=()))
    runs = list(dict.fromkeys(member.run for member in whole))
    for run in settings.only:
        if run not in runs:
            raise ConfigError(f"{study.name} has no network {run}; it has {', '.join(runs)}")
    if settings.only and not study.divisible and set(settings.only) != set(runs):
        raise ConfigError(
            f"{study.name} holds its networks against each other and needs all of them, "
            f"{', '.join(runs)}; leave out --only"
        )


def rebuild(names: Sequence[str], settings: Settings) -> list[Path]:
    """Tables, figures and reports again from the results.json of each study; nothing is measured.

    Pictures of predictions stay as they are.
    """
    for name in names:
        read_results(settings.folder(name))
    with locked(settings.output):
        return [write_report(STUDIES[name], settings.folder(name)) for name in names]
