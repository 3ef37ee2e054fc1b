"""A fitted `Forecaster` as one ONNX program: raw values in, mean and variance of the series out."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.forecast.covariates import Covariates
from spgru.forecast.data import Panel
from spgru.forecast.features import FeatureScaling, features_of
from spgru.forecast.network import Direct, FedBack
from spgru.forecast.scaling import FLOOR, Array
from spgru.forecast.windows import LEAST_ROUGHNESS
from spgru.moments import Moments
from spgru.onnx_export import write_program

if TYPE_CHECKING:
    from spgru.forecast.forecaster import Forecaster

__all__ = ["inputs_of", "to_onnx"]


def to_onnx(forecaster: Forecaster, path: str | PathLike[str]) -> Path:
    """See `Forecaster.to_onnx`."""
    state = forecaster._fitted()
    if state.covariates is not None and state.covariates.var is not None:
        raise ValueError(
            "the covariates of this forecaster are uncertain, and what that adds to the variance "
            "takes gradients, which an ONNX program does not have; fit with certain covariates"
        )
    network, device = state.network, next(state.network.parameters()).device
    program = _Program(network, state.scaling, forecaster.settings.positive).eval()
    # Any values do: sizes alone matter, and two rows, since one would be taken for a constant.
    inputs = {"values": torch.randn(2, state.context, dtype=torch.float64, device=device).exp()}
    if network.features:
        rows = state.context + network.horizon
        inputs["known"] = torch.randn(2, rows, network.features, dtype=torch.float64, device=device)
    outputs = ["mean", "var"]
    if forecaster.settings.positive:
        outputs += ["log_mean", "log_var", "unit"]
    was_training = network.training
    try:
        return write_program(program, Path(path), inputs, outputs, [[0]] * len(inputs))
    finally:
        network.train(was_training)


def inputs_of(
    forecaster: Forecaster, panel: Panel, covariates: Covariates | None
) -> dict[str, Array]:
    """Windows of these series at their ends, in the units they have, NaN where nothing is known."""
    state, horizon = forecaster._fitted(), forecaster.settings.horizon
    found = {"values": np.stack([_last(values, state.context) for values in panel.values])}
    if state.scaling.size:
        count = len(state.scaling.mean)
        plain = FeatureScaling(np.zeros(count), np.ones(count), state.scaling.calendar)
        calendar = forecaster.settings.calendar
        (known, _), _ = features_of(panel, covariates, calendar, horizon, plain)
        assert known is not None
        found["known"] = np.stack([_last(rows, state.context + horizon) for rows in known])
    return found


def _last(rows: Array, count: int) -> Array:
    """The last rows, after NaN where there are fewer."""
    rows = rows[-count:]
    return np.concatenate([np.full((count - len(rows), *rows.shape[1:]), np.nan), rows])


class _Program(nn.Module):
    """What `Windows`, the network and `Scaling` do, as one function of tensors.

    Units are found in float64, in which series are read; the network works in float32.
    """

    def __init__(self, network: Direct | FedBack, features: FeatureScaling, positive: bool) -> None:
        super().__init__()
        self.network, self.positive = network, positive
        like = next(network.parameters())
        calendar = np.zeros(features.calendar)
        for name, values in (
            ("known_mean", np.concatenate([calendar, features.mean])),
            ("known_std", np.concatenate([calendar + 1, features.std])),
        ):
            self.register_buffer(name, torch.from_numpy(values).to(like.device), persistent=False)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        values, unit = tensors[0], None
        if self.positive:
            unit = _nanmean(values)
            unit = torch.where(unit > 0, unit, 1.0)
            values = torch.log1p(values / unit)
        loc = _nanmean(values)
        level = _nanmean(values.abs())
        floor = FLOOR * torch.where(level > 0, level, 1.0)
        scale = torch.maximum(_nanmean((values - loc).square()).sqrt(), floor)
        z = (values - loc) / scale
        season, dtype = self.network.season, next(self.network.parameters()).dtype
        y: Moments = self.network(
            _filled(z, season).to(dtype),
            (~z.isnan()).to(dtype),
            _roughness(z, season).to(dtype),
            self._known(tensors[1:], z).to(dtype),
        )
        mean, var = loc + scale * y.mean.double(), scale.square() * y.var.double()
        if unit is None:
            return mean, var
        factor = (mean + var / 2).exp()
        return unit * (factor - 1), (unit * factor).square() * torch.expm1(var), mean, var, unit

    def _known(self, given: Sequence[Tensor], z: Tensor) -> Tensor:
        """(B, C + H, F) in units of the fit; 0, their mean, where nothing is known."""
        if not given:
            return z.new_zeros(z.shape[0], self.network.context + self.network.horizon, 0)
        known = given[0]
        mean: Any = self.known_mean
        return torch.where(known.isnan(), 0.0, (known - mean) / self.known_std)


def _nanmean(x: Tensor) -> Tensor:
    """(B, N) -> (B, 1)"""
    seen = ~x.isnan()
    return torch.where(seen, x, 0.0).sum(1, keepdim=True) / seen.sum(1, keepdim=True)


def _filled(z: Tensor, season: int) -> Tensor:
    """`spgru.forecast.windows.filled`, in steps that double.

    After the steps 1, 2, 4, ... lags every entry has the nearest observed one before it.
    """
    size = z.shape[1]
    for lag in (season, 1):
        for is_backwards in (False, True):
            step = lag
            while step < size:
                if is_backwards:
                    shifted = F.pad(z[:, step:], (0, step), value=float("nan"))
                else:
                    shifted = F.pad(z[:, : size - step], (step, 0), value=float("nan"))
                z = torch.where(z.isnan(), shifted, z)
                step *= 2
    return z


def _roughness(z: Tensor, season: int) -> Tensor:
    """`spgru.forecast.windows.roughness`."""
    found = []
    for lag in (1, season):
        difference = (z[:, lag:] - z[:, :-lag]).abs()
        seen = (~difference.isnan()).sum(1, keepdim=True)
        total = torch.where(difference.isnan(), 0.0, difference).sum(1, keepdim=True)
        mean = torch.where(seen > 0, total / seen.clamp(min=1), 1.0)
        found.append(mean.clamp(min=LEAST_ROUGHNESS).log())
    return torch.cat(found, 1)
