"""Wider intervals where a context tells less than others: missing values, or hardly any change.

A forecast h steps after a gap of g lies h + g steps after the last value that was observed, and a
context of few values tells little of how much a series varies. Few series show a network enough of
either. So it is measured after the training, on windows whose values are hidden for the purpose,
by how much its errors then exceed those without. A context that lacks nothing keeps its variance.

A context that is constant in a series that is not, or far calmer than usual, ends in a jump some
day. Calibration, by all windows alike, may hold without these, so they have a factor of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from spgru.forecast.scaling import Array
from spgru.forecast.windows import Numbers, Windows
from spgru.moments import Moments
from spgru.nn.contexts import frozen

if TYPE_CHECKING:
    from spgru.forecast.network import Direct, FedBack

__all__ = ["Widening", "fit_widening"]

_LEVEL = 0.8
"""Of the interval that hidden values must not make hold less often."""
_LEAST_COUNT = 2
"""Observed values without which there is no forecast."""
_LEAST_WINDOWS = 16
"""Fewer say nothing of errors."""
_MOST_WINDOWS = 128
_CALM = 0.5
"""Contexts are calm whose values vary less than this share of the scale they are given: it is that
of the series' other contexts."""
_GROWTH = 2
"""From a gap, or a count, that is measured to the next."""


class Widening(nn.Module):
    """A factor on the variance, by what of the context was observed; 1 before it is fitted."""

    by_gap: Tensor
    """(C + 1, H), by the steps since the last observed value"""
    by_count: Tensor
    """(C + 1,), by the number of observed values"""
    by_calm: Tensor
    """(H,), of contexts that are calm"""

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.register_buffer("by_gap", torch.ones(context + 1, horizon))
        self.register_buffer("by_count", torch.ones(context + 1))
        self.register_buffer("by_calm", torch.ones(horizon))

    def forward(self, y: Moments, values: Tensor, seen: Tensor) -> Moments:
        """(B, H), (B, C), (B, C) -> (B, H)"""
        context = seen.shape[1]
        places = torch.arange(1, context + 1, device=seen.device, dtype=seen.dtype)
        gap = context - (seen * places).amax(1)
        count = seen.sum(1)
        factor = self.by_gap[gap.long()] * self.by_count[count.long()].unsqueeze(1)
        factor = torch.where(is_calm(values, seen).unsqueeze(1), factor * self.by_calm, factor)
        return Moments(y.mean, y.var * factor.to(y.var))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        # Forecasters saved before there were factors go on without.
        for name, value in self.named_buffers():
            state_dict.setdefault(prefix + name, torch.ones_like(value))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def is_calm(values: Tensor, seen: Tensor) -> Tensor:
    """Whether what was observed varies far less than its scale. (B, C), (B, C) -> (B,)"""
    count = seen.sum(1).clamp(min=1)
    mean = (values * seen).sum(1) / count
    var = ((values - mean.unsqueeze(1)).square() * seen).sum(1) / count
    return var < _CALM**2


def fit_widening(
    network: Direct | FedBack, windows: Windows, which: tuple[Numbers, Numbers]
) -> None:
    """Measure the factors on these windows, in place.

    They do not fall as a gap grows, nor as fewer values are observed.
    """
    context, widening = windows.context, network.widening
    values, seen, _, _ = windows.batch(*which).inputs
    calm = is_calm(values, seen).cpu().numpy()
    alike = _errors(network, windows, *_some(which, calm), slice(None))
    if alike is not None:
        allowed = NormalDist().inv_cdf((1 + _LEVEL) / 2) ** 2
        widening.by_calm.copy_(torch.from_numpy(np.maximum(alike / allowed, 1.0)))
    series, origins = _some(which, ~calm)
    whole = _errors(network, windows, series, origins, slice(None))
    if whole is None:
        return
    counts, factors = [context], [1.0]
    for count in reversed(list(_grid(_LEAST_COUNT, context - 1))):
        few = _errors(network, windows, series, origins, slice(context - count, None))
        if few is not None:
            counts.append(count)
            factors.append(max(factors[-1], float(np.mean(_ratio(few, whole)))))
    # What is not measured has the factor of the next smaller count: rather too wide.
    table = np.interp(np.arange(context + 1), counts[::-1], factors[::-1])
    widening.by_count.copy_(torch.from_numpy(table))
    gaps, rows = [0], [np.ones(windows.horizon)]
    for gap in _grid(1, context - _LEAST_COUNT):
        hidden = _errors(network, windows, series, origins, slice(context - gap))
        if hidden is not None:
            gaps.append(gap)
            rows.append(np.maximum(rows[-1], _ratio(hidden, whole)))
    by_gap = [np.interp(np.arange(context + 1), gaps, column) for column in np.transpose(rows)]
    widening.by_gap.copy_(torch.from_numpy(np.stack(by_gap, 1)))


def _some(which: tuple[Numbers, Numbers], chosen: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """At most `_MOST_WINDOWS` of the chosen ones."""
    series, origins = which[0][chosen], which[1][chosen]
    every = max(1, -(-len(series) // _MOST_WINDOWS))
    return series[::every], origins[::every]


def _grid(first: int, last: int) -> Iterator[int]:
    """From the first to the last, ever further apart."""
    place = first
    while place < last:
        yield place
        place = place * _GROWTH
    if first <= last:
        yield last


def _errors(
    network: Direct | FedBack, windows: Windows, series: Numbers, origins: Numbers, kept: slice
) -> Array | None:
    """Squares of |error| / std that `_LEVEL` of the windows stay below, (H,), if there are enough.

    Args:
        kept: of the context; its last value must have been observed, so that gaps are as long as
            they are meant to be
    """
    context = windows.seen(series, origins)[:, : windows.context][:, kept]
    usable = context[:, -1] & (context.sum(1) >= _LEAST_COUNT)
    if usable.sum() < _LEAST_WINDOWS:
        return None
    batch = windows.batch(series[usable], origins[usable], kept)
    with torch.no_grad(), frozen(network):
        y: Moments = network(*batch.inputs)
    sizes = ((batch.target - y.mean).square() / y.var).double().cpu().numpy()
    if (~np.isnan(sizes)).sum(0).min() < _LEAST_WINDOWS:
        return None
    found: Array = np.nanquantile(sizes, _LEVEL, axis=0)
    return found


def _ratio(errors: Array, whole: Array) -> Array:
    return errors / np.maximum(whole, np.finfo(np.float32).tiny)
