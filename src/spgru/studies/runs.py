"""What a study is asked to do, and which trained networks that takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spgru.runtime.device import choose_device
from spgru.runtime.errors import ConfigError
from spgru.studies.scales import Scale

__all__ = ["CONFIGS", "Member", "StudyConfig", "members"]

CONFIGS = Path(__file__).parent / "configs"
"""Training configurations by scale and run; `spgru train` on one of them is the same run."""


class Member(NamedTuple):
    """One of the networks trained from a configuration."""

    run: str
    """name of the configuration"""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.run}-{self.seed}"


@dataclass(frozen=True)
class StudyConfig:
    """What a study is asked to do.

    Args:
        scale: see `Scale`
        output: folder of all studies; trained networks are shared in its folder `models`
        device: `"auto"`, `"cpu"`, `"cuda"` or `"cuda:1"`
        seeds: of the networks; None for those of the scale
        mnist: folder with your own MNIST files; None for the packaged ones
        official: the official test set mnist_test_seq.npy, for the study that is scored on it;
            None for the regenerated one
        overrides: fields of the training configurations by dotted name, for all runs alike, or
            for one run when its name comes first, as in controlled_sp_gru.mean_steps
        given: trained networks to use in place of training, by name of the run: a run's folder, a
            checkpoint, an exported file or the name of a packaged network
        only: the runs of a study to train and measure, if the study can be done in part; empty for
            all. The report of a part goes to a folder of its own
    """

    scale: Scale
    output: Path = Path("outputs/reproduce")
    device: str = "auto"
    seeds: tuple[int, ...] | None = None
    mnist: str | None = None
    official: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Path] = field(default_factory=dict)
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.given, *self.only):
            if name not in self.runs:
                raise ConfigError(f"{name!r} is not a run; give one of {', '.join(self.runs)}")

    @property
    def runs(self) -> list[str]:
        """Names of all training runs."""
        return sorted(path.stem for path in (CONFIGS / self.scale.name).glob("*.yaml"))

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds that were asked for, else those of the scale."""
        return tuple(range(self.scale.seeds)) if self.seeds is None else self.seeds

    @property
    def torch_device(self) -> torch.device:
        """The device of `device`, or the best there is."""
        return choose_device(self.device)

    def folder(self, study: str) -> Path:
        """Of the report of a study."""
        return self.output / "-".join([study, self.scale.name, *sorted(set(self.only))])

    def run_folder(self, member: Member) -> Path:
        """Of the training of a network."""
        return self.output / "models" / f"{self.scale.name}-{member.name}"

    def overrides_of(self, member: Member) -> dict[str, Any]:
        """Values by dotted name that replace those of the member's training configuration."""
        common, own = {}, {}
        for name, value in self.overrides.items():
            first, _, rest = name.partition(".")
            if first == member.run:
                own[rest] = value
            elif first not in self.runs:
                common[name] = value
        changes = {
            **common,
            **own,
            "seed": member.seed,
            "device": self.device,
            "output": str(self.run_folder(member)),
        }
        if self.mnist is not None:
            changes["data.directory"] = self.mnist
        return changes


def members(config: StudyConfig, many: Iterable[str], single: Iterable[str] = ()) -> list[Member]:
    """The networks of a study, of the runs in `config.only` if there are any.

    Args:
        many: runs made with every seed; one that is given is there once
        single: runs made with the first seed alone
    """
    first = config.all_seeds[:1]
    return [
        Member(run, seed)
        for runs, seeds in ((many, config.all_seeds), (single, first))
        for run in runs
        if not config.only or run in config.only
        for seed in (first if run in config.given else seeds)
    ]
