"""Metrics against scipy, quadrature and simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import scoringrules
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from torch import Tensor

from oracles import random_moments
from spgru import Moments, certain
from spgru.metrics import (
    ause,
    calibration_curve,
    calibration_error,
    coverage,
    cross_entropy_per_frame,
    crps,
    gaussian_nll,
    interval_score,
    mean_squared_z,
    similarity_per_frame,
    spearman,
    variance_error_correlation,
)


def test_nll_is_scipys() -> None:
    prediction, target = random_moments(7, 5), torch.randn(7, 5).double()
    want = -scipy.stats.norm.logpdf(target, prediction.mean, prediction.std)
    np.testing.assert_allclose(gaussian_nll(prediction, target), want)


def test_crps_against_quadrature() -> None:
    for mean, std, y in [(0.0, 1.0, 0.3), (2.0, 0.1, 1.5), (-1.0, 3.0, 9.0), (0.0, 0.5, 0.0)]:
        norm = scipy.stats.norm(mean, std)
        want = (
            quad(lambda x, n=norm: n.cdf(x) ** 2, mean - 15 * std, y, points=[mean])[0]
            + quad(lambda x, n=norm: n.sf(x) ** 2, y, max(mean + 15 * std, y))[0]
        )
        prediction = Moments(*torch.tensor([mean, std**2], dtype=torch.float64))
        got = crps(prediction, torch.tensor(y, dtype=torch.float64))
        assert got.item() == pytest.approx(want, rel=1e-7)


def test_certain_predictions() -> None:
    prediction, target = certain(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.5])
    torch.testing.assert_close(crps(prediction, target), torch.tensor([0.0, 0.5]))
    torch.testing.assert_close(
        gaussian_nll(prediction, target), torch.tensor([-math.inf, math.inf])
    )
    assert coverage(prediction, target) == 0.5
    assert (calibration_curve(prediction, target).observed == 0.5).all()


def test_scores_pass_gradients() -> None:
    mean = torch.randn(6).double().requires_grad_()
    var = torch.rand(6).double().add(0.1).requires_grad_()
    target = torch.randn(6).double()
    for score in (crps, gaussian_nll):
        assert torch.autograd.gradcheck(
            lambda m, v, score=score: score(Moments(m, v), target), (mean, var)
        )
    certainly = torch.zeros(6).double().requires_grad_()
    crps(Moments(mean, certainly), target).sum().backward()
    assert certainly.grad is not None
    assert torch.isfinite(certainly.grad).all()


def test_coverage_and_calibration_of_a_true_and_of_two_false_predictions() -> None:
    count = 20_000
    prediction = random_moments(count)
    target = prediction.mean + prediction.std * torch.randn(count).double()
    for level in (0.5, 0.9, 0.95):
        error = math.sqrt(level * (1 - level) / count)
        observed = coverage(prediction, target, level)
        assert abs(observed - level) < 5 * error
        curve = calibration_curve(prediction, target, [level])
        torch.testing.assert_close(curve.observed[0], observed)
    assert calibration_error(prediction, target) < 5 * 0.5 / math.sqrt(count)
    for factor in (0.25, 4.0):
        false = Moments(prediction.mean, factor * prediction.var)
        levels, observed = calibration_curve(false, target)
        # z is normal, so an interval of half the width covers 2 Phi(quantile / 2) - 1.
        quantiles = math.sqrt(factor) * scipy.stats.norm.ppf((1 + levels) / 2)
        want = 2 * scipy.stats.norm.cdf(quantiles) - 1
        np.testing.assert_allclose(observed, want, atol=5 * 0.5 / math.sqrt(count))
        want_error = np.abs(want - levels.numpy()).mean()
        assert calibration_error(false, target).item() == pytest.approx(want_error, abs=0.02)


def test_cross_entropy_per_frame_is_torchs() -> None:
    pixels, target = torch.rand(3, 2, 8, 8), torch.rand(3, 2, 8, 8)
    want = F.binary_cross_entropy(pixels, target, reduction="none").sum((-2, -1))
    torch.testing.assert_close(cross_entropy_per_frame(pixels, target), want)
    torch.testing.assert_close(cross_entropy_per_frame(certain(pixels), target), want)
    # At its best it is the entropy of the target, 64 bits here.
    half = torch.full((1, 1, 8, 8), 0.5)
    torch.testing.assert_close(
        cross_entropy_per_frame(half, half), torch.tensor([[64 * math.log(2)]])
    )
    hit = torch.ones(1, 1, 8, 8)
    assert cross_entropy_per_frame(hit, hit) < 1e-5
    assert 64 * 15 < cross_entropy_per_frame(hit, torch.zeros(1, 1, 8, 8)) < 64 * 18
    assert cross_entropy_per_frame(pixels.bfloat16(), target).dtype == torch.float32


def similarity_by_hand(x: Any, y: Any, data_range: float, window: int) -> float:
    """Of two images, window by window, by NumPy's own mean, variance and covariance."""
    k1, k2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    found = []
    for i, j in np.ndindex(x.shape[0] - window + 1, x.shape[1] - window + 1):
        a, b = (image[i : i + window, j : j + window].ravel() for image in (x, y))
        (v1, c), (_, v2) = np.cov(a, b)
        found.append(
            (2 * a.mean() * b.mean() + k1)
            * (2 * c + k2)
            / ((a.mean() ** 2 + b.mean() ** 2 + k1) * (v1 + v2 + k2))
        )
    return float(np.mean(found))


