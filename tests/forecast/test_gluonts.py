"""The adapters to GluonTS: forecasts are those of `Forecaster`, and GluonTS can judge them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spgru.forecast import Forecaster

pytestmark = pytest.mark.filterwarnings("ignore:Using `json`-module")  # said when it is imported

pandas = pytest.importorskip("pandas")
pytest.importorskip("gluonts")

HORIZON, COUNT = 4, 90
TINY: dict[str, Any] = {
    "season": 6, "context": 18, "steps": 3, "hidden_size": 4, "mode": "direct", "progress": False,
    "device": "cpu",
}  # fmt: skip
LEVELS = (0.01, 0.1, 0.37, 0.5, 0.9)


def wave(seed: int, count: int = COUNT) -> Any:
    noise = np.random.default_rng(seed).standard_normal(count)
    return (9 + seed + np.sin(2 * np.pi * np.arange(count) / 6) + 0.2 * noise).astype(np.float32)


def entries(extra: int = 0) -> list[dict[str, Any]]:
    """Three series of several lengths and starts, with a feature that goes on for `extra` steps."""
    return [
        {
            "start": pandas.Period("2024-01-01 05:00", freq="h") + number,
            "target": wave(number, COUNT + number),
            "item_id": f"series {number}",
            "feat_dynamic_real": np.sin(np.arange(COUNT + number + extra))[None],
        }
        for number in range(3)
    ]


def series(entry: dict[str, Any]) -> Any:
    index = pandas.period_range(entry["start"], periods=len(entry["target"]), freq="h")
    return pandas.Series(entry["target"], index)


@pytest.mark.parametrize("positive", [False, True])
def test_forecasts_are_those_of_the_forecaster(positive: bool) -> None:
    from spgru.forecast.gluonts import SpgruEstimator

    options = TINY | {"positive": positive}
    found = list(SpgruEstimator(HORIZON, **options).train(entries()).predict(entries()))
    histories = [series(entry) for entry in entries()]
    expected = Forecaster(HORIZON, **options).fit(histories).predict(parts=False)
    for number, forecast in enumerate(found):
        np.testing.assert_array_equal(forecast.mean, expected.mean[number])
        np.testing.assert_array_equal(forecast["mean"], expected.mean[number])
        np.testing.assert_array_equal(forecast.mean_ts, expected.mean[number])
        for level in LEVELS:
            np.testing.assert_array_equal(
                forecast.quantile(level), expected.quantile(level)[number]
            )
        np.testing.assert_array_equal(forecast["p90"], expected.quantile(0.9)[number])
        np.testing.assert_array_equal(forecast.forecast.var, expected.var[number])
        assert forecast.index.equals(expected.index[number])
        assert forecast.item_id == f"series {number}"
        assert forecast.prediction_length == HORIZON


def test_gluonts_judges_them() -> None:
    from gluonts.evaluation import Evaluator, make_evaluation_predictions

    from spgru.forecast.gluonts import SpgruEstimator

    known = [e | {"target": e["target"][:-HORIZON]} for e in entries()]
    predictor = SpgruEstimator(HORIZON, **TINY).train(known)
    forecasts, truth = make_evaluation_predictions(entries(), predictor)
    forecasts = list(forecasts)
    levels = (0.1, 0.5, 0.9)
    scores, by_series = Evaluator(levels, num_workers=0)(list(truth), forecasts)
    outcome = np.concatenate([e["target"][-HORIZON:] for e in entries()]).astype(np.float64)
    mean = np.concatenate([forecast.mean for forecast in forecasts])
    assert scores["MSE"] == pytest.approx(np.mean((outcome - mean) ** 2))
    losses = []
    for level in levels:
        bound = np.concatenate([forecast.quantile(level) for forecast in forecasts])
        losses.append(2 * np.sum((outcome - bound) * (level - (outcome < bound))))
        assert scores[f"Coverage[{level}]"] == pytest.approx(np.mean(outcome < bound))
    expected = np.mean(losses) / np.abs(outcome).sum()
    assert scores["mean_wQuantileLoss"] == pytest.approx(expected)
    assert list(by_series["item_id"]) == [entry["item_id"] for entry in entries()]


def test_the_newer_evaluation_judges_them() -> None:
    from gluonts.dataset.split import split
    from gluonts.ev.metrics import MSE, MeanWeightedSumQuantileLoss
    from gluonts.model.evaluation import evaluate_model

    from spgru.forecast.gluonts import SpgruEstimator

    training, rest = split(entries(), offset=-HORIZON)
    predictor = SpgruEstimator(HORIZON, **TINY).train(training)
    pairs = rest.generate_instances(HORIZON)
    metrics = [MSE(), MeanWeightedSumQuantileLoss([0.1, 0.9])]
    scores = evaluate_model(model=predictor, test_data=pairs, metrics=metrics)
    outcome = np.stack([label["target"] for label in pairs.label])
    mean = np.stack([forecast.mean for forecast in predictor.predict(pairs.input)])
    assert scores["MSE[mean]"].item() == pytest.approx(np.mean((outcome - mean) ** 2), rel=1e-5)


def test_dynamic_features_are_known_covariates() -> None:
    from spgru.forecast.gluonts import SpgruEstimator

    estimator = SpgruEstimator(HORIZON, use_feat_dynamic_real=True, **TINY)
    # Features of the horizon are allowed in training, and not used.
    predictor = estimator.train(entries(extra=HORIZON))
    found = list(predictor.predict(entries(extra=HORIZON)))
    histories = [series(entry) for entry in entries()]
    known = [entry["feat_dynamic_real"].T for entry in entries(extra=HORIZON)]
    expected = Forecaster(HORIZON, **TINY).fit(histories, known).predict(histories, known)
    for number, forecast in enumerate(found):
        np.testing.assert_array_equal(forecast.mean, expected.mean[number])
    with pytest.raises(ValueError, match="90 rows and 94 are needed"):
        list(predictor.predict(entries()))
    without = [{k: v for k, v in e.items() if k != "feat_dynamic_real"} for e in entries()]
    with pytest.raises(ValueError, match="'series 0' has no feat_dynamic_real; give it to all"):
        estimator.train(without)


def test_a_predictor_can_be_written_and_read(tmp_path: Path) -> None:
    from gluonts.model import Predictor

    from spgru.forecast.gluonts import SpgruEstimator

    predictor = SpgruEstimator(HORIZON, **TINY).train(entries())
    predictor.serialize(tmp_path)
    again = Predictor.deserialize(tmp_path)
    for a, b in zip(predictor.predict(entries()), again.predict(entries()), strict=True):
        np.testing.assert_array_equal(a.quantile(0.9), b.quantile(0.9))


def test_any_number_of_series_is_forecast_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import spgru.forecast.gluonts as adapter

    predictor = adapter.SpgruEstimator(HORIZON, **TINY).train(entries())
    whole = list(predictor.predict(entries()))
    monkeypatch.setattr(adapter, "_AT_ONCE", 2)
    for a, b in zip(predictor.predict(iter(entries())), whole, strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-6)
        assert a.item_id == b.item_id


def test_what_is_refused() -> None:
    from spgru.forecast.gluonts import SpgruEstimator

    with pytest.raises(ValueError, match="lr must be positive"):
        SpgruEstimator(HORIZON, lr=-1.0)
    with pytest.raises(ValueError, match="the ends of the series in training_data"):
        SpgruEstimator(HORIZON, **TINY).train(entries(), entries())
    wide = [entries()[0] | {"target": np.zeros((2, COUNT))}]
    with pytest.raises(ValueError, match=r"'series 0' has shape \(2, 90\); give a dataset with an"):
        SpgruEstimator(HORIZON, **TINY).train(wide)
    predictor = SpgruEstimator(HORIZON, **TINY).train(entries())
    with pytest.raises(ValueError, match="frequencies 'h' and 'D'"):
        list(predictor.predict([entries()[0] | {"start": pandas.Period("2024-01-01", "D")}]))
    with pytest.raises(ValueError, match="q must lie between 0 and 1"):
        next(predictor.predict(entries())).quantile(1.0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spgru.forecast.gluonts", raising=False)
    monkeypatch.setitem(sys.modules, "gluonts.model", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'spgru\[gluonts\]'"):
        import spgru.forecast.gluonts  # noqa: F401
