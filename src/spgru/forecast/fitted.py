"""What fitting found, and how: networks for direct and fed-back forecasts, the better one kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch

from spgru.calibration.report import OutcomeReport
from spgru.forecast.covariates import Covariates, read_covariates, warn_if_far
from spgru.forecast.data import Panel, read_series
from spgru.forecast.features import FeatureScaling, features_of
from spgru.forecast.judging import choose_windows, fit_intervals
from spgru.forecast.network import Anchor, Direct, FedBack
from spgru.forecast.settings import Mode, Settings, check_history, choose_sizes, least_history
from spgru.forecast.threads import few_threads
from spgru.forecast.times import season_of
from spgru.forecast.training import TrainingOptions, TrainingRecord, choose_anchor, train, validate
from spgru.forecast.usual import Usual
from spgru.forecast.widening import fit_widening
from spgru.forecast.windows import Windows
from spgru.runtime.distributed import processes

__all__ = ["Fitted", "fit", "make_network"]

_MOST_USUAL = 256
"""Series of which is kept how much they vary."""


@dataclass
class Fitted:
    """What fitting found."""

    network: Direct | FedBack
    mode: Mode
    context: int
    season: int
    anchor: Anchor
    panel: Panel
    """the series as they are known by now"""
    covariates: Covariates | None
    scaling: FeatureScaling
    records: dict[str, TrainingRecord]
    report: OutcomeReport | None
    usual: Usual | None = None
    """how much some of the series vary; None in files that do not tell"""

    # -- series that come later -----------------------------------------------------------------

    def spacing(self) -> dict[str, Any]:
        """Of the index in `fit`, for series that come later."""
        known = self.panel
        return {
            "freq": known.times[0].freq if known.times else None,
            "step": known.numbers[0].step if known.numbers else None,
        }

    def histories(self, settings: Settings, y: Any, X: Any) -> tuple[Panel, Covariates | None]:  # noqa: N803
        """The series to forecast from, those known where none are given, and their covariates."""
        if y is None:
            panel = self.panel
        else:
            panel = read_series(y, settings.positive, **self.spacing())
            self._check_times(panel)
        covariates = self._known(settings, panel, X, y is None)
        least = least_history(self.context, self.season)
        for name, values in zip(panel.names, panel.values, strict=True):
            check_history(values, name, least, self.context)
        return panel, covariates

    def _check_times(self, panel: Panel) -> None:
        numbers = self.panel.numbers
        if numbers is not None and panel.numbers is not None:
            numbers[0].require_alike(panel.numbers[0], "fit and predict together")
        known = self.panel.times
        if known is None:
            return
        if panel.times is None:
            raise ValueError(
                "y has no time index, and the forecaster was fitted with one, whose calendar it "
                "reads; pass a pandas Series with times"
            )
        known[0].require_alike(panel.times[0], "fit and predict together")

    def _known(self, settings: Settings, panel: Panel, X: Any, own: bool) -> Covariates | None:  # noqa: N803
        """The covariates of histories and horizon."""
        covariates, horizon = self.covariates, settings.horizon
        if covariates is None:
            if X is not None:
                raise ValueError("X is given, and the forecaster was fitted without covariates")
            return None
        if X is None:
            raise ValueError(
                f"X is missing: the forecaster was fitted with the covariates {covariates.names}, "
                f"which must be known for the {horizon} steps of the horizon"
            )
        lengths = [len(values) for values in panel.values]
        if own:
            later = read_covariates(X, panel, None, [(horizon,)] * len(panel), covariates.names)
            warn_if_far(later, covariates)
            return covariates.followed_by(later)
        rows = [(n + horizon,) for n in lengths]
        found = read_covariates(X, panel, 0, rows, covariates.names)
        warn_if_far(found, covariates)
        return found


def fit(settings: Settings, y: Any, X: Any) -> Fitted:  # noqa: N803
    """Train on these series; see `Forecaster.fit`."""
    panel = read_series(y, settings.positive)
    horizon, lengths = settings.horizon, [len(values) for values in panel.values]
    covariates = None
    if X is not None:
        rows = [(n, n + horizon) for n in lengths]
        covariates = read_covariates(X, panel, 0, rows).first(lengths)
    season = settings.season or season_of(panel.times[0] if panel.times else None)
    context, season = choose_sizes(settings, lengths, season)
    features, scaling = features_of(panel, covariates, settings.calendar, 0)
    with processes(settings.device) as group:
        group.require_equal(crc32(np.concatenate(panel.values).tobytes()), "y")
        windows = Windows(
            panel.values, *features, context, horizon, season, settings.positive, group.device
        )
        split, drawn = choose_windows(windows, lengths, settings.seed)
        anchor, squares = choose_anchor(windows, *drawn)
        found: dict[str, tuple[Direct | FedBack, OutcomeReport | None]] = {}
        records: dict[str, TrainingRecord] = {}
        scores: dict[str, float] = {}
        for mode in ("direct", "fed-back") if settings.mode == "auto" else (settings.mode,):
            if mode == "fed-back":
                anchor, squares = choose_anchor(windows, *drawn, rates=(1.0,))
            network = make_network(settings, mode, context, season, scaling.size, anchor)
            network.to(group.device).start_noise_(squares)
            report = None
            with few_threads(settings.hidden_size):
                records[mode] = train(network, windows, split, _training(settings), group)
                if settings.calibrate:
                    report = fit_intervals(
                        network, windows, split.validation, settings.level, settings.seed
                    )
                scores[mode] = validate(network, windows, split.validation, group)
                fit_widening(network, windows, drawn)
            found[mode] = network, report
    best: Any = min(scores, key=lambda mode: scores[mode])
    network, report = found[best]
    return Fitted(
        network,
        best,
        context,
        season,
        network.anchor,
        panel,
        covariates,
        scaling,
        records,
        report,
        windows.usual.some(_MOST_USUAL),
    )


def make_network(
    settings: Settings, mode: str, context: int, season: int, features: int, anchor: Anchor
) -> Direct | FedBack:
    kind = Direct if mode == "direct" else FedBack
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return kind(
            horizon=settings.horizon, context=context, season=season, features=features,
            hidden_size=settings.hidden_size, num_layers=settings.num_layers, cell=settings.cell,
            anchor=anchor,
        )  # fmt: skip


def _training(settings: Settings) -> TrainingOptions:
    return TrainingOptions(
        settings.steps, settings.batch_size, settings.lr, settings.patience, settings.loss,
        settings.kl_weight, settings.seed, settings.progress,
    )  # fmt: skip
