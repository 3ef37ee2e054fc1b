"""Windows of many series: a context to read, the values that follow it, and what is known of both.

A window is a series and an origin, the number of values before the forecast. The last windows of
every series are for validation, and no window of the training reaches into their targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgru.forecast.scaling import Array, Scaling, at_least_usual
from spgru.forecast.usual import Usual, mean_steps
from spgru.moments import Moments

__all__ = ["LEAST_ROUGHNESS", "Batch", "Split", "Windows", "length_needed", "split_windows"]

Numbers = npt.NDArray[np.int64]
_ALL = slice(None)
LEAST_ROUGHNESS = 1e-3
"""Below it a series counts as constant."""
_MOST_FROM_CONTEXT = 20.0
"""Targets further than that from the context, in its scales, are moved here in training, so that
jumps of a series that is calm otherwise do not decide alone."""


class Split(NamedTuple):
    """Which windows train the network and which ones judge it."""

    last_origin: Numbers
    """(S,) of the training, for each series; below `first_origin` where a series has none"""
    first_origin: Numbers
    """(S,) likewise"""
    validation: tuple[Numbers, Numbers]
    """series and origin of each window"""


class Batch(NamedTuple):
    """Windows in their own units, ready for the network."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor | Moments]
    """what the network is called with: values (B, C), whether they were observed (B, C), measures
    of roughness (B, 2), features (B, C + H, F)"""
    target: Tensor
    """(B, H), NaN where nothing was observed"""
    scaling: Scaling


