"""How `spgru evaluate` shows the scores of a model."""

from __future__ import annotations

import math
from typing import Any

from spgru.studies.published import VideoScore, nats_table, video_table
from spgru.training.evaluation import Score

__all__ = ["Columns", "beside_published", "without_nan"]

_COLUMNS = {
    "cross_entropy": ("cross entropy", 2),
    "squared_error": ("squared error", 2),
    "absolute_error": ("absolute error", 2),
    "similarity": ("similarity", 4),
    "plain_similarity": ("with range 1", 4),
    "variance": ("variance", 3),
    "closed_variance": ("uncalibrated", 3),
}
"""Measures in order: what they are called, and how many decimals they have."""


class Columns:
    """The table: the variance before calibration is there if the model is calibrated."""

    def __init__(self, is_calibrated: bool) -> None:
        self._shown = dict(_COLUMNS)
        if not is_calibrated:
            del self._shown["closed_variance"]

    @property
    def header(self) -> str:
        return f"{'sequences':24s}" + "".join(f"{name:>18s}" for name, _ in self._shown.values())

    def line(self, name: str, score: Score) -> str:
        """Means over sequences and frames, with standard errors over the sequences."""
        cells = [
            _cell(getattr(score, measure), score.standard_errors[measure], decimals)
            for measure, (_, decimals) in self._shown.items()
        ]
        return f"{name:24s}{''.join(cells)}"

    def by_frame(self, score: Score) -> str:
        """A line for each frame."""
        return "\n".join(
            f"{f'  frame {t + 1}':24s}"
            + "".join(
                _cell(score.by_frame[measure][t], score.by_frame_errors[measure][t], decimals)
                for measure, (_, decimals) in self._shown.items()
            )
            for t in range(len(score.by_frame["variance"]))
        )


def _cell(value: float, error: float, decimals: int) -> str:
    shown = f"{value:.{decimals}f}"
    return f"{shown if math.isnan(error) else f'{shown} ± {error:.{decimals}f}':>18s}"


def beside_published(score: Score, weights: int) -> str:
    """Tables of published predictions with this one among them.

    Args:
        weights: of the model, without variances
    """
    here = "this network"
    errors = score.squared_error, score.absolute_error, score.similarity
    ours = VideoScore(here, weights / 1e6, *errors)
    return "\n\n".join(
        [
            video_table([ours]),
            "Errors are sums over the pixels of a frame; published by OpenSTL, on the official "
            "test set.\nStructural similarity is with a range of 2, as published.",
            nats_table({here: score.cross_entropy}),
        ]
    )


def without_nan(value: Any) -> Any:
    """NaN becomes None, since JSON has none; in lists and mappings too."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
