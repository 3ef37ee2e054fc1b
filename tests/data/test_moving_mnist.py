from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
import torch

from spgru.data import MovingMNIST
from spgru.data.randomness import digit_indices, uniforms


def test_shape_range_and_dtype():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        frames = MovingMNIST(3, frames=5, split="test", dtype=dtype, noise=0.1).batch(0)
        assert frames.shape == (5, 3, 64, 64)
        assert frames.dtype == dtype
        assert frames.min() >= 0
        assert frames.max() <= 1
    default = MovingMNIST(2, split="test").batch(0)
    assert default.shape == (20, 2, 64, 64)
    assert default.dtype == torch.float32
    assert default.max() > 0.9


def test_own_digits(tmp_path):
    images = np.arange(1, 4, dtype=np.uint8).repeat(784).reshape(3, 28, 28)
    np.savez(tmp_path / "mnist.npz", test_images=images, test_labels=np.zeros(3, dtype=np.uint8))
    data = MovingMNIST(6, 1, split="test", frames=1, directory=tmp_path)
    brightest = data.batch(0).amax(dim=(0, 2, 3)) * 255
    assert brightest.round().tolist() == (data.layout(0).digits[:, 0] + 1).tolist()


def test_no_digit_repeats_before_the_split_is_used_up():
    data = MovingMNIST(250, 2, split="test", frames=1)
    drawn = np.concatenate([data.layout(k).digits.ravel() for k in range(40)])
    for order in drawn.reshape(2, 10_000):
        assert np.array_equal(np.sort(order), np.arange(10_000))
    assert not np.array_equal(drawn[:10_000], drawn[10_000:])


def test_batches_may_span_several_orders():
    drawn = digit_indices(0, "test", 7, first=3, count=25)
    assert np.array_equal(drawn, [int(digit_indices(0, "test", 7, n, 1)[0]) for n in range(3, 28)])
    assert np.array_equal(np.sort(drawn[4:11]), np.arange(7))
    assert np.array_equal(np.sort(drawn[11:18]), np.arange(7))


def test_digits_come_in_random_order():
    """Spearman's rank correlation of order and index has standard error 1/sqrt(n - 1)."""
    order = digit_indices(1, "train", 60_000, 0, 60_000)
    assert abs(np.corrcoef(order, np.arange(60_000))[0, 1]) < 4 / 60_000**0.5


def test_starts_and_angles_are_uniform():
    drawn = uniforms(5, "train", 0, 30_000)
    assert np.array_equal(drawn[1234:1300], uniforms(5, "train", 1234, 66))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # The Kolmogorov-Smirnov distance exceeds 1.95/sqrt(n) in one of a thousand samples.
    grid = np.arange(1, 30_001) / 30_000
    assert np.abs(np.sort(drawn) - grid).max() < 1.95 / 30_000**0.5


def test_random_access_equals_iteration():
    options = {"split": "test", "frames": 4, "noise": 0.2, "seed": 9}
    data = MovingMNIST(5, **options)
    iterated = list(islice(data, 4))
    assert data.position == 4
    for k in (2, 0, 3, 1):
        assert torch.equal(data.batch(k), iterated[k])
    assert data.position == 4


def test_far_batches_cost_nothing():
    frames = MovingMNIST(2, split="test", frames=2, noise=0.1).batch(10**15)
    assert frames.shape == (2, 2, 64, 64)


def test_batch_size_does_not_change_the_sequences():
    small = MovingMNIST(3, split="test", noise=0.3, frames=4)
    large = MovingMNIST(12, split="test", noise=0.3, frames=4)
    assert torch.equal(torch.cat(list(islice(small, 4)), dim=1), large.batch(0))


def test_more_frames_continue_the_same_sequences():
    short = MovingMNIST(3, split="test", noise=0.3, frames=4).batch(1)
    assert torch.equal(MovingMNIST(3, split="test", noise=0.3, frames=9).batch(1)[:4], short)


