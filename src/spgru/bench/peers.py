"""Other libraries, where they are installed: the extra `bench`.

Those that draw weights are timed for one draw, which counts DRAWS times: they know no other way
than to be called again. Their check is that without variance they are the layer of `torch.nn`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from spgru.bench.check import Comparison, compare, relative_error
from spgru.bench.contender import Absent, Contender, Made, network
from spgru.bench.problem import MEANS, Answer, Cell, Problem, gradients
from spgru.bench.sampling import DRAWS
from spgru.bench.shapes import Mode

__all__ = ["peers"]

_NO_VARIANCE = -40.0
"""For rho, whose softplus is a standard deviation there: 4e-18, below any rounding."""


def peers(problem: Problem, mode: Mode, limit: float) -> list[Made]:
    makers: tuple[tuple[str, Cell, str, Callable[..., Made]], ...] = (
        ("BLiTZ GRU", "GRU", "blitz.modules", _blitz),
        ("bayesian-torch LSTM", "LSTM", "bayesian_torch.layers", _bayesian_torch),
        ("laplace-torch GRU", "GRU", "laplace", _laplace),
        ("pytagi LSTM", "LSTM", "pytagi.nn", _pytagi),
    )
    return [_make(*maker, problem, mode, limit) for maker in makers]


def _make(
    name: str,
    cell: Cell,
    module: str,
    maker: Callable[..., Made],
    problem: Problem,
    mode: Mode,
    limit: float,
) -> Made:
    try:
        with warnings.catch_warnings(action="ignore"):
            library = import_module(module)
    except ModuleNotFoundError as error:
        return Absent(name, "peer", cell, "not installed", str(error))
    except Exception as error:  # a dependency of it is missing or of another version
        return Absent(name, "peer", cell, "not installed", f"import fails: {error}")
    try:
        with warnings.catch_warnings(action="ignore"):
            return maker(name, library, problem, mode, limit)
    except Exception as error:  # listed, and the others are still measured
        return Absent(name, "peer", cell, "failed", f"{type(error).__name__}: {error}")


def _drawing(contender: Contender, mode: Mode, rhos: list[nn.Parameter]) -> Contender:
    """One draw; the check switches the variance off and on again."""

    def check() -> list[Comparison]:
        with _changed(rhos, _NO_VARIANCE):
            return contender.check()

    draws = "one draw" if mode == "training" else f"{DRAWS} draws"
    return replace(
        contender,
        name=f"{contender.name}, {draws}",
        check=check,
        repeats=1 if mode == "training" else DRAWS,
    )


@contextmanager
def _changed(parameters: list[nn.Parameter], value: float) -> Iterator[None]:
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)


def _batch_first(layer: Any, x: Tensor) -> tuple[Tensor]:
    return (layer(x.transpose(0, 1))[0].transpose(0, 1),)


def _blitz(name: str, library: ModuleType, problem: Problem, mode: Mode, limit: float) -> Contender:
    """Its four blocks are r, z, and the two parts of the candidate, with one bias for both."""
    shape, plain = problem.case.shape, problem.plain("GRU")
    layer = library.BayesianGRU(shape.inputs, shape.hidden).to(problem.device, problem.dtype)
    ih, hh, bias = (
        getattr(layer, f"{part}_sampler") for part in ("weight_ih", "weight_hh", "bias")
    )
    size = shape.hidden
    first, last = slice(0, 3 * size), [*range(2 * size), *range(3 * size, 4 * size)]
    with torch.no_grad():
        ih.mu[:, first] = plain.weight_ih_l0.T
        hh.mu[:, last] = plain.weight_hh_l0.T
        bias.mu[last] = plain.bias_hh_l0
        bias.mu[2 * size : 3 * size] = plain.bias_ih_l0[2 * size :]
        bias.mu[: 2 * size] += plain.bias_ih_l0[: 2 * size]

    def by_means(layer: Any) -> Answer:
        parts = (
            ih.mu.grad[:, first].T, hh.mu.grad[:, last].T, bias.mu.grad[first], bias.mu.grad[last],
        )  # fmt: skip
        return {MEANS: torch.cat([part.flatten() for part in parts])}

    contender = network(
        name, "peer", "GRU", layer, _batch_first, by_means,
        lambda: problem.plain_truth("GRU"), problem, mode, limit,
    )  # fmt: skip
    return _drawing(contender, mode, [part.rho for part in (ih, hh, bias)])


def _bayesian_torch(
    name: str, library: ModuleType, problem: Problem, mode: Mode, limit: float
) -> Contender:
    """It draws its weights anew at every step."""
    shape, plain = problem.case.shape, problem.plain("LSTM")
    layer = library.LSTMReparameterization(shape.inputs, shape.hidden)
    layer = layer.to(problem.device, problem.dtype)
    parts = layer.ih.mu_weight, layer.hh.mu_weight, layer.ih.mu_bias, layer.hh.mu_bias
    with torch.no_grad():
        for part, parameter in zip(parts, plain.parameters(), strict=True):
            part.copy_(parameter)
    contender = network(
        name, "peer", "LSTM", layer, _batch_first, lambda _: {MEANS: gradients(parts)},
        lambda: problem.plain_truth("LSTM"), problem, mode, limit,
    )  # fmt: skip
    rhos = [p for half in (layer.ih, layer.hh) for p in (half.rho_weight, half.rho_bias)]
    return _drawing(contender, mode, rhos)


class _LastState(nn.Module):
    """(B, T, I) -> (B, H): what Laplace's predictive is asked for, batch first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        # cuDNN can neither be differentiated in eval nor be vectorised over.
        with torch.backends.cudnn.flags(enabled=False):
            output: Tensor = self.layer(x.transpose(0, 1))[0][-1]
        return output


