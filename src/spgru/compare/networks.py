"""Baselines of `torch.nn`, all around one network: the twin of ours with certain weights.

They read the same windows, start at the same plain forecast and are trained by the same code as
ours. Each is a module from inputs of a batch to Moments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from spgru.forecast.network import Anchor
from spgru.moments import Moments

__all__ = ["Ensemble", "MonteCarloDropout", "PlainDirect", "mixed"]

_ROUGHNESS = 2


class PlainDirect(nn.Module):
    """A GRU, then mean and log variance of all horizons: `spgru.forecast`'s `Direct` in torch.nn.

    Args:
        horizon: steps to forecast
        context: values to read
        anchor: the plain forecast that is added to
        dropout: share of the encoder's inputs and of its last state that is dropped in training;
            inputs of a sequence all at once or not at all (Gal and Ghahramani 2016)
    """

    def __init__(
        self, horizon: int, context: int, hidden_size: int, anchor: Anchor, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.horizon, self.anchor, self.dropout = horizon, anchor, dropout
        self.encoder = nn.GRU(3, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size + 2 * context - anchor.lag, horizon)
        self.noise = nn.Linear(hidden_size + _ROUGHNESS, horizon)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def start_noise_(self, squares: Tensor) -> None:
        """Have the noise that the plain forecast's errors have. (H,) mean squares, in units"""
        with torch.no_grad():
            self.noise.weight.zero_()
            self.noise.bias.copy_(squares.clamp(min=1e-6).log())

    def unit(self, roughness: Tensor) -> Tensor:
        """What the plain forecast is wrong by. (B, 2) -> (B, 1)"""
        return roughness[:, :1].exp() if self.anchor.lag == 1 else roughness[:, 1:].exp()

    def masks(self, count: int) -> tuple[Tensor, Tensor]:
        """Drawn ones of the encoder's inputs and of its last state. (count, 1, 3), (count, H)"""
        like = self.noise.bias.new_ones
        shapes = (count, 1, 3), (count, self.encoder.hidden_size)
        read, state = (dropout(like(shape), self.dropout) for shape in shapes)
        return read, state

    def features(
        self,
        values: Tensor,
        seen: Tensor,
        roughness: Tensor,
        masks: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """What the last layer reads: the state, the context and its changes. (B, F)"""
        lag = self.anchor.lag
        change = (values[:, lag:] - values[:, :-lag]) / self.unit(roughness)
        read = torch.stack([values[:, lag:], change, seen[:, lag:]], -1)
        state: Tensor = self.encoder(read if masks is None else read * masks[0])[0][:, -1]
        state = state if masks is None else state * masks[1]
        return torch.cat([state, values, change], -1)

    def answer(self, features: Tensor, values: Tensor, roughness: Tensor) -> Moments:
        """From features to the forecast. (B, H)"""
        unit = self.unit(roughness)
        state = features[:, : self.encoder.hidden_size]
        log_var = self.noise(torch.cat([state, roughness], -1)).clamp(-16.0, 12.0)
        mean = self.head(features) * unit + self.anchor(values, self.horizon)
        return Moments(mean, log_var.exp() * unit.square())

    def forward(self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor) -> Moments:
        """(B, C), (B, C), (B, 2), (B, C + H, 0) -> (B, H)"""
        drops = self.training and self.dropout > 0
        masks = self.masks(len(values)) if drops else None
        features = self.features(values, seen, roughness, masks)
        return self.answer(features, values, roughness)


def mixed(mean: Tensor, var: Tensor) -> Moments:
    """Moments of the mixture of N Gaussians with equal weights. (N, B, H) each -> (B, H)"""
    return Moments(mean.mean(0), var.mean(0) + mean.var(0, correction=0))


class Ensemble(nn.Module):
    """Networks trained from different seeds (Lakshminarayanan et al. 2017)."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Tensor) -> Moments:
        found = [member(*inputs) for member in self.members]
        return mixed(torch.stack([y.mean for y in found]), torch.stack([y.var for y in found]))


class MonteCarloDropout(nn.Module):
    """A network with dropout that stays on: `draws` masks, folded into one batch.

    Always the same masks, for all sequences, so that a forecast can be repeated and depends on
    its own history alone.
    """

    def __init__(self, network: PlainDirect, draws: int) -> None:
        super().__init__()
        self.network, self.draws = network, draws

    def forward(self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor) -> Moments:
        count = len(values)
        values, seen, roughness = (part.repeat(self.draws, 1) for part in (values, seen, roughness))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            drawn = self.network.masks(self.draws)
        read, state = (mask.repeat_interleave(count, 0) for mask in drawn)
        features = self.network.features(values, seen, roughness, (read, state))
        y = self.network.answer(features, values, roughness)
        shape = self.draws, -1, y.mean.shape[-1]
        return mixed(y.mean.reshape(shape), y.var.reshape(shape))
