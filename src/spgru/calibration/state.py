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
    scales_of,
    uncalibrated,
)
from spgru.nn.weight import gain_name

__all__ = [
    "at_rest", "calibration_state", "is_calibrated", "load_calibration", "make_room", "uncalibrate",
    "uncalibrated",
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
    children, suffix = dict(module.named_modules()), f"{CHILD}.factor"
    for key in state_dict:
        if key == suffix or key.endswith(f".{suffix}"):
            owner = children.get(key.removesuffix(suffix).removesuffix("."))
            if owner is not None and not isinstance(owner._modules.get(CHILD), OutputScale):
                attach_scale(owner)
    for name, child in module.named_modules():
        if isinstance(child, (Layer, OutputScale)):
            child.make_room(state_dict, f"{name}." if name else "")


def calibration_state(module: nn.Module) -> dict[str, Tensor]:
    """The part of the state dict that `calibrate` has added."""
    found: dict[str, Tensor] = {}
    for name, child in module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(child, Layer):
            gains = {gain_name(weight): gain for weight, gain in child.gains().items()}
            found |= {prefix + key: gain for key, gain in gains.items()}
        elif isinstance(child, OutputScale):
            found |= {prefix + key: value for key, value in child.named_buffers()}
    return found


@contextmanager
def at_rest(module: nn.Module, seed: int) -> Iterator[list[OutputScale]]:
    """Within: evaluation, parameters that do not learn, and scales to try.

    The last of them is new, and that of the module's own output, if it has none and is no layer.
    Afterwards everything is as it was, without the new one.
    """
    training = {child: child.training for child in module.modules()}
    learning = {parameter: parameter.requires_grad for parameter in module.parameters()}
    scales = scales_of(module)
    has_own = isinstance(module._modules.get(CHILD), OutputScale)
    is_new = not has_own and not isinstance(module, Layer)
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
