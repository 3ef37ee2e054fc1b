"""`Forecaster`: from series of numbers to forecasts whose intervals hold."""

from __future__ import annotations

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from spgru.calibration.report import OutcomeReport
from spgru.forecast.covariates import read_covariates
from spgru.forecast.data import read_series
from spgru.forecast.features import features_of
from spgru.forecast.fitted import Fitted, fit
from spgru.forecast.forecast import Forecast
from spgru.forecast.history import appended
from spgru.forecast.network import Cell
from spgru.forecast.prediction import run
from spgru.forecast.scaling import Array
from spgru.forecast.settings import Mode, Settings
from spgru.forecast.threads import few_threads
from spgru.forecast.training import Loss, TrainingRecord
from spgru.forecast.windows import Windows
from spgru.runtime.distributed import is_first_process

__all__ = ["Forecaster", "Mode", "Settings"]


class Forecaster:
    """Forecasts of one or many series, with intervals that hold, without sampling.

        forecaster = spgru.forecast.Forecaster(horizon=24).fit(y)
        forecast = forecaster.predict()
        low, high = forecast.interval(0.8)

    One recurrent network with random weights serves all series (a global model). It reads the last
    `context` values in units of their own and says what to add to a plain forecast, the last value
    or the last season, whichever is better; all horizons at once (direct) or step by step, reading
    its own forecasts back. Its variance is that of weights, inputs and noise, then fitted to what
    happened in windows that the training has not seen (`spgru.calibrate`).

    Missing values (NaN, gaps in a time index) are filled for the network, which is told so, and do
    not count in training. A history shorter than the context counts as missing before its start.
    Where the end of a history is missing, or most of a context, intervals are wider, by what hiding
    values in windows of the training did to the errors.

    Args:
        horizon: steps to forecast
        context: values to read; by default seven seasons, or fifteen of 24 steps and more, which
            are days of two weeks; at least four horizons, and as far as the series allow
        season: steps of a season; by default what is usual for the frequency of a time index, and
            1, for none, without one
        hidden_size: of the encoder
        num_layers: of the encoder
        cell: `"gru"` or `"lstm"`
        mode: `"direct"`, `"fed-back"`, or `"auto"` to train both and keep the one with the better
            validation, in twice the time
        positive: the values are not negative and their changes relative: the network works with
            log(1 + value / mean of the context), and no quantile is below 0
        calendar: use the hour, weekday and day of the year of a time index
        steps: of the training, at most
        batch_size: windows of a step
        lr: learning rate of AdamW, after a warm-up and before it falls
        patience: checks of the validation, 25 in a training, without progress before it ends
        loss: `"crps"`, in units of the plain forecast's errors, or `"nll"`, of a Gaussian
        kl_weight: of the divergence from the prior of the weights, N(0, 1 / inputs); CRPS is no
            likelihood, and with more than the default short series learn little
        calibrate: fit the variance to the windows of validation
        level: of the interval that is made to hold there (conformal), None for likelihood
            alone
        seed: the same seed gives the same forecaster, on the same machine
        device: `"auto"` is a GPU if there is one
        progress: show a bar, on a terminal and where rich is installed
    """

    def __init__(
        self,
        horizon: int,
        context: int | None = None,
        season: int | None = None,
        *,
        hidden_size: int = 32,
        num_layers: int = 1,
        cell: Cell = "gru",
        mode: Mode = "auto",
        positive: bool = False,
        calendar: bool = True,
        steps: int = 1000,
        batch_size: int = 64,
        lr: float = 3e-3,
        patience: int = 12,
        loss: Loss = "crps",
        kl_weight: float = 0.01,
        calibrate: bool = True,
        level: float | None = 0.8,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> None:
        self.settings = Settings(
            horizon, context, season, hidden_size, num_layers, cell, mode, positive, calendar,
            steps, batch_size, lr, patience, loss, kl_weight, calibrate, level, seed, device,
            progress,
        )  # fmt: skip
        self._state: Fitted | None = None

    # -- fitting ----------------------------------------------------------------------------------

    def fit(self, y: Any, X: Any = None) -> Self:  # noqa: N803
        """Train on one or many series.

        In a script that torchrun starts, every process calls `fit` with the same series and gets
        the same forecaster: each takes its part of every batch.

        Args:
            y: a 1-D array or list of numbers, a pandas Series, a list or dict of these, or a
                DataFrame, wide (a column for each series) or long (columns item, time, value)
            X: covariates of every time that will be known for the horizon, too: an array (time,
                covariates), a DataFrame, or `Moments` where they are uncertain; a list or dict of
                these for several series
        """
        self._state = fit(self.settings, y, X)
        return self

    # -- forecasting ------------------------------------------------------------------------------

    def predict(self, y: Any = None, X: Any = None, *, parts: bool | None = None) -> Forecast:  # noqa: N803
        """The next `horizon` values.

        Args:
            y: the history to forecast from, as in `fit`, of the same or of other series; by
                default the one that is known. Its last `context` values matter, and the rest
                where these are far calmer than it
            X: covariates, if there were any in `fit`: rows for the horizon, preceded by rows for
                all of `y` if that is given
            parts: split the variance into weights, inputs and noise. None does so where it is
                cheap: direct forecasts take two passes more. Forecasts that are read back take
                `spgru.respond`, as do uncertain covariates in any case
        """
        state, settings = self._fitted(), self.settings
        horizon = settings.horizon
        panel, covariates = state.histories(settings, y, X)
        features, _ = features_of(panel, covariates, settings.calendar, horizon, state.scaling)
        windows = Windows(
            panel.values, *features, state.context, horizon, state.season, settings.positive,
            next(state.network.parameters()).device, None if y is None else state.usual,
        )  # fmt: skip
        lengths = np.asarray([len(values) for values in panel.values], np.int64)
        split = state.mode == "direct" if parts is None else parts
        with few_threads(settings.hidden_size):
            found = run(state.network, windows, np.arange(len(panel)), lengths, split)
        return Forecast(
            found.mean, found.var, found.scaling, panel.names, panel.times, panel.single,
            found.shares, panel.values, panel.numbers,
        )  # fmt: skip

    def update(self, y: Any, X: Any = None) -> Self:  # noqa: N803
        """Go on from new values, without fitting again.

        Args:
            y: the values after those that are known, in the form that `fit` was given; times or
                numbers of an index that lie in between are missing values, arrays go on at once
            X: their covariates, a row for each value, if there were any in `fit`
        """
        state = self._fitted()
        new = read_series(y, self.settings.positive, may_be_unknown=True, **state.spacing())
        panel, added = appended(state.panel, new)
        covariates = state.covariates
        if (X is None) != (covariates is None):
            raise ValueError(
                "X is missing, and fit was given covariates"
                if X is None
                else "X is given, and fit was given no covariates"
            )
        if covariates is not None:
            later = read_covariates(
                X, state.panel, None, [(count,) for count in added], covariates.names
            )
            covariates = covariates.followed_by(later)
        state.panel, state.covariates = panel, covariates
        return self

    # -- what was found ---------------------------------------------------------------------------

    @property
    def network(self) -> nn.Module:
        """The trained network, for `spgru.audit` and the like."""
        return self._fitted().network

    @property
    def mode(self) -> str:
        """`"direct"` or `"fed-back"`, whichever was chosen."""
        return self._fitted().mode

    @property
    def context(self) -> int:
        """How many values before a forecast the network reads."""
        return self._fitted().context

    @property
    def season(self) -> int:
        """The season in steps that `fit` was given or found; 1 for none."""
        return self._fitted().season

    @property
    def covariates(self) -> list[str]:
        """Names of the covariates, none if `fit` was given none."""
        known = self._fitted().covariates
        return [] if known is None else list(known.names)

    @property
    def records(self) -> dict[str, TrainingRecord]:
        """How each training went, by mode."""
        return self._fitted().records

    @property
    def report(self) -> OutcomeReport | None:
        """What calibration did; None without it."""
        return self._fitted().report

    # -- files ------------------------------------------------------------------------------------

    def save(self, folder: str | PathLike[str]) -> None:
        """Weights, settings and known series into one folder: safetensors and JSON.

        Of several processes that torchrun started the first one writes.
        """
        from spgru.forecast.files import save

        if is_first_process():
            save(self, folder)

    @classmethod
    def load(cls, folder: str | PathLike[str], device: str = "auto") -> Self:
        """What `save` wrote, ready to predict and update."""
        from spgru.forecast.files import load

        found: Self = load(cls, folder, device)
        return found

    def to_onnx(self, path: str | PathLike[str]) -> Path:
        """The forecaster as an ONNX program: raw values in, mean and variance of the series out.

        It takes any number of windows, in one mode and for one horizon, scaling, what is filled and
        calibration inside. Inputs are float64:

        - `values` (B, context): the last values, NaN where missing and before the start of a short
          history; at least two of them observed, else the forecast is NaN
        - `known` (B, context + horizon, F), if there is a calendar or covariates: the calendar's
          columns (`Times.calendar`: sines, then cosines, of the time of day, the day of the week
          and the day of the year that the frequency has), then covariates as they are; NaN where
          unknown. Covariates must be certain

        Outputs are `mean` and `var` (B, horizon), float64, as of `predict`. For positive data there
        are `log_mean`, `log_var` and `unit` besides: log(1 + value / unit) is Gaussian, of which
        quantiles are taken. `onnx_inputs` gives the inputs from series. Needs 'spgru[onnx]'.

        It differs from `predict` in two ways: mean and variance of positive data are those of a
        log-normal that is not cut off at 0, and a context far calmer than its series is scaled as
        it is, since the program sees no other values.

        Of a fed-back forecaster every step of the horizon is written out, which may take minutes; a
        direct one is far quicker.
        """
        from spgru.forecast.onnx_export import to_onnx

        return to_onnx(self, path)

    def onnx_inputs(self, y: Any = None, X: Any = None) -> dict[str, Array]:  # noqa: N803
        """What the program of `to_onnx` takes for these series, with the arguments of `predict`."""
        from spgru.forecast.onnx_export import inputs_of

        panel, covariates = self._fitted().histories(self.settings, y, X)
        return inputs_of(self, panel, covariates)

    # -- inside -----------------------------------------------------------------------------------

    def _fitted(self) -> Fitted:
        if self._state is None:
            raise RuntimeError("this Forecaster has not been fitted; call fit first")
        return self._state

    def __repr__(self) -> str:
        shown = {name: value for name, value in asdict(self.settings).items() if name != "progress"}
        defaults = asdict(Settings(self.settings.horizon))
        given = [f"{k}={v!r}" for k, v in shown.items() if k == "horizon" or v != defaults[k]]
        return f"Forecaster({', '.join(given)})"
