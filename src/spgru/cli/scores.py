"""How `spgru evaluate` shows the scores of a model."""

from __future__ import annotations

import math
from typing import Any

from spgru.studies.published import VideoScore, nats_table, video_table
from spgru.training.evaluation import Score

__all__ = ["HEADER", "beside_published", "by_frame", "line", "without_nan"]

_COLUMNS = {
    "cross_entropy": ("cross entropy", 2),
    "squared_error": ("squared error", 2),
    "absolute_error": ("absolute error", 2),
    "similarity": ("similarity", 4),
    "plain_similarity": ("with range 1", 4),
    "variance": ("variance", 3),
}
"""Measures in order: what they are called, and how many decimals they have."""
HEADER = f"{'sequences':24s}" + "".join(f"{label:>18s}" for label, _ in _COLUMNS.values())


def _cell(value: float, error: float, decimals: int) -> str:
    shown = f"{value:.{decimals}f}"
    return f"{shown if math.isnan(error) else f'{shown} ± {error:.{decimals}f}':>18s}"


def line(name: str, score: Score) -> str:
    """Means over sequences and frames, with standard errors over the sequences."""
    cells = [
        _cell(getattr(score, measure), score.standard_errors[measure], decimals)
        for measure, (_, decimals) in _COLUMNS.items()
    ]
    return f"{name:24s}{''.join(cells)}"


def by_frame(score: Score) -> str:
    """A line for each frame."""
    return "\n".join(
        f"{f'  frame {t + 1}':24s}"
        + "".join(
            _cell(score.by_frame[measure][t], score.by_frame_errors[measure][t], decimals)
            for measure, (_, decimals) in _COLUMNS.items()
        )
        for t in range(len(score.by_frame["variance"]))
    )


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