@pytest.mark.parametrize(("data_range", "window"), [(1.0, 7), (2.0, 7), (1.0, 3)])
def test_similarity_per_frame_is_its_definition(data_range: float, window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(2, 3, 9, 11, generator=generator)
    target[0] = (target[0] > 0.7).float() * target[0]  # dark, with some strokes
    pixels = (target + 0.3 * torch.randn(target.shape, generator=generator)).clamp(0, 1)
    found = similarity_per_frame(certain(pixels), target, data_range, window)
    assert found.shape == (2, 3)
    for t, b in np.ndindex(2, 3):
        x, y = pixels[t, b].double().numpy(), target[t, b].double().numpy()
        want = similarity_by_hand(x, y, data_range, window)
        assert found[t, b].item() == pytest.approx(want, abs=1e-9)


def test_similarity_of_equal_opposite_and_small_frames() -> None:
    frames = torch.rand(1, 1, 8, 8)
    assert similarity_per_frame(frames, frames).item() == pytest.approx(1.0)
    assert similarity_per_frame(1 - frames, frames).item() < 0
    # Black frames alike: 0 / 0 without the constants.
    black = torch.zeros(1, 1, 8, 8)
    assert similarity_per_frame(black, black).item() == 1.0
    with pytest.raises(ValueError, match=r"at least 7 pixels each way"):
        similarity_per_frame(frames[..., :6], frames[..., :6])


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipys(ties: bool) -> None:
    a, b = torch.randn(50).double(), torch.randn(50).double()
    a = a + b
    if ties:
        a, b = a.round(), b.round()
    want = scipy.stats.spearmanr(a, b).statistic
    assert spearman(a, b).item() == pytest.approx(want, abs=1e-12)
    assert spearman(a, a.exp()).item() == pytest.approx(1.0)
    assert spearman(a, torch.zeros_like(a)).isnan()


def test_variance_error_correlation_is_per_sequence() -> None:
    size = torch.tensor([0.1, 0.4, 0.2, 0.3])
    target = torch.zeros(3, 4, 2, 2)
    error = size[:, None, None] * torch.ones(3, 4, 2, 2)
    prediction = Moments(error, 5 * error**2)
    assert variance_error_correlation(prediction, target) == pytest.approx(1.0)
    opposite = Moments(error, 1 - error)
    assert variance_error_correlation(opposite, target) == pytest.approx(-1.0)


def test_errors() -> None:
    prediction = certain(torch.zeros(3))
    with pytest.raises(ValueError, match=r"prediction has shape \(3,\) but target \(4,\)"):
        crps(prediction, torch.zeros(4))
    with pytest.raises(ValueError, match="divide uint8 frames by 255"):
        cross_entropy_per_frame(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 255.0))
    with pytest.raises(ValueError, match="levels must lie between 0 and 1"):
        calibration_curve(prediction, torch.zeros(3), [0.5, 1.0])
    with pytest.raises(ValueError, match="two vectors of equal length"):
        spearman(torch.zeros(3), torch.zeros(4))


