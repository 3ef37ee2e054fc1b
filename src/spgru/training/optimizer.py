"""The optimiser of a run: Adam, AdamW, or Muon for some parameters beside AdamW for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from spgru.nn.weight import is_spread
from spgru.training.config import OptimizerConfig
from spgru.training.muon import Muon

__all__ = ["Optimizer", "make_optimizer"]


class Optimizer(Protocol):
    """What a step needs of an optimiser; those of torch have it."""

    param_groups: list[dict[str, Any]]
    state: Any

    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def step(self) -> None: ...


class _Together:
    """Several optimisers, each with parameters of its own, used as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state = {key: value for part in parts for key, value in part.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def step(self) -> None:
        for part in self.parts:
            part.step()


def make_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> Optimizer:
    """The optimiser, with its moments already allocated, so that every checkpoint has them all."""
    on_gpu = device.type == "cuda"

    def group(parameters: list[nn.Parameter], decay: float, factor: float, **more: Any) -> Any:
        rate: Any = factor * config.lr
        if on_gpu:  # a tensor, which a captured step reads anew at every replay
            rate = torch.tensor(rate, device=device)
        return {"params": parameters, "weight_decay": decay, "factor": factor, "lr": rate, **more}

    if config.mean_rate == 0:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_spread(name))
    hidden = dict(_between_hidden(model)) if config.name == "muon" else {}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    spreads: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter in hidden or not parameter.requires_grad:
            continue
        if is_spread(name):
            spreads.append(parameter)
        else:
            (decayed if parameter.ndim > 1 else plain).append(parameter)
    groups = [
        group(decayed, config.weight_decay, config.mean_rate * config.rest_rate),
        group(plain, 0.0, config.mean_rate * config.rest_rate),
        group(spreads, 0.0, config.spread_rate),
    ]
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    adam = kind(
        [group for group in groups if group["params"]],
        betas=(config.beta1, config.beta2), eps=config.eps, capturable=on_gpu, fused=True,
    )  # fmt: skip
    for parameter in (*decayed, *plain, *spreads):
        adam.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=device if on_gpu else "cpu"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    if not hidden:
        return adam
    stacked = [
        group([parameter], config.weight_decay, config.mean_rate, matrices=gates)
        for parameter, gates in hidden.items()
    ]
    return _Together(Muon(stacked), adam)


def _between_hidden(model: nn.Module) -> Iterator[tuple[nn.Parameter, int]]:
    """The (means of) weights from hidden units to hidden units, and how many gates each is of.

    As usual with Muon, the weights that read the input and those of the output are left out.
    """
    for layer in model.modules():
        gates = int(getattr(layer, "gates", 0))
        if isinstance(layer, nn.RNNBase):
            gates = layer.all_weights[0][0].shape[0] // layer.hidden_size
        for name, parameter in layer.named_parameters() if gates else ():
            if not parameter.requires_grad:
                continue
            is_square = parameter.ndim > 1 and len(parameter) == gates * parameter.shape[1]
            if is_square and not is_spread(name):
                yield parameter, gates
