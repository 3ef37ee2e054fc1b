from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

from spgru.moments import Moments
from spgru.studies.maps import STUDY, map_correlations


def test_correlations_over_the_pixels_of_a_frame() -> None:
    target = torch.rand(2, 3, 4, 4)
    ours = Moments(torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4))
    theirs = Moments(torch.rand(2, 3, 4, 4), ours.var**2)  # the same order
    rows = map_correlations(ours, theirs, target)
    found = {(row["frame"], row["maps"]): row["spearman"] for row in rows}
    assert len(found) == 6
    for t in range(2):
        assert found[3 + t, "SP-GRU with MC-LSTM"] == pytest.approx(1)
        expected = [
            spearmanr(ours.var[t, b].flatten(), (ours.mean - target)[t, b].square().flatten())
            for b in range(3)
        ]
        mean = sum(one.statistic for one in expected) / 3
        assert found[3 + t, "SP-GRU with error"] == pytest.approx(mean)


def test_maps_without_variance_have_no_correlation() -> None:
    flat = Moments(torch.rand(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))
    rows = map_correlations(flat, flat, torch.rand(1, 1, 4, 4))
    assert [row["spearman"] for row in rows] == [None] * 3


@pytest.mark.parametrize(("least", "answer"), [(0.6, "yes"), (0.4, "no")])
def test_alike_means_everywhere(least: float, answer: str) -> None:
    names = ("SP-GRU with error", "MC-LSTM with error", "SP-GRU with MC-LSTM")
    rows = [
        {"seed": seed, "frame": 11, "maps": name, "spearman": least if seed else 0.9}
        for seed in range(2)
        for name in names
    ]
    text = STUDY.conclude({"correlation": rows}).to_markdown()
    assert f"Correlated above 1/2 for every seed and frame: {answer}." in text
