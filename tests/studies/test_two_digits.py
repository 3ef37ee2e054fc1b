from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spgru.data import MovingMNISTTest, load_mnist
from spgru.models import ModelConfig
from spgru.models.video import Prediction
from spgru.moments import Moments
from spgru.studies.published import NATS
from spgru.studies.two_digits import STUDY, digits_of, evaluation_set, score_tasks


class Stub:
    """Says 1/2 for every pixel, with a logit variance that grows with distance in time."""

    config = ModelConfig()

    def __call__(self, seen: Tensor) -> Prediction:
        steps = torch.arange(1, len(seen) + 1.0).view(-1, 1, 1, 1)
        logits = Moments(torch.zeros_like(seen), 1e-3 * steps.expand_as(seen))
        return Prediction(logits, logits)


def test_scores_of_a_known_model() -> None:
    batches = [torch.rand(6, 2, 8, 8), torch.rand(6, 1, 8, 8)]
    scores, by_distance = score_tasks(Stub(), iter(batches))
    assert [row["task"] for row in scores] == ["prediction", "reconstruction"]
    for row, target in zip(
        scores,
        (torch.cat(batches, 1)[3:], torch.cat(batches, 1)[:3].flip(0)),
        strict=True,
    ):
        assert row["sequences"] == 3
        assert row["nats"] == pytest.approx(64 * math.log(2), rel=1e-5)
        squares = (target - 0.5).double().square().sum((-2, -1))
        assert row["error"] == pytest.approx(squares.mean().item(), rel=1e-5)
        own = [r for r in by_distance if r["task"] == row["task"]]
        assert [r["distance"] for r in own] == [1, 2, 3]
        per_sequence = squares.mean(0)
        want = per_sequence.std().item() / math.sqrt(3)
        assert row["error_standard_error"] == pytest.approx(want, rel=1e-5)
        for r, expected in zip(own, squares.mean(1).tolist(), strict=True):
            assert r["error"] == pytest.approx(expected, rel=1e-5)
            # sigmoid'(0) = 1/4, to first order in the variance
            assert r["variance"] == pytest.approx(64 * 1e-3 * r["distance"] / 16, rel=1e-2)


def test_batches_are_cut_to_the_number_asked_for(tiny) -> None:
    batches = list(digits_of(tiny(), 3, 53))
    assert [batch.shape[1] for batch in batches] == [50, 3]
    (first,) = digits_of(tiny(), 3, 1)
    assert torch.equal(first, batches[0][:, :1])


def test_what_networks_are_scored_on(tiny, official: Path, tmp_path: Path) -> None:
    name, batches = evaluation_set(tiny())
    assert name == "two digits, regenerated"
    assert torch.equal(next(batches), MovingMNISTTest().sequences(0, 3) / 255)
    digits = load_mnist("test")
    arrays = {f"{split}_images": digits.images for split in ("train", "test")}
    arrays |= {f"{split}_labels": digits.labels for split in ("train", "test")}
    np.savez(tmp_path / "mnist.npz", **arrays)
    own = tiny(mnist=str(tmp_path))
    name, batches = evaluation_set(own)
    assert name == "two digits, of your own"
    assert torch.equal(next(batches), next(digits_of(own, 2, 3)))
    # Digits of one's own are trained on, and do not keep from the official test.
    for settings in (tiny(official=official), tiny(mnist=str(tmp_path), official=official)):
        name, batches = evaluation_set(settings)
        assert name == "two digits, official"
        assert torch.equal(torch.cat(list(batches), 1), torch.tensor(np.load(official)) / 255)


