"""Who iterates over Moments: code that knows them, or that of a converted network.

`mean, var = y` takes a pair apart. The forward of a network that was written for tensors means rows
by the same words, `forward, backward = h_n`; unpacked as a pair it would go on with other numbers
and no error.
"""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch import nn

__all__ = ["CONVERTED", "wants_rows"]

CONVERTED = "_converted_to_moments"
"""Attribute of modules whose code was written for tensors; `spgru.convert` sets it."""


def wants_rows() -> bool:
    """Whether what iterates, two calls above, is code of a converted module.

    That is the module whose method runs there, or called what runs there. `torch.compile`
    cannot look at frames: what it compiles gets mean and variance.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    frame: FrameType | None = sys._getframe(2)
    if frame is None or frame.f_globals.get("__name__", "").startswith("spgru."):
        return False
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return CONVERTED in owner.__dict__
        frame = frame.f_back
    return False