BAD_MEAN = Moments(torch.full((3, 4), math.nan).double(), torch.ones(3, 4).double())
BAD_VAR = Moments(torch.zeros(3, 4).double(), torch.full((3, 4), math.nan).double())
GOOD = Moments(torch.zeros(3, 4).double(), torch.ones(3, 4).double())
TARGET = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize(
    ("prediction", "target"),
    [(BAD_MEAN, TARGET), (BAD_VAR, TARGET), (BAD_VAR, torch.zeros(3, 4).double()),
     (GOOD, TARGET * math.nan)],
    ids=["mean", "var", "var of a hit", "target"],
)  # fmt: skip
@pytest.mark.parametrize(
    "metric",
    [gaussian_nll, crps, coverage, calibration_error, variance_error_correlation],
)
def test_nan_gives_nan(metric: object, prediction: Moments, target: torch.Tensor) -> None:
    assert metric(prediction, target).isnan().all()
    assert calibration_curve(prediction, target).observed.isnan().all()


def test_one_nan_spoils_only_its_own_score_but_every_figure_over_all() -> None:
    target = torch.randn(3, 4).double()
    mean = torch.randn(3, 4).double()
    mean[1, 2] = math.nan
    prediction = Moments(mean, torch.ones(3, 4).double())
    for score in (gaussian_nll, crps):
        assert torch.equal(score(prediction, target).isnan(), mean.isnan())
    for figure in (coverage, calibration_error, variance_error_correlation):
        assert figure(prediction, target).isnan()
    assert spearman(mean.flatten(), target.flatten()).isnan()
    assert spearman(target.flatten(), mean.flatten()).isnan()


def test_nan_in_frames() -> None:
    pixels, target = torch.rand(3, 2, 8, 8), torch.rand(3, 2, 8, 8)
    pixels[0, 1, 2, 3] = math.nan
    want = torch.zeros(3, 2, dtype=torch.bool)
    want[0, 1] = True
    assert torch.equal(cross_entropy_per_frame(pixels, target).isnan(), want)
    with pytest.raises(ValueError, match="entry nan but must be between 0 and 1"):
        cross_entropy_per_frame(target, pixels)


def test_resized_frames_may_overshoot_by_rounding() -> None:
    frames = F.interpolate(torch.ones(2, 1, 8, 8), size=(11, 11), mode="bicubic")
    assert frames.max() > 1
    pixels = torch.full_like(frames, 0.5)
    want = torch.full((2, 1), 11 * 11 * math.log(2))
    torch.testing.assert_close(cross_entropy_per_frame(pixels, frames), want)
    with pytest.raises(ValueError, match="divide uint8 frames by 255"):
        cross_entropy_per_frame(pixels, 255 * frames)


def test_nll_of_a_hit_has_a_gradient() -> None:
    """Where error and variance both were 0, 0 / 0 made every gradient NaN."""
    mean = torch.zeros(2).double().requires_grad_()
    var = torch.tensor([0.0, 1.0]).double()
    gaussian_nll(Moments(mean, var), torch.zeros(2).double()).sum().backward()
    assert torch.equal(mean.grad, torch.zeros(2).double())


