"""Peers with packages of their own: DeepAR (gluonts), Laplace (laplace-torch), AutoETS.

Each as it comes, with the size and steps that all have; imports stand inside, since a package may
be missing.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spgru.compare.method import Budget, Predict
from spgru.compare.networks import PlainDirect
from spgru.compare.scores import LEVELS
from spgru.compare.tasks import Task
from spgru.compare.training import Prepared, Workshop, forecasting, timed
from spgru.forecast.scaling import Array
from spgru.forecast.settings import Settings, choose_sizes
from spgru.moments import Moments

__all__ = ["auto_ets", "deep_ar", "laplace"]

_MOST_LAPLACE = 1024
"""Windows of the training that a Laplace approximation is fitted to."""
_MOST_SEASONS = 30
"""Seasons that AutoETS reads, at least `_LEAST_VALUES`: it takes minutes for 17,000 values."""
_LEAST_VALUES = 300


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and the log of other packages."""
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# -- DeepAR ---------------------------------------------------------------------------------------


def deep_ar(task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """GluonTS's, with one layer of the common size and its own lags, Student's t and rate.

    It is trained on all of the histories, without validation, as it is by default.
    """
    with _quiet():
        from gluonts.dataset.common import ListDataset
        from gluonts.torch.model.deepar import DeepAREstimator

    lengths = [len(values) for values in task.histories]
    context, _ = choose_sizes(Settings(task.horizon, season=task.season), lengths, task.season)

    def dataset(series: Sequence[Array]) -> Any:
        items = [{"start": "2000-01-03", "target": values} for values in series]
        return ListDataset(items, freq=task.frequency)

    def fit(folder: str) -> Predict:
        per_epoch = min(50, budget.steps)
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002  its samplers draw from the global state
        estimator = DeepAREstimator(
            freq=task.frequency, prediction_length=task.horizon, context_length=context,
            num_layers=1, hidden_size=budget.hidden_size, batch_size=budget.batch_size,
            num_batches_per_epoch=per_epoch, num_parallel_samples=budget.samples,
            trainer_kwargs={
                "max_epochs": max(1, budget.steps // per_epoch), "accelerator": "cpu",
                "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
                "default_root_dir": folder,
            },
        )  # fmt: skip
        predictor = estimator.train(dataset(task.histories))

        def predict(histories: Sequence[Array]) -> Array:
            with _quiet():
                forecasts = list(predictor.predict(dataset(histories)))
            return np.stack([np.quantile(one.samples, LEVELS, axis=0) for one in forecasts], 1)

        return predict

    # It keeps its best epoch in a file.
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        return timed(lambda: fit(folder))


# -- Laplace --------------------------------------------------------------------------------------


class _MeanOnly(nn.Module):
    """What laplace-torch takes: one tensor in, the mean out, the last layer last.

    (B, 2 C + 2) -> (B, H), in units of the plain forecast's errors.
    """

    def __init__(self, network: PlainDirect) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        context = (x.shape[1] - 2) // 2
        values, seen, roughness = x[:, :context], x[:, context:-2], x[:, -2:]
        features = self.network.features(values, seen, roughness)
        found: Tensor = self.network.head(features)
        return found


class _Posterior(nn.Module):
    """The network's own noise and, around its mean, the variance of a fitted Laplace."""

    def __init__(self, network: PlainDirect, fitted: Any) -> None:
        super().__init__()
        self.network, self._fitted = network, [fitted]  # not a child: it is no module

    def forward(self, values: Tensor, seen: Tensor, roughness: Tensor, known: Tensor) -> Moments:
        y = self.network(values, seen, roughness, known)
        _, var = self._fitted[0](torch.cat([values, seen, roughness], 1), diagonal_output=True)
        var = var.diagonal(dim1=1, dim2=2) if var.ndim == 3 else var
        return Moments(y.mean, y.var + var.detach() * self.network.unit(roughness).square())


def laplace(workshop: Workshop, task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """laplace-torch around the Gaussian head's network: its last layer, diagonal, closed form.

    The prior's precision is that of the largest marginal likelihood.
    """
    prepared, network, seconds = workshop.plain(task, budget, seed * budget.members)
    start = time.perf_counter()
    with _quiet():
        posterior = _Posterior(copy.deepcopy(network), _fitted_laplace(prepared, network)).eval()
        predict = forecasting(posterior, prepared, seed)
    return predict, seconds + time.perf_counter() - start


def _fitted_laplace(prepared: Prepared, network: PlainDirect) -> Any:
    from laplace import Laplace

    series, origins = (part[:_MOST_LAPLACE] for part in prepared.drawn)
    batch = prepared.windows.batch(series, origins)
    values, seen, roughness, _ = batch.inputs
    plain = network.anchor(values, network.horizon)
    target = (batch.target - plain) / network.unit(roughness)
    x = torch.cat([values, seen, roughness], 1)
    known = ~target.isnan().any(1)
    residual = target[known] - _MeanOnly(network)(x[known]).detach()
    data = torch.utils.data.TensorDataset(x[known], target[known])
    fitted = Laplace(
        _MeanOnly(copy.deepcopy(network)), "regression", subset_of_weights="last_layer",
        hessian_structure="diag", sigma_noise=float(residual.square().mean().sqrt()),
    )  # fmt: skip
    fitted.fit(torch.utils.data.DataLoader(data, batch_size=256))
    fitted.optimize_prior_precision(method="marglik")
    return fitted


# -- AutoETS --------------------------------------------------------------------------------------


def auto_ets(task: Task, budget: Budget, seed: int) -> tuple[Predict, float]:
    """statsforecast's: a state space model chosen and fitted for every history, when it is asked.

    It reads the last 30 seasons, at least 300 values.
    """
    from statsforecast.models import AutoETS

    central = [round(100 * (1 - 2 * level), 6) for level in LEVELS if level < 0.5]

    def predict(histories: Sequence[Array]) -> Array:
        found = []
        with _quiet():
            for values in histories:
                recent = values[-max(_MOST_SEASONS * task.season, _LEAST_VALUES) :]
                model = AutoETS(season_length=task.season)
                answer = model.forecast(y=recent, h=task.horizon, level=central)
                low = [answer[f"lo-{level}"] for level in central]
                high = [answer[f"hi-{level}"] for level in reversed(central)]
                found.append(np.stack([*low, answer["mean"], *high]))
        return np.stack(found, 1)

    return predict, 0.0
