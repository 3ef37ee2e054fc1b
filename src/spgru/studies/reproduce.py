"""From a study's name to its folder: train what is missing, measure, report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spgru.data import MovingMNISTTest
from spgru.models import ModelConfig
from spgru.reporting.pictures import require_matplotlib
from spgru.runtime.errors import ConfigError
from spgru.runtime.lock import locked
from spgru.runtime.provenance import provenance
from spgru.studies import controlled, deep_markov, maps, out_of_domain, speed, two_digits
from spgru.studies.joined import join_parts
from spgru.studies.networks import Networks, Stopped, train_all
from spgru.studies.runs import Member, StudyConfig
from spgru.studies.study import (
    RESULTS,
    Study,
    WrittenReport,
    read_results,
    write_report,
    write_results,
)
from spgru.training.model import AnyModelConfig
from spgru.training.progress import Show

__all__ = ["STUDIES", "UnfinishedError", "reproduce", "rewrite_reports"]

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
    config: StudyConfig,
    *,
    max_seconds: float | None = None,
    show: Show = "auto",
    command: str = "",
) -> list[WrittenReport]:
    """Train what the studies need and is not trained yet, then measure and report each.

    Args:
        names: keys of `STUDIES`
        max_seconds: of training; measuring comes on top
        show: how training reports progress
        command: kept with the results

    Raises:
        UnfinishedError: time was up, or a signal came.
        ConfigError: something that was asked for cannot be done; raised before any training.
        CheckpointError: a given network does not exist, or is damaged.
        FolderInUseError: another process works in `config.output`.
    """
    studies = [STUDIES[name] for name in names]
    # Asked before anything is measured: a commit made meanwhile is not the one that ran.
    origin = {"command": command, **provenance(config.torch_device)}
    for study in studies:
        _check_part(study, config)
    wanted = dict.fromkeys(member for study in studies for member in study.members(config))
    networks = Networks(config)
    _check(networks, names, wanted)
    with locked(config.output):
        stopped = train_all(networks, wanted, max_seconds, show)
        if stopped is not None:
            raise UnfinishedError(stopped)
        return [_measure(study, networks, origin, show) for study in studies]


def _measure(
    study: Study, networks: Networks, origin: Mapping[str, Any], show: Show
) -> WrittenReport:
    if show != "none":
        print(f"measuring: {study.name}", flush=True)
    folder = networks.config.folder(study.name)
    folder.mkdir(parents=True, exist_ok=True)
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    tables = study.measure(networks.config, networks, folder)
    seconds = round(time.perf_counter() - clock, 1)
    write_results(study, networks, tables, {**origin, "started": started, "seconds": seconds})
    return write_report(study, folder)


def _check(networks: Networks, names: Sequence[str], wanted: Iterable[Member]) -> None:
    """Raise for everything that can be found out before hours of training."""
    require_matplotlib("a report")
    config = networks.config
    by_run = {member.run: member for member in wanted}
    configs = {run: networks.train_config(member) for run, member in by_run.items()}
    for run, source in config.given.items():
        if run not in configs:
            raise ConfigError(
                f"--use {run}: {', '.join(names)} takes {', '.join(configs)}; leave it out"
            )
        found, own = networks.loaded(by_run[run]).config.model, configs[run].model
        # The two kinds of dropout have one class of configuration.
        is_other = not isinstance(own, ModelConfig) and found.kind != own.kind
        if type(found) is not type(own) or is_other or _reconstructs(found) != _reconstructs(own):
            raise ConfigError(
                f"--use {run}={source}: that is a network of kind {found.kind}, and {run} one of "
                f"kind {own.kind}"
            )
        if (found.height, found.width) != (own.height, own.width):
            raise ConfigError(
                f"--use {run}={source}: that network reads frames of {found.height} x "
                f"{found.width}, and the study has {own.height} x {own.width}"
            )
    if config.official is not None:
        if two_digits.STUDY.name not in names:
            raise ConfigError(
                f"the official file is the test set of {two_digits.STUDY.name} alone; "
                f"leave it out for {', '.join(names)}"
            )
        MovingMNISTTest(config.official)


def _reconstructs(model: AnyModelConfig) -> bool:
    return model.kind == "autoencoder"


def _check_part(study: Study, config: StudyConfig) -> None:
    """Refuse runs of `config.only` that the study does not have, or that are not enough for it."""
    whole = study.members(dataclasses.replace(config, only=()))
    runs = list(dict.fromkeys(member.run for member in whole))
    for run in config.only:
        if run not in runs:
            raise ConfigError(f"{study.name} has no network {run}; it has {', '.join(runs)}")
    if config.only and study.labels is None and set(config.only) != set(runs):
        raise ConfigError(
            f"{study.name} compares its networks with each other and needs all of them, "
            f"{', '.join(runs)}; leave out --only"
        )


def rewrite_reports(names: Sequence[str], config: StudyConfig) -> list[WrittenReport]:
    """Write tables, figures and reports again from each results.json; nothing is measured.

    Pictures of predictions stay as they are. Several runs of `config.only` that were measured one
    at a time are joined.
    """
    for name in names:
        folder = config.folder(name)
        if len(set(config.only)) > 1 and not (folder / RESULTS).is_file():
            with locked(config.output):
                join_parts(STUDIES[name], config)
        read_results(folder)
    with locked(config.output):
        return [write_report(STUDIES[name], config.folder(name)) for name in names]
