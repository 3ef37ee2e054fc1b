"""Networks of a forecast: all horizons at once, or step by step with forecasts read back.

Both start at a plain forecast, the last values or seasons smoothed, and learn what to add to it:
the means of the last layer are 0 at the start. Both work on windows in units of their own.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from spgru.forecast.widening import Widening
from spgru.functional import relu
from spgru.moments import Moments, cat, certain
from spgru.nn import GRU, LSTM, Linear
from spgru.nn.contexts import shared_weights

__all__ = ["Anchor", "Cell", "Direct", "FedBack"]

Cell = Literal["gru", "lstm"]
_ROUGHNESS = 2
"""Measures of a context's roughness, which its noise may depend on."""


class Anchor(NamedTuple):
    """A plain forecast: exponential smoothing of the values that lie whole lags before.

        a_k = sum over j of w_j y_{k - j lag},  w_j proportional to (1 - rate)^j

    over the values of the context. A rate of 1 is the last value, or the last season.
    """

    lag: int
    """1, or the season"""
    rate: float

    def __call__(self, values: Tensor, horizon: int) -> Tensor:
        """(B, C) -> (B, H)"""
        count = 1 if self.rate == 1 else values.shape[1] // self.lag
        seasons = values[:, values.shape[1] - count * self.lag :].reshape(-1, count, self.lag)
        powers = torch.arange(count - 1, -1, -1, device=values.device, dtype=values.dtype)
        weights = (1 - self.rate) ** powers if self.rate < 1 else torch.ones_like(powers)
        smooth: Tensor = (seasons * (weights / weights.sum())[:, None]).sum(1)
        return smooth[:, torch.arange(horizon, device=values.device) % self.lag]


class _Network(nn.Module):
    """What both have in common: the encoder, and noise that depends on what was read."""

    noise: nn.Linear
    """log variance, from the state's mean and the context's roughness"""

    def __init__(
        self,
        horizon: int,
        context: int,
        season: int,
        features: int,
        hidden_size: int,
        num_layers: int,
        cell: Cell,
        anchor: Anchor,
    ) -> None:
        super().__init__()
        self.horizon, self.context, self.season = horizon, context, season
        self.features, self.anchor = features, anchor
        layer = GRU if cell == "gru" else LSTM
        # Value, value a season before, whether it was observed; then what is known anyway.
        self.encoder = layer(3 + features, hidden_size, num_layers, batch_first=True)
        self.widening = Widening(context, horizon)

    def unit(self, roughness: Tensor) -> Tensor:
        """What a plain forecast is wrong by in one step, or season: the network answers in it.

        (B, 2) -> (B, 1)
        """
        return roughness[:, :1].exp() if self.anchor.lag == 1 else roughness[:, 1:].exp()

    def start_noise_(self, squares: Tensor) -> None:
        """Have the noise that the plain forecast's errors have. (H,) mean squares, in units"""
        _zero_means(self.noise)
        with torch.no_grad():
            self.noise.bias.copy_(squares.clamp(min=1e-6).log()[: len(self.noise.bias)])

    def _beside(self, read: Tensor, known: Tensor | Moments) -> Tensor | Moments:
        """What was read, and what is known anyway, if there is anything."""
        if not self.features:
            return read
        if isinstance(known, Moments):
            return cat([certain(read), known], -1)
        return torch.cat([read, known], -1)

    def _with_noise(self, y: Moments, state: Moments, roughness: Tensor) -> Moments:
        """The noise's own variance, a function of the state's mean, added to that of `y`."""
        log_var: Tensor = self.noise(torch.cat([state.mean, roughness], -1))
        return Moments(y.mean, y.var + log_var.clamp(-16.0, 12.0).exp())