def test_seeds_and_splits_differ():
    def paths(**options):
        return MovingMNIST(8, **options).layout(0)

    base = paths(split="test")
    for other in (paths(split="test", seed=1), paths(split="train")):
        assert not np.array_equal(base.corners, other.corners)
        assert not np.array_equal(base.digits, other.digits)


def test_resume_through_json():
    options = {"split": "test", "frames": 3, "start": (0.25, 0.5), "speed": 0.03, "noise": 0.1}
    data = MovingMNIST(4, **options)
    list(islice(data, 3))
    saved = json.loads(json.dumps(data.state_dict()))
    resumed = MovingMNIST(4, **options)
    resumed.load_state_dict(saved)
    assert resumed.position == 3
    for _ in range(2):
        assert torch.equal(next(resumed), next(data))


def test_resume_may_change_the_number_of_processes_but_nothing_else():
    saved = MovingMNIST(4, split="test", world_size=2, rank=1).state_dict() | {"position": 6}
    single = MovingMNIST(8, split="test")
    single.load_state_dict(saved)
    assert single.position == 6
    for other in (MovingMNIST(8, split="test", seed=1), MovingMNIST(4, split="test")):
        with pytest.raises(ValueError, match=r"state has \w+ \d but this object \d; build it"):
            other.load_state_dict(saved)
        assert other.position == 0
    with pytest.raises(ValueError, match=r"state has no 'position'; pass what state_dict"):
        single.load_state_dict({})