_MOST_JACOBIAN = {"cuda": 4 << 30, "cpu": 1 << 30}
"""Bytes; laplace-torch holds several tensors of that size at once."""


def _laplace(name: str, library: ModuleType, problem: Problem, mode: Mode, limit: float) -> Made:
    """A diagonal posterior around a trained `nn.GRU`; variance of the last state alone.

    The Jacobian is of all outputs by all weights, so that not even one step more would be possible.
    """
    if mode == "training":
        return Absent(name, "peer", "GRU", "skipped", "trains as nn.GRU does")
    shape, plain = problem.case.shape, problem.plain("GRU")
    weights = sum(p.numel() for p in plain.parameters())
    size = shape.batch * shape.hidden * weights * problem.x.element_size()
    if size > _MOST_JACOBIAN[problem.device.type]:
        return Absent(
            name, "peer", "GRU", "skipped", f"its Jacobian would take {size / 2**30:.3g} GiB"
        )
    posterior = library.Laplace(
        _LastState(plain), "regression", subset_of_weights="all", hessian_structure="diag"
    )
    target = problem.cotangents[0][-1]
    data = torch.utils.data.TensorDataset(problem.x.transpose(0, 1), target)
    posterior.fit(torch.utils.data.DataLoader(data, batch_size=shape.batch))

    def work() -> Any:
        return posterior(problem.x.transpose(0, 1))

    def check() -> list[Comparison]:
        mean, covariance = work()
        comparisons = compare(
            {"mean": mean.detach()}, {"mean": problem.plain_truth("GRU")["mean"][-1]}, limit
        )
        # One unit of one sequence, by a Jacobian in float64.
        precise = problem.plain("GRU", torch.float64)
        precise(problem.x[:, :1].double())[0][-1, 0, 0].backward()
        jacobian = gradients(list(precise.parameters()))
        var = (jacobian.square() * posterior.posterior_variance.double()).sum()
        error = relative_error(covariance[0, 0, 0].detach(), var)
        comparisons.append(Comparison("var", error, limit))
        return comparisons

    size = 2 * sum(p.nbytes for p in plain.parameters())
    return Contender(f"{name}, last state", "peer", "GRU", work, check, size)


def _pytagi(name: str, library: ModuleType, problem: Problem, mode: Mode, limit: float) -> Absent:
    """Release 0.2.1 carries the state from step to step for a batch of 1 only."""
    return Absent(name, "peer", "LSTM", "skipped", "its LSTM does not carry the state of a batch")
