from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spgru.studies.out_of_domain import STUDY, count_by_bin, summarise
from spgru.studies.prediction import Measured


def measured(variance: list[float], ink: float) -> Measured:
    values = torch.tensor(variance, dtype=torch.float64)
    return Measured(values, 2 * values, 3 * values, torch.full_like(values, ink))


FOUND = {
    1: measured([0.5, 1.5, 1.0], 5.0),
    2: measured([1.0, 2.0, 3.0], 10.0),
    3: measured([4.0, 2.5, 5.5], 15.0),
}
AFTER = {
    1: measured([5.0, 15.0, 10.0], 5.0),
    2: measured([10.0, 20.0, 30.0], 10.0),
    3: measured([100.0, 40.0, 160.0], 15.0),
}


def test_beside_the_familiar_number() -> None:
    one, two, three = summarise(FOUND, AFTER)
    assert (two["ratio"], two["ratio_per_ink"], two["auroc"]) == (1, 1, None)
    assert three["ratio"] == pytest.approx(2)
    assert three["ratio_per_ink"] == pytest.approx(2 / 1.5)
    # Means 4 and 2, variances 9/4 and 1, three sequences each.
    assert three["ratio_error"] == pytest.approx(2 * math.sqrt(9 / 4 / 3 / 16 + 1 / 3 / 4))
    assert two["ratio_error"] is None
    assert three["auroc"] == pytest.approx(8 / 9)
    assert one["auroc"] == pytest.approx(1.5 / 9)
    assert three["nats"] == pytest.approx(12)


def test_beside_the_familiar_number_after_calibration() -> None:
    one, two, three = summarise(FOUND, AFTER)
    assert [row["calibrated"] for row in (one, two, three)] == pytest.approx([10, 20, 100])
    assert (two["calibrated_ratio"], two["calibrated_auroc"]) == (1, None)
    assert three["calibrated_ratio"] == pytest.approx(5)
    expected = 5 * math.sqrt(60**2 / 3 / 100**2 + 10**2 / 3 / 20**2)
    assert three["calibrated_ratio_error"] == pytest.approx(expected)
    assert (one["calibrated_auroc"], three["calibrated_auroc"]) == pytest.approx((1.5 / 9, 1))


def test_histogram_is_that_of_numpy() -> None:
    values = torch.rand(100, dtype=torch.float64)
    edges = torch.linspace(values.min().item(), values.max().item(), 8, dtype=torch.float64)
    expected, _ = np.histogram(values.numpy(), edges.numpy())
    assert count_by_bin(values, edges) == expected.tolist()


def test_the_report_says_yes_and_no() -> None:
    rows = [{"model": "SP-GRU", **row} for row in summarise(FOUND, AFTER)]
    text = STUDY.conclude({"domains": rows, "histogram": []}).to_markdown()
    assert "SP-GRU, three digits: at least 1.5 times the variance: yes; still higher" in text
    after = "SP-GRU, three digits, calibrated: 5 ± 2.3 times the variance of two digits; AUROC 1."
    assert after in text
    rows[2] |= {"ratio": 1.2, "ratio_per_ink": 0.9}
    text = STUDY.conclude({"domains": rows, "histogram": []}).to_markdown()
    assert "at least 1.5 times the variance: no; still higher per predicted brightness: no." in text


def test_results_of_earlier_versions_have_no_calibration() -> None:
    rows = [{"model": "SP-GRU", **row} for row in summarise(FOUND, AFTER)]
    old = [{k: v for k, v in row.items() if "calibrated" not in k} for row in rows]
    text = STUDY.conclude({"domains": old, "histogram": []}).to_markdown()
    assert "SP-GRU, three digits: 2 ± " in text
    assert "alibrated" not in text
