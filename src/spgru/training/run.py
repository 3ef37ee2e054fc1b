"""The state of a training run, and its way to the disk and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgru.nn.weight import has_old_layout
from spgru.runtime.distributed import Processes
from spgru.runtime.errors import ConfigError
from spgru.runtime.provenance import origin
from spgru.runtime.storage import write_whole
from spgru.training import checkpoint as checkpoints
from spgru.training.checkpoint import Checkpoint, CheckpointError
from spgru.training.config import TrainConfig, differences, stored_form
from spgru.training.evaluation import make_data
from spgru.training.export import CHECKPOINTS, load_weights
from spgru.training.model import make_model
from spgru.training.optimizer import make_optimizer
from spgru.training.schema import to_mapping

__all__ = ["Run", "TrainingError"]


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one sentence."""


class Run:
    """Model, optimiser, data and step: all that changes in training.

    Args:
        resume: continue the run in `config.output`, if there is one
    """

    def __init__(self, config: TrainConfig, group: Processes, resume: bool) -> None:
        self.config, self.group = config, group
        self._origin = origin(group.device) if group.is_first else {}
        self.folder = Path(config.output)
        self.checkpoints = self.folder / CHECKPOINTS
        self.data = make_data(
            config.data,
            group.share(config.batch_size),
            seed=config.seed,
            device=group.device,
            rank=group.rank,
            world_size=group.count,
        )
        # Built on the CPU, so that a seed means the same weights on every device.
        torch.manual_seed(config.seed)
        self.model = make_model(config.model)
        self.model.to(group.device)
        self.optimizer = make_optimizer(self.model, config.optimizer, group.device)
        self.step = 0
        if group.is_first:
            self._open(resume)
        step = torch.tensor(self.step)
        group.copy_from_first([step, *self._tensors().values()])
        self.step = self.data.position = int(step)

    def save(self) -> None:
        """Write a checkpoint, unless weights are NaN: those never replace a good one.

        Raises:
            CheckpointError: it could not be written.
            TrainingError: weights are NaN.
        """
        if any(bool(parameter.isnan().any()) for parameter in self.model.parameters()):
            raise self.diverged()
        checkpoint = Checkpoint(
            self.step,
            stored_form(self.config),
            self.data.state_dict(),
            self.model.state_dict(),
            self._moments(),
            self._origin,
        )
        checkpoints.save(self.checkpoints, checkpoint, self.config.keep)

    def diverged(self) -> TrainingError:
        return TrainingError(
            f"the loss or its gradient is not finite at step {self.step}; the checkpoints before "
            "are intact; lower optimizer.lr or optimizer.clip and start anew"
        )

    def _open(self, resume: bool) -> None:
        """Load the run to continue, or write the first checkpoint of a new one."""
        saved = checkpoints.saved_steps(self.checkpoints)
        if any(saved) and not resume:  # a checkpoint of step 0 alone may be replaced
            raise ConfigError(
                f"{self.folder} already holds a run (step {saved[-1]}); continue it with --resume, "
                "or choose another output"
            )
        checkpoints.clean(self.checkpoints)
        if saved and resume:
            self._load(checkpoints.load_newest(self.checkpoints))
        else:
            if self.config.initial is not None:
                load_weights(self.model, self.config.initial)
            # Before training, so that none of it is lost if checkpoints cannot be written.
            self.save()
        text = json.dumps(to_mapping(self.config), indent=2) + "\n"
        try:
            write_whole(self.folder / "config.json", text.encode())
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be written to ({error.strerror}); choose another output"
            ) from error

    def _load(self, checkpoint: Checkpoint) -> None:
        changed = differences(self.config, checkpoint.config)
        if changed:
            raise ConfigError(
                f"the run in {self.folder} was started with another configuration "
                f"({'; '.join(changed)}); set it back, or start anew in another output"
            )
        if checkpoint.step > self.config.steps:
            raise ConfigError(
                f"steps is {self.config.steps} but the run in {self.folder} is at step "
                f"{checkpoint.step}; give at least that many"
            )
        if has_old_layout(checkpoint.model):
            raise CheckpointError(
                f"the run in {self.folder} was made by version 0.1 and cannot be continued, since "
                "its optimiser state no longer fits; start a new run from its weights, with "
                f"initial: {self.folder} and another output"
            )
        what = f"the checkpoint of step {checkpoint.step} in {self.folder}"
        checkpoints.fit(self._tensors(), _joined(checkpoint.model, checkpoint.optimizer), what)
        self.data.load_state_dict(checkpoint.data)
        self.step = checkpoint.step

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that change in training; copying into them changes the run."""
        return _joined(self.model.state_dict(), self._moments())

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{name}/{moment}": tensor
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad  # one that stands still has no moments
            for moment, tensor in self.optimizer.state[parameter].items()
        }


def _joined(model: dict[str, Tensor], optimizer: dict[str, Any]) -> dict[str, Tensor]:
    return {f"model/{name}": tensor for name, tensor in model.items()} | {
        f"optimizer/{name}": tensor for name, tensor in optimizer.items()
    }
