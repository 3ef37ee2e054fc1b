from __future__ import annotations

import numpy as np
import pytest
import torch

from spgru.data import MovingMNIST
from spgru.studies.sequences import DEVIATIONS, Deviation, controlled_pairs, path
from spgru.training.evaluation import TEST_SEED, evaluation_sets


def test_deviations_start_with_the_familiar_path() -> None:
    assert len(DEVIATIONS) == 12
    assert [d.label for d in DEVIATIONS if d.is_familiar] == ["angle 20°", "speed 5 %", "noise 0"]


def test_noise_is_on_what_is_seen_alone(tiny) -> None:
    clean = controlled_pairs(tiny(), Deviation("noise", 0.0), 2)
    noisy = controlled_pairs(tiny(), Deviation("noise", 0.6), 2)
    assert torch.equal(clean.after, noisy.after)
    added = noisy.seen - clean.seen
    dark = clean.seen == 0
    assert bool((added >= 0).all())
    assert added[dark].mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(clean.visible, noisy.visible)


def test_digits_are_the_same_for_every_deviation_and_unseen_in_training(tiny) -> None:
    pairs = controlled_pairs(tiny(), Deviation("angle", 35.0), 2)
    data = MovingMNIST.controlled(2, angle=35.0, split="test", seed=TEST_SEED)
    assert torch.equal(torch.cat([pairs.seen, pairs.after]), data.batch(0))


@pytest.mark.parametrize("deviation", [Deviation("angle", 30.0), Deviation("speed", 0.065)])
def test_what_is_visible(tiny, deviation: Deviation) -> None:
    """Counted digit by digit and pixel by pixel."""
    visible = controlled_pairs(tiny(), deviation, 3).visible
    data = MovingMNIST.controlled(
        3, split="test", seed=TEST_SEED, **{deviation.kind: deviation.value}
    )
    layout = data.layout(0)
    for frame in (0, 9, 17, 19):
        shown = whole = 0
        for b in range(3):
            y, x = np.nonzero(data.images[layout.digits[b, 0]].numpy())
            values = data.images[layout.digits[b, 0]].numpy()[y, x].astype(int)
            top, left = layout.corners[frame, b, 0]
            inside = (y + top >= 0) & (y + top < 64) & (x + left >= 0) & (x + left < 64)
            shown, whole = shown + values[inside].sum(), whole + values.sum()
        assert visible[frame].item() == pytest.approx(shown / whole, abs=1e-6)


def test_path_is_a_straight_line(tiny) -> None:
    points = path(tiny(), Deviation("angle", 20.0))
    assert points.shape == (20, 2)
    dy, dx = points[-1] - points[0]
    assert dy / dx == pytest.approx(np.tan(np.radians(20)), abs=0.03)
    assert np.hypot(dy, dx) == pytest.approx(19 * 0.05 * 36, abs=1.5)


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda one: one.label)
def test_the_command_evaluate_and_the_study_ask_about_the_same_frames(tiny, deviation) -> None:
    pairs = controlled_pairs(tiny(), deviation, 3)
    sets = dict(evaluation_sets("controlled", 3, 3, torch.device("cpu")))
    frames = next(iter(sets[f"{deviation.kind} {deviation.value:g}"]))
    assert torch.equal(frames[:10], pairs.seen)
    assert torch.equal(frames[10:], pairs.after)
