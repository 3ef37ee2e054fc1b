"""MC-LSTM: the mean and variance over networks thinned by dropout, in its fastest form.

The masks act on the input and are constant over time; the layer itself is that of `torch.nn`, since
cuDNN cannot apply a mask inside. Drawing the masks and the moments over draws count in the
time, for they are the method.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from spgru.bench.check import Comparison, compare, relative_error
from spgru.bench.contender import Contender, bytes_of
from spgru.bench.problem import Problem

__all__ = ["DRAWS", "MCLSTM", "sampling_contenders"]

DRAWS = 50
"""as in the paper's comparison of speeds"""
DROPOUT = 0.2
"""that of `spgru.baselines.MCDropoutLSTM`; the time does not depend on it"""


class MCLSTM:
    """Args:
    lstm: `torch.nn.LSTM`
    dropout: probability that an input is missing
    """

    def __init__(self, lstm: Any, dropout: float = DROPOUT) -> None:
        self.lstm, self.dropout = lstm.eval().requires_grad_(False), dropout

    def _masks(self, draws: int, x: Tensor) -> Tensor:
        """(draws, B, I): 0, or 1 / (1 - dropout) to keep the mean"""
        remaining = 1 - self.dropout
        return x.new_empty(draws, *x.shape[1:]).bernoulli_(remaining).div_(remaining)

    def draws(self, x: Tensor, draws: int) -> Tensor:
        """(T, B, I) -> (T, draws, B, H), all draws as one batch"""
        thinned = (x.unsqueeze(1) * self._masks(draws, x)).flatten(1, 2)
        output: Tensor = self.lstm(thinned)[0]
        return output.reshape(len(x), draws, x.shape[1], -1)

    @torch.no_grad()
    def folded(self, x: Tensor, draws: int = DRAWS) -> tuple[Tensor, Tensor]:
        """Mean and variance (T, B, H)."""
        return _moments(self.draws(x, draws))

    @torch.no_grad()
    def looped(self, x: Tensor, draws: int = DRAWS) -> tuple[Tensor, Tensor]:
        """The same, one network at a time and in the memory of one."""
        first = self.draws(x, 1)[:, 0].float()
        # Deviations from the first draw, so that equal draws have variance 0 to the last digit.
        total, squares = torch.zeros_like(first), torch.zeros_like(first)
        for _ in range(draws - 1):
            deviation = self.draws(x, 1)[:, 0] - first
            total += deviation
            squares += deviation.square()
        mean = total / draws
        var = (squares - total * mean).clamp_(min=0) / (draws - 1)
        return (first + mean).to(x.dtype), var.to(x.dtype)


def _moments(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """(T, draws, B, H) -> mean and variance (T, B, H), the fastest way on each device."""
    if drawn.device.type == "cuda":
        var, mean = torch.var_mean(drawn, 1)
        return mean, var
    # By hand: on one CPU thread `torch.var_mean` takes 7 to 16 times as long.
    mean = drawn.mean(1)
    return mean, (drawn - mean.unsqueeze(1)).square_().sum(1) / (drawn.shape[1] - 1)


def sampling_contenders(problem: Problem, limit: float, looped: bool) -> list[Contender]:
    """Forward only: training takes one draw at a time, which costs what `nn.LSTM` costs."""
    model = MCLSTM(problem.plain("LSTM"))
    methods = ("folded", "looped") if looped else ("folded",)
    return [
        Contender(
            f"MC-LSTM-{DRAWS}, {method}",
            "sampling",
            "LSTM",
            lambda method=method: getattr(model, method)(problem.x),  # type: ignore[misc]
            partial(check_sampling, model, method, problem, limit),
            bytes_of(model.lstm),
        )
        for method in methods
    ]


def check_sampling(model: MCLSTM, method: str, problem: Problem, limit: float) -> list[Comparison]:
    """Without dropout it is `nn.LSTM`; with it, the moments are those of drawing in float64.

    Errors of moments are in standard errors, for the first sequence of the batch: the root mean
    square over its outputs for the mean, and that of the variances' sum.
    """
    certain = MCLSTM(model.lstm, 0.0)
    mean, var = getattr(certain, method)(problem.x)
    comparisons = compare({"mean": mean}, problem.plain_truth("LSTM"), limit)
    error_of_std = relative_error(mean + var.sqrt(), mean)
    comparisons.append(Comparison("std of equal draws", error_of_std, limit))

    count = 4 * DRAWS
    truth = MCLSTM(problem.plain("LSTM", torch.float64), model.dropout)
    with torch.no_grad():
        true = truth.draws(problem.x[:, :1].double(), count)[:, :, 0]  # (T, count, H)
    mean, var = (part[:, 0].double() for part in getattr(model, method)(problem.x))
    true_var, true_mean = torch.var_mean(true, 1)
    error = (true_var * (1 / DRAWS + 1 / count)).sqrt()
    off = ((mean - true_mean) / error).square().mean().sqrt().item()
    # About 1 by construction. The outputs of a drawn network are correlated, in the extreme all the
    # same, and then this is |z| of one normal variable: beyond 3 once in 370 times.
    comparisons.append(Comparison("mean, in standard errors", off, 3.0))
    squared = (true - true_mean.unsqueeze(1)).square().sum((0, 2)) * count / (count - 1)
    error = squared.std() * (1 / DRAWS + 1 / count) ** 0.5
    off = ((var.sum() - true_var.sum()).abs() / error).item()
    # Squares have heavier tails than the normal that a limit of 3 would stand for.
    comparisons.append(Comparison("variance, in standard errors", off, 5.0))
    return comparisons
