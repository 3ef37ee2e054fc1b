"""One update of the weights: forward, backward, clipping, optimiser; eager, or one CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spgru.nn.contexts import at_mean
from spgru.objectives import Loss, Objective
from spgru.runtime.device import GRAPH_WARMUP
from spgru.training.config import ScheduleConfig
from spgru.training.optimizer import Optimizer

__all__ = ["GraphUpdate", "LossModule", "MeanLossModule", "Update", "learning_rate"]

Precision = Literal["float32", "tf32", "bfloat16"]


def learning_rate(peak: float, schedule: ScheduleConfig, step: int, steps: int) -> float:
    """The rate of step number `step` (from 0) of `steps`: a straight rise, then half a cosine."""
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.decay == "none":
        return peak
    progress = (step - schedule.warmup) / max(steps - schedule.warmup, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (schedule.final + (1 - schedule.final) * cosine)


class LossModule(nn.Module):
    """`model.loss` as a forward pass, which is what DistributedDataParallel and compile wrap."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, frames: Tensor) -> Loss:
        return self.model.loss(frames, self.objective)  # type: ignore[operator, no-any-return]


class MeanLossModule(LossModule):
    """The cross entropy of the plain network that the means of the weights make up."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, Objective("cross_entropy"))

    def forward(self, frames: Tensor) -> Loss:
        with at_mean(self.model):
            return super().forward(frames)


class Update:
    """Call with frames and learning rate; returns the parts of the loss, named by `names`."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        precision: Precision,
        clip: float | None,
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self.precision, self.clip = precision, math.inf if clip is None else clip
        self.parameters = list(module.parameters())
        self.names: tuple[str, ...] = ()

    def __call__(self, frames: Tensor, lr: float) -> Tensor:
        """(2 T, B, height, width) -> (parts,), on the device"""
        self._set_rate(lr)
        return self._run(frames)

    def _set_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            rate = lr * group["factor"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _run(self, frames: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(frames.device.type, torch.bfloat16, self.precision == "bfloat16"):
            loss: Loss = self.module(frames)
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        parts = {name: part for name, part in loss._asdict().items() if part is not None}
        parts["grad_norm"] = norm
        self.names = tuple(parts)
        return torch.stack([part.detach().float() for part in parts.values()])


class GraphUpdate(Update):
    """The same update captured once in a CUDA graph and replayed, without launching each kernel."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._frames: Tensor | None = None
        self._parts: Tensor | None = None

    def __call__(self, frames: Tensor, lr: float) -> Tensor:
        if self._graph is None:
            self._capture(frames)
        assert self._graph is not None
        assert self._frames is not None
        assert self._parts is not None
        self._set_rate(lr)
        self._frames.copy_(frames)
        self._graph.replay()
        return self._parts

    def _capture(self, frames: Tensor) -> None:
        """Warm up on a side stream, undo what that changed, and capture."""
        self._frames = frames.clone()
        random_state = torch.cuda.get_rng_state(frames.device)
        tensors = [*self._state()]
        before = [tensor.clone() for tensor in tensors]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(GRAPH_WARMUP):
                self._run(self._frames)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._parts = self._run(self._frames)
        torch.cuda.set_rng_state(random_state, frames.device)
        self._graph = graph

    def _state(self) -> Iterator[Tensor]:
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            yield tensor.detach()
        for moments in self.optimizer.state.values():
            yield from moments.values()
