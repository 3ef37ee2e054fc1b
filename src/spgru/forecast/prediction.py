"""From a trained network to forecasts: passes in parts, and the variance by source.

Shares of the variance are those of the network as trained. A calibration changes the whole: of what
happened alone it cannot be told whether weights or noise were too small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spgru.calibration import uncalibrated
from spgru.forecast.network import Direct, FedBack
from spgru.forecast.scaling import Array, Scaling
from spgru.forecast.windows import Numbers, Windows
from spgru.moments import Moments
from spgru.nn.contexts import at_mean, frozen
from spgru.response import respond

__all__ = ["Predicted", "run"]

_CHUNK = 512
"""Series of one pass; memory does not grow with their number."""
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | Moments]


class Predicted(NamedTuple):
    """In the units of each window, (S, H)."""

    mean: Array
    var: Array
    scaling: Scaling
    shares: dict[str, Array] | None


def run(
    network: Direct | FedBack, windows: Windows, series: Numbers, origins: Numbers, parts: bool
) -> Predicted:
    """Forecasts of these windows, with parts of the variance if they are asked for."""
    means, variances, scalings, shares = [], [], [], []
    for start in range(0, len(series), _CHUNK):
        batch = windows.batch(series[start : start + _CHUNK], origins[start : start + _CHUNK])
        y, split = _moments_and_parts(network, batch.inputs, parts)
        means.append(_array(y.mean))
        variances.append(_array(y.var))
        scalings.append(batch.scaling)
        shares.append({name: _array(part / y.var) for name, part in split.items()})
    units = [scaling.unit for scaling in scalings if scaling.unit is not None]
    scaling = Scaling(
        np.concatenate([s.loc for s in scalings]),
        np.concatenate([s.scale for s in scalings]),
        np.concatenate(units) if units else None,
    )
    joined = {name: np.concatenate([s[name] for s in shares]) for name in shares[0]}
    return Predicted(
        np.concatenate(means), np.concatenate(variances), scaling, joined if parts else None
    )


def _moments_and_parts(
    network: Direct | FedBack, inputs: Inputs, parts: bool
) -> tuple[Moments, dict[str, Tensor]]:
    """The forecast, and what its variance comes from (empty if not asked for).

    Weights and noise are those of the calibrated closed form. What uncertain inputs add is computed
    by linear response: the closed form takes units that all read one input for independent, and
    would lose most of it.
    """
    known = inputs[3]
    certain = (*inputs[:3], known.mean) if isinstance(known, Moments) else inputs
    with torch.no_grad(), frozen(network):
        y: Moments = network(*certain)
    added, by_source = torch.zeros_like(y.var), None
    if isinstance(known, Moments) and bool((known.var > 0).any()):
        _, by_source = respond(network, *inputs, sources=True, batch_dim=0)
        for name, part in by_source.items():
            added += part.detach() if name.startswith("input") else 0.0
    found = Moments(y.mean, y.var + added)
    if not parts:
        return found, {}
    if isinstance(network, Direct):
        noise = _share_of_noise(network, certain)
    else:
        # Noise that is read back acts at later steps too, which only the response follows.
        if by_source is None:
            _, by_source = respond(network, *inputs, sources=True, batch_dim=0)
        own = {k: v.detach() for k, v in by_source.items() if not k.startswith("input")}
        noise = own.get("noise", torch.zeros_like(added)) / sum(own.values())
    return found, {"weights": y.var * (1 - noise), "inputs": added, "noise": y.var * noise}


@torch.no_grad()
def _share_of_noise(network: Direct, inputs: Inputs) -> Tensor:
    """What is left of the variance with certain weights."""
    with uncalibrated(network):
        whole = network(*inputs).var
        with at_mean(network):
            noise: Tensor = network(*inputs).var / whole
    return noise.clamp(max=1)  # it may round above


def _array(values: Tensor) -> Array:
    return np.asarray(values.detach().double().cpu())
