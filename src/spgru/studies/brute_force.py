"""The variance that drawing weights gives, beside the closed form: `spgru.audit` for pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgru.calibration import uncalibrated
from spgru.nn.contexts import sampling

__all__ = ["BruteForce", "brute_force"]


class BruteForce(NamedTuple):
    """Of every group of sequences: variance summed over pixels, mean over frames and sequences."""

    closed: Tensor
    """(G,) in plain closed form"""
    calibrated: Tensor
    """(G,) with the calibration of the network; the same without one"""
    true: Tensor
    """(G,) over networks with drawn weights, each keeping its weights over time"""
    true_error: Tensor
    """(G,) standard error of `true`"""
    closed_by_frame: Tensor
    """(T, G)"""
    calibrated_by_frame: Tensor
    """(T, G)"""
    true_by_frame: Tensor
    """(T, G)"""
    true_error_by_frame: Tensor
    """(T, G)"""

    @property
    def ratio(self) -> Tensor:
        """(G,) closed over true: 1 is right, below 1 too confident"""
        return self.closed / self.true

    @property
    def ratio_error(self) -> Tensor:
        """(G,) standard error of `ratio`, to first order"""
        return self.ratio * self.true_error / self.true

    @property
    def calibrated_ratio(self) -> Tensor:
        """(G,) calibrated over true"""
        return self.calibrated / self.true

    @property
    def calibrated_ratio_error(self) -> Tensor:
        """(G,) standard error of `calibrated_ratio`, likewise"""
        return self.calibrated_ratio * self.true_error / self.true


@torch.no_grad()
def brute_force(model: Any, seen: Tensor, draws: int, seed: int = 0) -> BruteForce:
    """Closed form, plain and calibrated, against drawn networks.

    All sequences see the same drawn networks, so a standard error is that over networks of the
    mean over a group, not over its sequences.

    Args:
        model: of `spgru.models`, calibrated or not
        seen: (T, G, B, height, width), G groups of B sequences
        draws: networks drawn
    """
    groups = seen.shape[1]
    frames = seen.flatten(1, 2)
    calibrated = model.predict(frames)
    with uncalibrated(model):
        closed = model.predict(frames)

    def grouped(pixels: Tensor) -> Tensor:
        """(T, G * B, height, width) -> (T, G)"""
        sums = pixels.sum((-2, -1))
        return sums.reshape(len(sums), groups, -1).mean(2)

    first = torch.zeros_like(closed.mean, dtype=torch.float64)
    second = torch.zeros_like(first)
    squares = first.new_empty(draws, len(frames), groups)
    generator = torch.Generator(seen.device).manual_seed(seed)
    for draw in range(draws):
        with sampling(model, generator):
            # Of one network the logits are certain, and so is their sigmoid.
            pixels = torch.sigmoid(model.predict_logits(frames).mean)
        deviation = pixels.double() - closed.mean
        first += deviation
        second += deviation.square()
        squares[draw] = grouped(deviation.square())
    true = grouped((second - first.square() / draws) / (draws - 1)).cpu()
    plain, after = (grouped(one.var.double()).cpu() for one in (closed, calibrated))
    return BruteForce(
        closed=plain.mean(0),
        calibrated=after.mean(0),
        true=true.mean(0),
        true_error=squares.mean(1).std(0).cpu() / draws**0.5,
        closed_by_frame=plain,
        calibrated_by_frame=after,
        true_by_frame=true,
        true_error_by_frame=squares.std(0).cpu() / draws**0.5,
    )
