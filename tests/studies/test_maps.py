from __future__ import annotations

import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from spgru.moments import Moments
from spgru.studies.maps import STUDY, map_correlations


def test_correlations_over_the_pixels_of_a_frame() -> None:
    target = torch.rand(2, 3, 4, 4)
    ours = Moments(torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4))
    after = Moments(ours.mean, 4 * ours.var)
    theirs = Moments(torch.rand(2, 3, 4, 4), ours.var**2)  # the same order
    predictions = {"SP-GRU": ours, "calibrated SP-GRU": after, "MC-LSTM": theirs}
    rows = map_correlations(predictions, target)
    found = {(row["frame"], row["maps"]): row for row in rows}
    assert len(found) == 10
    for t in range(2):
        both = found[3 + t, "SP-GRU with MC-LSTM"]
        assert both["spearman"] == pytest.approx(1)
        maps = [(ours.std[t, b].flatten(), theirs.std[t, b].flatten()) for b in range(3)]
        linear = sum(pearsonr(*pair).statistic for pair in maps) / 3
        assert both["linear"] == pytest.approx(linear)
        expected = [
            spearmanr(ours.var[t, b].flatten(), (ours.mean - target)[t, b].square().flatten())
            for b in range(3)
        ]
        mean = sum(one.statistic for one in expected) / 3
        assert found[3 + t, "SP-GRU with error"]["spearman"] == pytest.approx(mean)
        # A factor on all of the variance changes neither.
        for other in ("error", "MC-LSTM"):
            plain, calibrated = (
                found[3 + t, f"{name} with {other}"] for name in predictions if name != "MC-LSTM"
            )
            assert calibrated["linear"] == pytest.approx(plain["linear"])


def test_maps_without_variance_have_no_correlation() -> None:
    flat = Moments(torch.rand(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))
    rows = map_correlations({"SP-GRU": flat, "MC-LSTM": flat}, torch.rand(1, 1, 4, 4))
    assert [(row["linear"], row["spearman"]) for row in rows] == [(None, None)] * 3


@pytest.mark.parametrize(("least", "answer"), [(0.6, "yes"), (0.4, "no")])
def test_alike_means_everywhere(least: float, answer: str) -> None:
    names = ("SP-GRU with error", "MC-LSTM with error", "SP-GRU with MC-LSTM")
    rows = [
        {"seed": seed, "frame": 11, "maps": name, "linear": least if seed else 0.9, "spearman": 0.1}
        for seed in range(2)
        for name in names
    ]
    text = STUDY.conclude({"correlation": rows}).to_markdown()
    assert f"Linear correlation above 1/2 for every seed and frame: {answer}." in text