class Direct(_Network):
    """All horizons at once: a linear map of the encoder's state and the context itself."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        hidden = self.encoder.hidden_size
        self.head = Linear(hidden + 2 * self.context - self.anchor.lag, self.horizon)
        self.noise = nn.Linear(hidden + _ROUGHNESS, self.horizon)
        if self.features:
            self.known = Linear(self.features + hidden, 16)
            self.effect = Linear(16 + self.features, 1)
            _zero_means(self.effect)
        _zero_means(self.head)

    def forward(
        self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor | Moments
    ) -> Moments:
        """(B, C), (B, C), (B, 2), (B, C + H, F) -> (B, H)"""
        lag, context, unit = self.anchor.lag, self.context, self.unit(roughness)
        change = (values[:, lag:] - values[:, :-lag]) / unit
        read = torch.stack([values[:, lag:], change, seen[:, lag:]], -1)
        x = self._beside(read, known[:, lag:context])
        state = self.encoder(x)[0][:, -1]
        y = self.head(cat([state, certain(values), certain(change)], -1))
        if self.features:
            # One small network for every horizon: what is known of it, and what was read.
            later = _moments(known[:, context:])
            repeated = state.unsqueeze(1).expand(-1, self.horizon, -1)
            hidden = relu(self.known(cat([later, repeated], -1)))
            y = y + self.effect(cat([hidden, later], -1))[..., 0]
        y = self._with_noise(y, state, roughness)
        found: Moments = self.widening(y * unit + self.anchor(values, self.horizon), values, seen)
        return found


class FedBack(_Network):
    """One step ahead, and the ones after it by reading its own forecasts, noise included.

    Of the anchor the lag counts: smoothing would read back the same forecast many times, and the
    closed form would take them for independent.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        hidden = self.encoder.hidden_size
        self.head = Linear(hidden, 1)
        self.noise = nn.Linear(hidden + _ROUGHNESS, 1)
        _zero_means(self.head)

    def one_step(
        self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor | Moments
    ) -> Moments:
        """The value after each from the season on: (B, N), (B, N), (B, 2), (B, N + 1, F)
        -> (B, N - season)"""
        season = self.season
        # The value a season before the one to forecast.
        before = values[:, 1 : values.shape[1] - season + 1]
        read = torch.stack([values[:, season:], before, seen[:, season:]], -1)
        x = self._beside(read, known[:, season + 1 :])
        states = self.encoder(x)[0]
        start = values[:, season:] if self.anchor.lag == 1 else before
        rough = roughness.unsqueeze(1).expand(-1, states.shape[1], -1)
        y = self._with_noise(self.head(states), states, rough)[..., 0]
        found: Moments = y * self.unit(roughness) + start
        return found

    def forward(
        self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor | Moments
    ) -> Moments:
        """(B, C), (B, C), (B, 2), (B, C + H, F) -> (B, H)"""
        season, context = self.season, self.context
        before = values[:, 1 : context - season + 1]
        read = torch.stack([values[:, season:], before, seen[:, season:]], -1)
        x = self._beside(read, known[:, season + 1 : context + 1])
        output, state = self.encoder(x)
        last, hidden = certain(values[:, -1:]), output[:, -1]
        found: list[Moments] = []
        certainly, unit = certain(torch.ones_like(values[:, -1:])), self.unit(roughness)
        with shared_weights(self):
            for k in range(self.horizon):
                lag = _at(values, found, context + k - season)
                if k:
                    parts = [last, lag, certainly]
                    if self.features:
                        parts.append(_moments(known[:, context + k]))
                    hidden, state = self.encoder.step(cat(parts, -1), state)
                start = last if self.anchor.lag == 1 else lag
                y = self._with_noise(self.head(hidden), hidden, roughness)
                last = y * unit + start
                found.append(last)
        joined: Moments = self.widening(cat(found, 1), values, seen)
        return joined


def _zero_means(layer: Any) -> None:
    """Weights that are 0 on average, with the spread that they have."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


def _at(values: Tensor, found: list[Moments], place: int) -> Moments:
    """The value at a place counted from the context's start: observed, or forecast. (B, 1)"""
    context = values.shape[1]
    return certain(values[:, place : place + 1]) if place < context else found[place - context]


def _moments(x: Tensor | Moments) -> Moments:
    return x if isinstance(x, Moments) else certain(x)
