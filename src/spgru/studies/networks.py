"""The trained networks of the studies: each trained once and read once, used by all."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from spgru.models import VideoModel
from spgru.studies.calibrated import FILE, Calibrated, calibrate_copy, take_out_calibration
from spgru.studies.runs import CONFIGS, Member, StudyConfig
from spgru.training import Loaded, TrainConfig, load_config, load_model, train
from spgru.training.config import stored_form
from spgru.training.progress import Show

__all__ = ["Networks", "Stopped", "train_all"]


class Networks:
    """Configurations and trained networks, each read when it is first asked for, and kept.

    Ask for a trained network after its training: it is not read again.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.config = config
        self._configs: dict[Member, TrainConfig] = {}
        self._loaded: dict[Path, Loaded] = {}
        self._calibrated: dict[Path, Calibrated | None] = {}

    def train_config(self, member: Member) -> TrainConfig:
        """How the network is, or would be, trained."""
        if member not in self._configs:
            path = CONFIGS / self.config.scale.name / f"{member.run}.yaml"
            self._configs[member] = load_config(path, self.config.overrides_of(member))
        return self._configs[member]

    def source(self, member: Member) -> Path:
        """Where the trained network is: the folder of its run, or what was given."""
        return self.config.given.get(member.run, self.config.run_folder(member))

    def loaded(self, member: Member) -> Loaded:
        """The trained network in the plain closed form, with what is recorded about it.

        A calibration that it came with is put aside for `calibrated`.
        """
        source = self.source(member)
        if source not in self._loaded:
            found = load_model(source)
            found.model.to(self.config.torch_device)
            self._loaded[source] = found
            own = take_out_calibration(found.model)
            if own is not None:
                self._calibrated[source] = own
        return self._loaded[source]

    def load(self, member: Member) -> Any:
        """The trained network alone, ready to predict, in the plain closed form."""
        return self.loaded(member).model

    def calibrated(self, member: Member) -> VideoModel | None:
        """The same network with its calibration: its own, or one fitted to drawn networks.

        A fit to a network that was trained for the studies is kept in the folder of its run. None
        for a baseline, in which there is nothing to calibrate.
        """
        found = self._with_calibration(member)
        return None if found is None else found.model

    def calibration(self, member: Member) -> str:
        """Which form the calibration has, in words for a report."""
        found = self._with_calibration(member)
        return "none" if found is None else found.form

    def _with_calibration(self, member: Member) -> Calibrated | None:
        source, loaded = self.source(member), self.loaded(member)
        if source not in self._calibrated:
            kept = None if member.run in self.config.given else source / FILE
            self._calibrated[source] = calibrate_copy(
                loaded, self.config.scale, self.config.mnist, kept
            )
        return self._calibrated[source]

    def steps(self, member: Member) -> int:
        """How many the network was trained for, which need not be all of its configuration."""
        return self.loaded(member).step

    def origin(self, member: Member) -> dict[str, Any]:
        """Steps, and commit, torch and hardware of the training where they are recorded."""
        return {"steps": self.steps(member), **self.loaded(member).origin}

    def used_config(self, member: Member) -> dict[str, Any]:
        """How the network was trained, wherever it came from."""
        given = member.run in self.config.given
        return stored_form(self.loaded(member).config if given else self.train_config(member))


class Stopped(NamedTuple):
    """Training that did not reach its end."""

    member: Member
    step: int
    steps: int
    signal: int
    """number of the signal that interrupted it, 0 when time was up"""


def train_all(
    networks: Networks, wanted: Iterable[Member], max_seconds: float | None, show: Show
) -> Stopped | None:
    """Train what is not trained yet, one network after the other.

    Returns:
        where it stopped, or None when all are trained; call again to continue
    """
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    missing = [member for member in wanted if member.run not in networks.config.given]
    for k, member in enumerate(missing):
        config = networks.train_config(member)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if show != "none":
            print(f"network {k + 1} of {len(missing)}: {config.output}", flush=True)
        result = train(config, resume=True, max_seconds=left, show=show)
        if result.stopped != "finished":
            return Stopped(member, result.step, config.steps, result.signal)
    return None
