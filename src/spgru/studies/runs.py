"""The trained networks of the studies: each trained once, in pieces if need be, used by all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spgru.runtime.device import choose_device
from spgru.studies.scales import Scale
from spgru.training import ConfigError, Loaded, TrainConfig, load_config, load_model, train
from spgru.training.config import stored_form
from spgru.training.progress import Show

__all__ = ["CONFIGS", "Member", "Settings", "Stopped", "members", "train_all"]

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
class Settings:
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
        only: the runs of a study to train and measure, where it does with a part; empty for all.
            The report of a part goes to a folder of its own
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
                raise ConfigError(f"{name!r} is no run; give one of {', '.join(self.runs)}")

    @property
    def runs(self) -> list[str]:
        """Names of all training runs."""
        return sorted(path.stem for path in (CONFIGS / self.scale.name).glob("*.yaml"))

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.scale.seeds)) if self.seeds is None else self.seeds

    @property
    def where(self) -> torch.device:
        return choose_device(self.device)

    def folder(self, study: str) -> Path:
        return self.output / "-".join([study, self.scale.name, *sorted(set(self.only))])

    def run_folder(self, member: Member) -> Path:
        return self.output / "models" / f"{self.scale.name}-{member.name}"

    def config(self, member: Member) -> TrainConfig:
        """The configuration of a training run."""
        changes = {
            **self._overrides_of(member.run),
            "seed": member.seed,
            "device": self.device,
            "output": str(self.run_folder(member)),
        }
        if self.mnist is not None:
            changes["data.directory"] = self.mnist
        return load_config(CONFIGS / self.scale.name / f"{member.run}.yaml", changes)

    def _overrides_of(self, run: str) -> dict[str, Any]:
        common, own = {}, {}
        for name, value in self.overrides.items():
            first, _, rest = name.partition(".")
            if first == run:
                own[rest] = value
            elif first not in self.runs:
                common[name] = value
        return common | own

    def load(self, member: Member) -> Any:
        """The trained network, on the device, ready to predict."""
        return self._loaded(member).model.to(self.where)

    def steps(self, member: Member) -> int:
        """How many the network was trained for, which need not be all of its configuration."""
        return self._loaded(member).step

    def origin(self, member: Member) -> dict[str, Any]:
        """Steps, and commit, torch and hardware of the training where they are recorded."""
        loaded = self._loaded(member)
        return {"steps": loaded.step, **loaded.origin}

    def _loaded(self, member: Member) -> Loaded:
        return load_model(self.given.get(member.run, self.run_folder(member)))

    def used_config(self, member: Member) -> dict[str, Any]:
        """How the network was trained, wherever it came from."""
        if member.run in self.given:
            return stored_form(self._loaded(member).config)
        return stored_form(self.config(member))


def members(settings: Settings, many: Iterable[str], single: Iterable[str] = ()) -> list[Member]:
    """The networks of a study, of the runs in `settings.only` if there are any.

    Args:
        many: runs made with every seed; one that is given is there once
        single: runs made with the first seed alone
    """
    first = settings.all_seeds[:1]
    return [
        Member(run, seed)
        for runs, seeds in ((many, settings.all_seeds), (single, first))
        for run in runs
        if not settings.only or run in settings.only
        for seed in (first if run in settings.given else seeds)
    ]


class Stopped(NamedTuple):
    """Training that did not reach its end."""

    member: Member
    step: int
    steps: int
    signal: int
    """number of the signal that interrupted it, 0 when time was up"""


def train_all(
    settings: Settings, wanted: Iterable[Member], max_seconds: float | None, show: Show
) -> Stopped | None:
    """Train what is not trained yet, one network after the other.

    Returns:
        where it stopped, or None when all are trained; call again to continue
    """
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    missing = [member for member in wanted if member.run not in settings.given]
    for k, member in enumerate(missing):
        config = settings.config(member)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if show != "none":
            print(f"network {k + 1} of {len(missing)}: {config.output}", flush=True)
        result = train(config, resume=True, max_seconds=left, show=show)
        if result.stopped != "finished":
            return Stopped(member, result.step, config.steps, result.signal)
    return None