def made_up(
    nats: float,
    variances: list[float],
    more: dict[str, Any] | None = None,
    calibrated: bool = False,
) -> str:
    score: dict[str, Any] = {"model": "SP-GRU", "set": "two digits, official"}
    score |= {"task": "prediction", "nats": nats}
    score |= {"error": 1.0, "variance": 1.0, "spearman": None, "sequences": 3}
    score |= {"parameters": 5, "steps": 2, **(more or {})}
    by_distance = [
        {"model": "SP-GRU", "task": "prediction", "distance": k + 1, "variance": v}
        for k, v in enumerate(variances)
    ]
    audit: dict[str, Any] = {"model": "SP-GRU", "closed": 1.0, "true": 4.0, "ratio": 0.25}
    audit |= {"ratio_error": 0.02, "sequences": 3, "draws": 7}
    frames = [
        {"model": "SP-GRU", "distance": k + 1, "closed": v, "true": v * v, "ratio": 1 / v}
        for k, v in enumerate(variances)
    ]
    if calibrated:
        score |= {"calibrated": 3.5, "calibrated_standard_error": 0.25}
        audit |= {"calibrated": 3.8, "calibrated_ratio": 0.95, "calibrated_ratio_error": 0.06}
        for frame in frames:
            after = {"calibrated": 0.9 * frame["true"] + 0.1, "calibrated_ratio": frame["true"]}
            frame |= after
    results = {"scores": [score], "by_distance": by_distance, "audit": [audit]}
    return STUDY.conclude({**results, "audit_by_distance": frames}).to_markdown()


def test_the_report_compares_with_networks_for_video() -> None:
    """Where the measures were taken: results of earlier versions have nats and squared error."""
    assert "PredRNN" not in made_up(250.0, [1.0, 2.0])
    more = {"absolute_error": 80.0, "similarity": 0.94, "plain_similarity": 0.93}
    more |= {"nats_standard_error": 0.5, "error": 26.0, "parameters": 4_600_000}
    text = made_up(250.0, [1.0, 2.0], more)
    assert "250 ± 0.5 nats per frame on 3 sequences" in text
    lines = text.splitlines()
    at = lines.index("| **SP-GRU (here)** | 2.3 M | 26.00 | 80.00 | 0.940 |")
    assert lines[at - 1].startswith("| SimVP+gSTA, 200 epochs | 46.8 M | 26.69 ")
    assert lines[at + 1].startswith("| PredRNN | 23.8 M | 25.04 ")


def test_the_report_says_yes_and_no() -> None:
    text = made_up(250.0, [1.0, 2.0, 4.0])
    assert "Test set: two digits, official." in text
    assert "at or below the paper's 277.1: yes." in text
    assert "variance grows with every frame of distance in time: yes; last over first 4." in text
    assert "closed form over brute force 0.25 ± 0.02 (7 drawn networks, 3 sequences)" in text
    assert "of the last frame is 16 times that of the first." in text
    lines = text.splitlines()
    rank = {name: i for i, line in enumerate(lines) for name in NATS if name in line}
    ours = next(i for i, line in enumerate(lines) if "**SP-GRU (here" in line)
    assert rank["Contextual RNN-GAN (Ghosh et al.)"] < ours < rank["SP-GRU (the paper)"]
    text = made_up(300.0, [1.0, 2.0, 1.5])
    assert "at or below the paper's 277.1: no." in text
    assert "variance grows with every frame of distance in time: no; last over first 1.5." in text


def test_the_report_has_the_variance_before_and_after() -> None:
    # Results of earlier versions have the plain closed form alone.
    assert "alibrated" not in made_up(250.0, [1.0, 2.0])
    text = made_up(250.0, [1.0, 2.0], calibrated=True)
    assert "0.25 ± 0.02, calibrated 0.95 ± 0.06, by frame 1 to 4 (7 drawn networks" in text
    assert "| 1 | 3.5 ± 0.25 |" in text
    assert "| SP-GRU | 2 | 2 | 3.7 | 4 | 0.5 | 4 |" in text


class Composed(Stub):
    """The same, calibrated: a variance of 1/4 for every predicted pixel."""

    def predict(self, seen: Tensor) -> Moments:
        return Moments(torch.full_like(seen, 0.5), torch.full_like(seen, 0.25))


def test_calibration_is_about_the_first_task() -> None:
    scores, by_distance = score_tasks(Stub(), iter([torch.rand(6, 2, 8, 8)]), Composed())
    assert scores[0]["calibrated"] == pytest.approx(16)
    assert "calibrated" not in scores[1]
    assert [row.get("calibrated") for row in by_distance] == [16.0] * 3 + [None] * 3
