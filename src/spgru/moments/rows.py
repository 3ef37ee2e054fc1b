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

__all__ = ["CONVERTED", "Converted", "wants_rows"]

CONVERTED = "_converted_to_moments"
"""Attribute of modules whose code was written for tensors; `spgru.convert` sets it."""


class Converted:
    """The value of that attribute.

    While a process has none, nobody need look who iterates; one that is unpickled counts, too.
    """

    exists = False

    def __init__(self) -> None:
        Converted.exists = True

    def __reduce__(self) -> tuple[type[Converted], tuple[()]]:
        return Converted, ()


def wants_rows() -> bool:
    """Whether what iterates, two calls above, is code of a converted module.

    That is the module whose method runs there, or called what runs there. `torch.compile`
    cannot look at frames: what it compiles gets mean and variance.
    """
    if torch.compiler.is_dynamo_compiling() or not Converted.exists:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("spgru."):
            return False
        # Looking at all variables of a frame makes a copy of them.
        if "self" in frame.f_code.co_varnames:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                return CONVERTED in owner.__dict__
        frame = frame.f_back
    return False