def test_resume_with_other_digits_is_refused():
    data = MovingMNIST(4, split="test")
    saved = data.state_dict()
    data.load_state_dict(saved)
    other = MovingMNIST(4, split="test")
    other.images = other.images.flip(0)
    with pytest.raises(ValueError, match=r"state has images '\w{64}' but this object '\w{64}'"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_join_to_the_single_process_batch(world_size):
    options = {"split": "test", "frames": 3, "noise": 0.2, "seed": 3}
    joint = MovingMNIST(4 * world_size, **options)
    ranks = [MovingMNIST(4, rank=r, world_size=world_size, **options) for r in range(world_size)]
    for k in (0, 5):
        assert torch.equal(torch.cat([data.batch(k) for data in ranks], dim=1), joint.batch(k))


def test_fixing_one_thing_leaves_the_rest_as_drawn():
    free = MovingMNIST(6, split="test", frames=1)
    fixed = MovingMNIST(6, split="test", frames=1, angle=0.0)
    assert np.array_equal(free.layout(0).digits, fixed.layout(0).digits)
    still = MovingMNIST(6, split="test", frames=1, speed=0.0)
    # One step of 3.6 pixels at most lies between where a digit starts and where it is drawn.
    for data in (free, fixed):
        assert np.abs(data.layout(0).corners - still.layout(0).corners).max() <= 4


def test_fixed_start_angle_and_speed():
    data = MovingMNIST(2, 1, split="test", start=(0.0, 0.25), angle=90, speed=4.5 / 36, frames=5)
    corners = data.layout(0).corners
    assert corners[:, 0, 0].tolist() == [[4, 9], [9, 9], [13, 9], [18, 9], [22, 9]]
    assert np.array_equal(corners[:, 0], corners[:, 1])


def test_controlled_path_moves_across_the_canvas():
    data = MovingMNIST.controlled(16, split="test", seed=1)
    layout = data.layout(0)
    assert layout.digits.shape == (16, 1)
    assert (layout.corners == layout.corners[:, :1]).all()
    centres = layout.corners[:, 0, 0] + 14
    dy, dx = centres[-1] - centres[0]
    assert np.hypot(dy, dx) == pytest.approx(19 * 1.8, abs=np.sqrt(2))
    assert np.degrees(np.arctan2(dy, dx)) == pytest.approx(20, abs=np.degrees(1 / (19 * 1.8)))
    assert data.protocol.boundary == "leave"


@pytest.mark.parametrize(
    "change", [{}, {"angle": 25}, {"angle": 30}, {"angle": 35}, {"speed": 0.06}, {"speed": 0.065}]
)
def test_the_digit_stays_in_view_on_every_path_of_the_study(change):
    """Its brightness is the same in all frames, but for a rare pixel at the edge of a digit."""
    frames = MovingMNIST.controlled(500, split="test", seed=1, **change).batch(0)
    light = frames.sum((2, 3))
    whole = light.max(0).values
    assert (light.sum(1) / whole.sum()).min() > 0.999
    assert (light > 0.97 * whole).all()


@pytest.mark.parametrize("change", [{"angle": 35}, {"speed": 0.065}, {"angle": 30, "noise": 0.4}])
def test_unfamiliar_paths_share_digits_and_first_place(change):
    training = MovingMNIST.controlled(4, split="test")
    unfamiliar = MovingMNIST.controlled(4, split="test", **change)
    expected, found = training.layout(0), unfamiliar.layout(0)
    assert np.array_equal(found.digits, expected.digits)
    assert np.array_equal(found.corners[0], expected.corners[0])
    assert not np.array_equal(found.corners[-1], expected.corners[-1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, r"batch_size is 0; pass a whole number of at least 1"),
        ({"batch_size": 2.0}, TypeError, r"batch_size is 2.0; pass a whole number"),
        ({"digits": 0}, ValueError, r"digits is 0; pass a whole number of at least 1"),
        ({"digits": True}, TypeError, r"digits is True; pass a whole number"),
        ({"frames": -1}, ValueError, r"frames is -1; pass a whole number of at least 1"),
        ({"seed": -1}, ValueError, r"seed is -1; pass a whole number of at least 0"),
        ({"split": "val"}, ValueError, r"split is 'val'; pass 'train' or 'test'"),
        ({"boundary": "wrap"}, ValueError, r"boundary is 'wrap'; pass 'bounce' or 'leave'"),
        ({"speed": -0.1}, ValueError, r"speed is -0.1; pass a number \(fraction of 36"),
        ({"speed": None}, TypeError, r"speed is None; pass a number"),
        ({"noise": 1.5}, ValueError, r"noise is 1.5; pass a number from 0 to 1"),
        ({"noise": float("nan")}, ValueError, r"noise is nan; pass a number from 0 to 1"),
        ({"angle": float("inf")}, ValueError, r"angle is inf; pass a finite number \(degrees\)"),
        ({"angle": "20"}, TypeError, r"angle is '20'; pass a finite number"),
        ({"start": 0.5}, TypeError, r"start is 0.5; pass a pair \(y, x\), or None"),
        ({"start": (0.5, 1.2)}, ValueError, r'start\[1\] is 1.2; .*boundary="leave"\) from 0 to 1'),
        ({"dtype": torch.uint8}, ValueError, r"dtype is torch.uint8, .*; pass a floating dtype"),
        ({"dtype": "float32"}, TypeError, r"dtype is 'float32'; pass a torch dtype"),
        ({"world_size": 0}, ValueError, r"world_size is 0; pass a whole number of at least 1"),
        ({"rank": 2, "world_size": 2}, ValueError, r"rank is 2 with world_size 2; .*from 0 to 1"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        MovingMNIST(**{"batch_size": 2, "split": "test"} | options)


def test_bad_arguments_of_the_controlled_path():
    with pytest.raises(TypeError, match=r"angle is None; pass a finite number \(degrees\)"):
        MovingMNIST.controlled(2, angle=None)
    with pytest.raises(ValueError, match=r"speed is -1; pass a number"):
        MovingMNIST.controlled(2, speed=-1)


def test_bad_positions():
    data = MovingMNIST(1, split="test")
    with pytest.raises(ValueError, match=r"k is -1; pass a whole number of at least 0"):
        data.batch(-1)
    with pytest.raises(ValueError, match=r"position is -3; pass a whole number of at least 0"):
        data.position = -3
