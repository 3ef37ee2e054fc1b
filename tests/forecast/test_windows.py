from __future__ import annotations

import numpy as np
import pytest
import torch

from spgru.forecast.scaling import Scaling
from spgru.forecast.windows import Windows, filled, roughness, split_windows


@pytest.mark.parametrize("lengths", [[300], [100, 40, 1000], [30] * 5])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_no_window_of_training_reaches_into_validation(lengths: list[int], count: int) -> None:
    horizon, least = 6, 10
    split = split_windows(lengths, horizon, least, count)
    for number, length in enumerate(lengths):
        judged = split.validation[1][split.validation[0] == number]
        assert len(judged) <= count
        assert len(set(judged)) == len(judged)
        assert judged.max() == length - horizon  # the end of the series is among them
        assert judged.min() >= max(least, length - max(horizon, length // 5))
        assert split.last_origin[number] + horizon <= judged.min()


def test_windows_hold_the_values_of_their_series() -> None:
    series = [np.arange(20.0), 100 + 10 * np.arange(30.0)]
    known = [np.arange(26.0)[:, None], -np.arange(36.0)[:, None]]
    windows = Windows(series, known, None, 5, 3, 2, False, torch.device("cpu"))
    batch = windows.batch(np.array([0, 1, 1]), np.array([8, 30, 3]))
    context = batch.scaling.unscaled(batch.inputs[0].double().numpy())
    np.testing.assert_allclose(context[0], [3, 4, 5, 6, 7], rtol=1e-5)
    np.testing.assert_allclose(context[1], [350, 360, 370, 380, 390], rtol=1e-5)
    target = batch.scaling.unscaled(batch.target.double().numpy())
    np.testing.assert_allclose(target[0], [8, 9, 10], rtol=1e-5)
    assert np.isnan(target[1]).all()  # nothing is known after the end
    assert batch.inputs[1].tolist()[2] == [0, 0, 1, 1, 1]  # missing before the start
    assert isinstance(batch.inputs[3], torch.Tensor)
    assert batch.inputs[3][0, :, 0].tolist() == list(range(3, 11))
    assert batch.inputs[3][1, :, 0].tolist() == [-25, -26, -27, -28, -29, -30, -31, -32]


def test_scaling_is_undone() -> None:
    context = np.random.default_rng(0).exponential(size=(4, 30))
    context[0, 3:9] = np.nan
    for positive in (False, True):
        scaling = Scaling.of(context, positive)
        z = scaling.forward(context)
        np.testing.assert_allclose(scaling.unscaled(z), context)
        np.testing.assert_allclose(np.nanmean(z, 1), 0, atol=1e-12)
        np.testing.assert_allclose(np.nanstd(z, 1), 1)


def test_missing_values_are_filled() -> None:
    z = np.array([[1.0, 2.0, np.nan, 4.0, np.nan, 6.0], [np.nan, np.nan, 3.0, 4.0, 5.0, 6.0]])
    found = filled(z, 3)
    # A season after, then before; where neither is there, the neighbour.
    np.testing.assert_array_equal(found, [[1, 2, 6, 4, 2, 6], [4, 5, 3, 4, 5, 6]])
    alone = np.array([[np.nan, 7.0, np.nan, np.nan]])
    np.testing.assert_array_equal(filled(alone, 3), [[7, 7, 7, 7]])


def test_roughness_is_the_size_of_differences() -> None:
    z = np.array([[0.0, 1.0, 0.0, np.nan, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(np.exp(roughness(z, 2, np.full((1, 2), np.nan))), [[1.0, 1e-3]])
