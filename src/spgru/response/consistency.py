"""`consistent_gain`: variances inside a module at which its response and closed form agree.

For Gaussian sources with covariance S and any function f of them

    Var f = integral over t from 0 to 1 of E_z [ g_t(z)' S g_t(z) ],

where g_t(z) is the gradient of f, averaged around z over 1 - t of the variance, and z has the rest.
The response takes the gradient of the closed-form mean, an average over the variances that the
closed form has inside the module: nearly none where it misses most of the variance, so t is near 1
and nothing saturates; all of it would be t = 0, the first term of a sum of positive ones. Half of
the variance is the middle of the integral.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spgru.calibration.state import uncalibrated
from spgru.response.arguments import Inputs, unpacked
from spgru.response.respond import check_module, check_numbers, follow, uncompiled

__all__ = ["consistent_gain"]

_SHARE = 0.5
_GROWTH, _LARGEST = 1.5, 64.0
_HALVINGS = 4
"""which leave the gain known to within 3 %"""


def consistent_gain(
    module: nn.Module,
    *inputs: Any,
    batch_dim: int | None = None,
    memory: int = 2**28,
    function: Callable[..., Any] | None = None,
    **options: Any,
) -> float:
    """The gain for `respond` with which the closed form has half of the response's variance.

    It belongs to a network and serves for all inputs like these; a dozen sequences are enough. It
    is 1 where the closed form has half of the variance anyway, and where no gain up to 64 gives it
    that much because variances inside have little to do with it. Shares are geometric means over
    all outputs that are uncertain. There is nothing to draw; it costs some seven responses.

        gain = spgru.consistent_gain(forecaster, x_train)
        y = spgru.respond(forecaster, x, gain=gain)

    Args:
        module, inputs, batch_dim, memory, function, options: those of `respond`
    """
    check_numbers(memory=memory, batch_dim=0 if batch_dim is None else batch_dim)
    check_module(module, "consistent_gain")
    call = module if function is None else function

    def share(gain: float) -> float:
        with torch.inference_mode(False), torch.enable_grad(), uncompiled(), uncalibrated(module):
            given = Inputs(unpacked(inputs), options)
            found = follow(module, call, given, gain, batch_dim, create_graph=False, memory=memory)
        closed = torch.cat([var.detach().flatten() for var in found.result.closed_variances])
        variances = found.result.summed(found.by_source().values())
        response = torch.cat([var.flatten() for var in variances])
        is_random = (closed > 0) & (response > 0)
        if not bool(is_random.any()):
            return 1.0
        return float((closed[is_random].log() - response[is_random].log()).mean().exp())

    low = high = 1.0
    while share(high) < _SHARE:
        low, high = high, high * _GROWTH
        if high > _LARGEST:
            return 1.0
    if high == 1:
        return 1.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if share(middle) < _SHARE:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
