from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from spgru.moments import Moments
from spgru.studies.controlled import STUDY, measure_model
from spgru.studies.sequences import DEVIATIONS, Deviation, Pairs
from spgru.training.evaluation import CONTROLLED_SETS

PIXELS = 4 * 4


class Stub:
    """Predicts darkness, with a variance that is what it saw in the first pixel."""

    def predict(self, seen: Tensor, **_: Any) -> Moments:
        mean = torch.zeros_like(seen)
        return Moments(mean, seen[:1, :, :1, :1].expand_as(mean))


def made_up_pairs() -> dict[Deviation, Pairs]:
    """Sequence b of deviation d is all 0.01 (d + 1) (b + 1) and continues as 0.05 (d + 1)."""
    pairs = {}
    for d, deviation in enumerate(DEVIATIONS):
        d = 0 if deviation.is_familiar else d
        seen = 0.01 * (d + 1) * torch.arange(1, 4.0).view(1, 3, 1, 1).expand(2, 3, 4, 4)
        after = torch.full((2, 3, 4, 4), 0.05 * (d + 1))
        pairs[deviation] = Pairs(seen, after, torch.ones(4))
    return pairs


def test_curves_of_a_known_model() -> None:
    curves, correlation = measure_model(Stub(), made_up_pairs(), draws=2)
    assert [(row["kind"], row["value"]) for row in curves] == [(*d,) for d in DEVIATIONS]
    for d, (deviation, row) in enumerate(zip(DEVIATIONS, curves, strict=True)):
        d = 0 if deviation.is_familiar else d
        assert row["variance"] == pytest.approx(PIXELS * 0.01 * (d + 1) * 2)
        assert row["error"] == pytest.approx(PIXELS * (0.05 * (d + 1)) ** 2)
    # Pooled, the familiar sequences count once.
    pooled = [0, *[d for d, deviation in enumerate(DEVIATIONS) if not deviation.is_familiar]]
    variance = [(d + 1) * (b + 1) for d in pooled for b in range(3)]
    error = [d + 1 for d in pooled for _ in range(3)]
    found = {row["over"]: row["spearman"] for row in correlation}
    assert list(found) == ["all", *CONTROLLED_SETS]
    assert found["all"] == pytest.approx(spearmanr(variance, error).statistic, abs=1e-6)


def made_up_results(
    variances: dict[int, list[float]], calibrated: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Results of two models: SP-GRU of the given variances by seed, and one that always rises."""
    curves, correlation, audit, by_frame = [], [], [], []
    for model in ("SP-GRU", "MC-LSTM"):
        for seed, values in variances.items():
            who = {"model": model, "seed": seed}
            for kind, settings in CONTROLLED_SETS.items():
                for k, value in enumerate(settings):
                    variance = values[k] if model == "SP-GRU" else float(k + 1)
                    row = {"kind": kind, "value": value, "variance": variance}
                    if calibrated:
                        row["calibrated"] = 2 * variance if model == "SP-GRU" else None
                    curves.append({**who, **row, "error": 10.0, "nats": 100.0})
                    if model == "SP-GRU":
                        ratio = {"closed": 1.0, "true": 2.0, "true_error": 0.1}
                        ratio |= {"ratio": 0.5, "ratio_error": 0.025}
                        if calibrated:
                            after = 0.9 + 0.1 * k + seed
                            ratio |= {"calibrated": 2 * after, "calibrated_ratio": after}
                            ratio |= {"calibrated_ratio_error": 0.0625}
                        place = {**who, "kind": kind, "value": value}
                        audit.append({**place, **ratio})
                        by_frame += [{**place, **ratio, "frame": frame} for frame in (11, 12)]
            correlation += [{**who, "over": over, "spearman": 0.9} for over in ("all", "angle")]
    canvas = [
        {"kind": kind, "value": value, "frame": frame, "visible": 1.0 if kind != "speed" else 0.5}
        for kind, values in CONTROLLED_SETS.items()
        for value in values
        for frame in range(1, 21)
    ]
    models = [{"model": "SP-GRU", "seed": 0, "parameters": 5, "steps": 2, "draws": 0}]
    tables = {"models": models, "curves": curves, "correlation": correlation}
    tables["guesses"] = [{"guess": "mean", "error": 44.0, "nats": 170.0}]
    tables |= {"audit": audit, "canvas": canvas}
    return {**tables, "audit_by_frame": by_frame} if calibrated else tables


def test_the_report_confirms_what_rises() -> None:
    text = STUDY.conclude(
        made_up_results({0: [1.0, 2.0, 3.0, 4.0], 1: [1.0, 1.5, 2.0, 3.0]})
    ).to_markdown()
    assert "SP-GRU, angle: variance rises monotonically for every seed: yes (2 of 2 seeds)" in text
    assert "farthest over familiar 3.5 (3 to 4)" in text
    assert "for both models: confirmed here." in text
    assert "Closed form over brute force: 0.5 to 0.5." in text
    assert "without a network (squared error 44): yes." in text
    assert "within 10 % of each other, as the paper trained them: yes." in text
    assert "for speed 0.05 (0.5 lost)" in text


def test_the_report_contradicts_where_it_must() -> None:
    text = STUDY.conclude(
        made_up_results({0: [1.0, 2.0, 3.0, 4.0], 1: [1.0, 3.0, 2.0, 4.0]})
    ).to_markdown()
    assert "SP-GRU, speed: variance rises monotonically for every seed: no (1 of 2 seeds)" in text
    assert "not so here for SP-GRU over angle, SP-GRU over speed and SP-GRU over noise." in text
    assert "MC-LSTM, speed: variance rises monotonically for every seed: yes" in text


def test_the_report_has_the_variance_before_and_after() -> None:
    variances = {0: [1.0, 2.0, 3.0, 4.0], 1: [1.0, 1.5, 2.0, 3.0]}
    # Results of earlier versions have the plain closed form alone.
    assert "alibrated" not in STUDY.conclude(made_up_results(variances)).to_markdown()
    lines = STUDY.conclude(made_up_results(variances, calibrated=True)).to_markdown().splitlines()
    assert "- Closed form over brute force: 0.5 to 0.5; calibrated 0.9 to 2.2." in lines
    header = "| deviation | value | SP-GRU: variance | SP-GRU: calibrated variance |"
    at = next(k for k, line in enumerate(lines) if line.startswith(header))
    assert "MC-LSTM: calibrated" not in lines[at]
    assert lines[at + 3].startswith("| angle | 25 | 1.75 (1.5 to 2) | 3.5 (3 to 4) | 10 (")
    at = lines.index(
        "| deviation | value | closed form | calibrated | brute force | closed, seed 0 | "
        "calibrated, seed 0 | closed, seed 1 | calibrated, seed 1 |"
    )
    ratios = "0.5 ± 0.025 | 1 ± 0.062 | 0.5 ± 0.025 | 2 ± 0.062"
    assert lines[at + 3] == f"| angle | 25 | 1 | 3 | 2 | {ratios} |"
    at = next(k for k, line in enumerate(lines) if line.startswith("| frame | familiar: closed |"))
    assert "| speed 6.5 %: closed | speed 6.5 %: calibrated | noise 0.6: closed |" in lines[at]
    assert lines[at + 2].startswith("| 11 | 0.5 | 1.4 (0.9 to 1.9) | 0.5 | 1.7 (1.2 to 2.2) |")


def test_a_model_without_calibration_has_no_such_variance() -> None:
    curves, _ = measure_model(Stub(), made_up_pairs(), draws=2)
    assert all(row["calibrated"] is None for row in curves)