def split_windows(lengths: Sequence[int], horizon: int, least: int, windows: int) -> Split:
    """Origins for training and validation.

    Validation takes up to `windows` windows from the end of every series, with targets in its last
    fifth, or one window. They lie up to `horizon` apart.

    Args:
        least: values that a context must hold, the rest is filled as missing
    """
    size = np.asarray(lengths, np.int64)
    reach = np.maximum(horizon, np.minimum(windows * horizon, size // 5))
    first = np.full_like(size, least)
    last = size - reach - horizon
    series, origins = [], []
    for number, length in enumerate(size):
        lowest = max(int(length - reach[number]), least)
        found = np.unique(
            np.linspace(length - horizon, lowest, windows, dtype=np.int64)
            if length - horizon >= lowest
            else np.empty(0, np.int64)
        )
        series.append(np.full(len(found), number))
        origins.append(found)
    return Split(last, first, (np.concatenate(series), np.concatenate(origins)))


def length_needed(horizon: int, least: int, windows: int) -> int:
    """Values of a series without which `split_windows` finds no window of training in it."""
    length = least + 2 * horizon
    while split_windows([length], horizon, least, windows).last_origin[0] < least:
        length += 1
    return length


class Windows:
    """Series laid end to end, so that windows of many series are one indexing.

    Args:
        values: (n,) each, NaN where nothing was observed
        features: (n + at least as many as are forecast, F) each, or None
        feature_vars: their variances, or None where all are certain
        known: what is usual for the series of the fit, if these are others
    """

    def __init__(
        self,
        values: Sequence[Array],
        features: Sequence[Array] | None,
        feature_vars: Sequence[Array] | None,
        context: int,
        horizon: int,
        season: int,
        positive: bool,
        device: torch.device,
        known: Usual | None = None,
    ) -> None:
        self.context, self.horizon, self.season = context, horizon, season
        self.positive, self.device = positive, device
        rows = [len(v) + horizon for v in values]
        # Before every series there is room for a context, after it for what follows.
        starts = np.cumsum([context, *(n + context for n in rows)])
        self._starts = starts[:-1]
        self._values = np.full(int(starts[-1]), np.nan)
        for start, v in zip(self._starts, values, strict=True):
            self._values[start : start + len(v)] = v
        self.usual = Usual.of(values, context, season, positive)
        if known is not None:
            short = np.asarray([len(v) < 2 * context for v in values])
            self.usual = self.usual.completed(known, short)
        self._features = _laid(features, self._starts, len(self._values), rows)
        self._vars = _laid(feature_vars, self._starts, len(self._values), rows)
        self._span = np.arange(-context, horizon)

    def batch(
        self, series: Numbers, origins: Numbers, kept: slice = _ALL, clipped: bool = False
    ) -> Batch:
        """The windows of these series at these origins.

        Args:
            kept: of the context, the rest counts as missing
            clipped: move targets that are far from the context nearer
        """
        places = (self._starts[series] + origins)[:, None] + self._span
        values = self._values[places]
        context, target = values[:, : self.context], values[:, self.context :]
        if kept != _ALL:
            whole, context = context, np.full_like(context, np.nan)
            context[:, kept] = whole[:, kept]
        usual = self.usual.scale[series], self.usual.steps[series]
        scaling = Scaling.of(context, self.positive, usual[0], self.usual.level[series])
        z = scaling.forward(context)
        seen = ~np.isnan(z)
        inputs = (
            self._tensor(filled(z, self.season)),
            self._tensor(seen),
            self._tensor(roughness(z, self.season, usual[1] / scaling.scale)),
            self._known(places),
        )
        following = scaling.forward(target)
        if clipped:
            following = np.clip(following, -_MOST_FROM_CONTEXT, _MOST_FROM_CONTEXT)
        return Batch(inputs, self._tensor(following), scaling)

    def seen(self, series: Numbers, origins: Numbers) -> npt.NDArray[np.bool_]:
        """Which values of context and target were observed, (B, C + H)."""
        found: npt.NDArray[np.bool_] = ~np.isnan(
            self._values[(self._starts[series] + origins)[:, None] + self._span]
        )
        return found

    def observed(self, series: Numbers, origins: Numbers) -> npt.NDArray[np.bool_]:
        """Whether something was observed in both the context and the target of each window."""
        seen = self.seen(series, origins)
        enough: npt.NDArray[np.bool_] = (seen[:, : self.context].sum(1) > 1) & seen[
            :, self.context :
        ].any(1)
        return enough

    def _known(self, places: Numbers) -> Tensor | Moments:
        if self._features is None:
            return torch.zeros(*places.shape, 0, device=self.device)
        known = self._tensor(self._features[places])
        return known if self._vars is None else Moments(known, self._tensor(self._vars[places]))

    def _tensor(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(self.device)


def _laid(
    parts: Sequence[Array] | None, starts: Numbers, length: int, rows: Sequence[int]
) -> Array | None:
    """Features end to end; 0, their mean, where nothing is known."""
    if parts is None:
        return None
    laid = np.zeros((length, parts[0].shape[1]))
    for start, part, count in zip(starts, parts, rows, strict=True):
        part = part[:count]
        laid[start : start + len(part)] = part
    return laid


def filled(z: Array, season: int) -> Array:
    """Missing values replaced: by the one a season before or after, else by a neighbour.

    (B, C) -> (B, C). The network is told which ones.
    """
    if not np.isnan(z).any():
        return z
    z = z.copy()
    for lag in (season, 1):
        # In order of time, so that what was filled fills what follows; then backwards.
        for t in range(lag, z.shape[1]):
            z[:, t] = np.where(np.isnan(z[:, t]), z[:, t - lag], z[:, t])
        for t in range(z.shape[1] - lag - 1, -1, -1):
            z[:, t] = np.where(np.isnan(z[:, t]), z[:, t + lag], z[:, t])
    return z


def roughness(z: Array, season: int, usual: Array) -> Array:
    """log of the mean |difference| at lag 1 and at the season, in units of the context. (B, 2)

    Noise is mostly proportional to one of them, whatever the series.

    Args:
        usual: (B, 2), of other contexts of the series, NaN where unknown
    """
    mean = at_least_usual(mean_steps(z, season), usual)
    found: Array = np.log(np.maximum(np.where(np.isnan(mean), 1.0, mean), LEAST_ROUGHNESS))
    return found
