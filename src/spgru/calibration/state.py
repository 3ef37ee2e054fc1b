"""The calibration of a module: take it out, leave it out, load it; and keep still for a fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spgru.nn.layer import Layer, layers_of
from spgru.nn.output_scale import (
    CHILD,
    OutputScale,
    attach_scale,
    detach_scale,
    named_scales,
    own_scale,
    scales_of,
    uncalibrated,
)

__all__ = [
    "at_rest", "calibration_state", "is_calibrated", "load_calibration", "make_room", "uncalibrate",
    "uncalibrated", "without_outcomes",
]  # fmt: skip


def uncalibrate(module: nn.Module) -> None:
    """Take gains and factors out again: the plain closed form, bit for bit."""
    for _, layer in layers_of(module):
        layer.set_gains_({})
    for child in module.modules():
        detach_scale(child)
    for scale in scales_of(module):
        scale.set_(None)


def is_calibrated(module: nn.Module) -> bool:
    """Whether there are gains or factors in it."""
    return bool(calibration_state(module))


def load_calibration(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """`module.load_state_dict` for a state dict saved after `calibrate`.

        safetensors.torch.save_model(model, "model.safetensors")
        spgru.load_calibration(Model(), safetensors.torch.load_file("model.safetensors"))

    Only a module of your own whose output was scaled needs it: the scale is a child that a new
    module does not have. Layers and models of this package make room for their own.
    """
    make_room(module, state_dict)
    module.load_state_dict(state_dict)


def make_room(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Give a module the buffers of the calibration in a state dict, and no others."""
    children = dict(module.named_modules())
    for key in state_dict:
        parent, _, child = key.rpartition(".")[0].rpartition(".")
        owner = children.get(parent)
        if child == CHILD and owner is not None and own_scale(owner) is None:
            attach_scale(owner)
    for name, layer in layers_of(module):
        layer.make_room(state_dict, f"{name}." if name else "")
    for name, scale in named_scales(module):
        scale.make_room(state_dict, f"{name}.")


def calibration_state(module: nn.Module) -> dict[str, Tensor]:
    """The part of the state dict that `calibrate` has added."""
    found: dict[str, Tensor] = {}
    for name, layer in layers_of(module):
        prefix = f"{name}." if name else ""
        found |= {prefix + buffer: gain for buffer, gain in layer.gain_state().items()}
    for name, scale in named_scales(module):
        found |= {f"{name}.{key}": value for key, value in scale.named_buffers()}
    return found


@contextmanager
def without_outcomes(scale: OutputScale | None) -> Iterator[None]:
    """Within: what a fit to outcomes found is left out, and what one to drawn networks is not."""
    found = None if scale is None else scale.outcomes
    if scale is None or found is None:
        yield
        return
    scale.set_outcomes_(None)
    try:
        yield
    finally:
        scale.set_outcomes_(found)


@contextmanager
def at_rest(module: nn.Module, seed: int) -> Iterator[list[OutputScale]]:
    """Within: evaluation, parameters that do not learn, and scales to try.

    The last of them is new, and that of the module's own output, if it has none and is no layer.
    Afterwards everything is as it was, without the new one.
    """
    training = {child: child.training for child in module.modules()}
    learning = {parameter: parameter.requires_grad for parameter in module.parameters()}
    scales = scales_of(module)
    is_new = own_scale(module) is None and not isinstance(module, Layer)
    try:
        if is_new:
            scales.append(attach_scale(module))
        module.eval()
        module.requires_grad_(False)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            # Modules with real dropout, or a random part of their own, draw from here.
            stack.enter_context(torch.random.fork_rng())
            torch.manual_seed(seed)
            yield scales
    finally:
        if is_new:
            detach_scale(module)
        for child, mode in training.items():
            child.training = mode
        for parameter, learns in learning.items():
            parameter.requires_grad_(learns)