def test_metrics_are_there_after_import() -> None:
    import spgru

    assert spgru.metrics.crps is crps


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_interval_score_by_definition(level: float) -> None:
    prediction = Moments(torch.randn(200), torch.rand(200) + 0.1)
    target = prediction.mean + 2 * torch.randn(200)
    lower, upper = prediction.interval(level)
    found = interval_score(prediction, target, level)
    for y, low, high, value in zip(target, lower, upper, found, strict=True):
        expected = high - low
        if y < low:
            expected = expected + 2 / (1 - level) * (low - y)
        if y > high:
            expected = expected + 2 / (1 - level) * (y - high)
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    # The true standard deviation has the best score.
    y = torch.randn(20_000)
    scores = [
        interval_score(Moments(torch.zeros_like(y), torch.full_like(y, v)), y, level).mean()
        for v in (0.5, 1.0, 2.0)
    ]
    assert scores[1] < min(scores[0], scores[2])
    assert interval_score(Moments(y[:2], y[:2] ** 2), y[:2] * torch.nan).isnan().all()


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_scores_are_those_of_scoringrules(level: float) -> None:
    prediction = Moments(torch.randn(500).double(), torch.rand(500).double() + 0.01)
    target = prediction.mean + 2 * torch.randn(500).double()
    y, mean, std = (part.numpy() for part in (target, prediction.mean, prediction.std))
    lower, upper = (bound.numpy() for bound in prediction.interval(level))
    for found, expected in (
        (crps(prediction, target), scoringrules.crps_normal(y, mean, std)),
        (gaussian_nll(prediction, target), scoringrules.logs_normal(y, mean, std)),
        (
            interval_score(prediction, target, level),
            scoringrules.interval_score(y, lower, upper, 1 - level),
        ),
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_mean_squared_z() -> None:
    mean, var, y = torch.randn(50), torch.rand(50) + 0.1, torch.randn(50)
    expected = sum((y - m) ** 2 / v for m, v, y in zip(mean, var, y, strict=True)) / 50
    assert mean_squared_z(Moments(mean, var), y).item() == pytest.approx(expected.item())
    certain = Moments(torch.zeros(2), torch.zeros(2))
    assert mean_squared_z(certain, torch.zeros(2)) == 0
    assert mean_squared_z(certain, torch.ones(2)).isinf()
    assert mean_squared_z(Moments(mean, var), torch.full((50,), torch.nan)).isnan()


def test_ause_by_definition() -> None:
    var, y = torch.rand(30) + 0.1, torch.randn(30)
    prediction = Moments(torch.zeros(30), var)

    def curve(order: Tensor) -> list[float]:
        kept = y.abs()[order]  # the least first
        return [kept[: len(kept) - gone].mean().item() for gone in range(len(kept))]

    by_var, by_error = curve(var.argsort()), curve(y.abs().argsort())
    gaps = [a - b for a, b in zip(by_var, by_error, strict=True)]
    expected = sum(gaps) / len(gaps) / y.abs().mean().item()
    assert ause(prediction, y).item() == pytest.approx(expected, rel=1e-5)
    assert ause(Moments(torch.zeros(30), y**2), y) == pytest.approx(0, abs=1e-6)
    # A constant variance ranks nothing: what is left has the error of all.
    constant = ause(Moments(torch.zeros(30), torch.ones(30)), y).item()
    gaps = [y.abs().mean().item() - b for b in by_error]
    assert constant == pytest.approx(sum(gaps) / len(gaps) / y.abs().mean().item(), rel=1e-5)
    assert ause(prediction, torch.zeros(30)) == 0
    assert ause(prediction, y * torch.nan).isnan()
    with pytest.raises(ValueError, match="empty"):
        ause(Moments(torch.zeros(0), torch.zeros(0)), torch.zeros(0))


def test_counts_as_targets() -> None:
    prediction, target = random_moments(40), torch.randint(0, 4, (40,))
    for score in (coverage, ause, mean_squared_z, interval_score):
        expected = score(prediction, target.double())
        assert expected.abs().max() > 0
        torch.testing.assert_close(score(prediction, target), expected)


OF_MOMENTS = (
    ause, calibration_curve, calibration_error, coverage, crps, gaussian_nll, interval_score,
    mean_squared_z, variance_error_correlation,
)  # fmt: skip
OF_FRAMES = (cross_entropy_per_frame, similarity_per_frame)


@pytest.mark.parametrize("score", OF_MOMENTS, ids=lambda score: score.__name__)
@pytest.mark.parametrize("count", [2, 3])
def test_a_tensor_is_not_taken_for_mean_and_variance(score: Any, count: int) -> None:
    target = torch.rand(count, 5)
    for wrong in (torch.rand(count, 5), (target, target), target.numpy()):
        name = type(wrong).__name__
        with pytest.raises(TypeError, match=f"prediction must be Moments, got {name}; pass what"):
            score(wrong, target)


@pytest.mark.parametrize("score", OF_MOMENTS + OF_FRAMES, ids=lambda score: score.__name__)
def test_arguments_in_the_wrong_order_are_refused(score: Any) -> None:
    prediction, target = certain(torch.rand(2, 2, 8, 8)), torch.rand(2, 2, 8, 8)
    with pytest.raises(TypeError, match=r"must be (Moments|a Tensor), got (Tensor|Moments); pass"):
        score(target, prediction)
    for wrong in (prediction, target.tolist(), 0.5):
        with pytest.raises(TypeError, match=f"target must be a Tensor, got {type(wrong).__name__}"):
            score(prediction, wrong)


def test_frames_and_samples_of_another_type_are_refused() -> None:
    target = torch.rand(2, 2, 8, 8)
    for score in OF_FRAMES:
        with pytest.raises(TypeError, match="pixels must be Moments or a Tensor, got ndarray"):
            score(target.numpy(), target)
    sample = torch.rand(4)
    with pytest.raises(TypeError, match="b must be a Tensor, got list"):
        spearman(sample, sample.tolist())
    with pytest.raises(TypeError, match="a must be a Tensor, got Moments"):
        spearman(certain(sample), sample)
