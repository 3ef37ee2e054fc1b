"""Who takes part. Peers that need a package of their own are in `peers`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import numpy as np

from spgru.compare.method import Budget, Method, Predict
from spgru.compare.networks import Ensemble, MonteCarloDropout
from spgru.compare.peers import auto_ets, deep_ar, laplace
from spgru.compare.scores import LEVELS
from spgru.compare.tasks import Task
from spgru.compare.training import Workshop, forecasting, prepare, timed, trained
from spgru.forecast import Forecaster
from spgru.forecast.scaling import Array

__all__ = ["OURS", "make_methods"]

OURS = "ours"
_DROPOUT = 0.1


def make_methods() -> list[Method]:
    """All methods, those that are not installed among them."""
    workshop = Workshop()
    return [
        Method(OURS, ours),
        Method("MC dropout", mc_dropout),
        Method("deep ensemble", partial(deep_ensemble, workshop)),
        Method("Gaussian head", partial(gaussian_head, workshop)),
        Method("DeepAR", deep_ar, "gluonts"),
        Method("Laplace", partial(laplace, workshop), "laplace"),
        Method("AutoETS", auto_ets, "statsforecast", is_random=False),
        Method("seasonal naive", seasonal_naive, is_random=False),
    ]


def ours(task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """`Forecaster`, direct: one training, as the others have."""

    def fit() -> Predict:
        forecaster = Forecaster(
            task.horizon, season=task.season, mode="direct", hidden_size=budget.hidden_size,
            steps=budget.steps, batch_size=budget.batch_size, seed=seed, device="cpu",
            progress=False,
        ).fit(task.histories)  # fmt: skip

        def predict(histories: Sequence[Array]) -> Array:
            return forecaster.predict(list(histories), parts=False).quantile(LEVELS)

        return predict

    return timed(fit)


def gaussian_head(
    workshop: Workshop, task: Task, budget: Budget, seed: int
) -> tuple[Predict, float]:
    """A GRU with certain weights that gives mean and log variance."""
    prepared, network, seconds = workshop.plain(task, budget, _member(budget, seed, 0))
    network = copy.deepcopy(network)
    predict, more = timed(lambda: forecasting(network, prepared, seed))
    return predict, seconds + more


def deep_ensemble(
    workshop: Workshop, task: Task, budget: Budget, seed: int
) -> tuple[Predict, float]:
    """Several of these, each with all the steps, from seeds of their own."""
    made = [workshop.plain(task, budget, _member(budget, seed, k)) for k in range(budget.members)]
    ensemble = Ensemble([copy.deepcopy(network) for _, network, _ in made]).eval()
    predict, more = timed(lambda: forecasting(ensemble, made[0][0], seed))
    return predict, more + sum(seconds for _, _, seconds in made)


def _member(budget: Budget, seed: int, number: int) -> int:
    return seed * budget.members + number


def mc_dropout(task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """The same with dropout, drawn again for the forecast."""

    def fit() -> Predict:
        prepared = prepare(task, seed)
        network = trained(prepared, budget, seed, _DROPOUT)
        return forecasting(MonteCarloDropout(network, budget.draws).eval(), prepared, seed)

    return timed(fit)


def seasonal_naive(task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """The last season again, its variance growing by that of a season's change with each one."""

    def predict(histories: Sequence[Array]) -> Array:
        season, horizon = task.season, task.horizon
        z = np.asarray([NormalDist().inv_cdf(level) for level in LEVELS])[:, None]
        found = []
        for values in histories:
            mean = np.resize(values[-season:], horizon)
            square = np.mean((values[season:] - values[:-season]) ** 2)
            std = np.sqrt(square * (1 + np.arange(horizon) // season))
            found.append(mean + z * std)
        return np.stack(found, 1)

    return predict, 0.0
