"""Published scores of Moving MNIST with two digits, ten frames seen and ten predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spgru.reporting.markdown import number, table

__all__ = ["LIMITS", "NATS", "PAPER", "VIDEO", "VideoScore", "nats_table", "video_table"]

NATS = {
    "FC-LSTM (Shi et al.)": 483.2,
    "ConvLSTM (Shi et al., on a test set of their own)": 367.1,
    "Composite LSTM (Srivastava et al.)": 341.2,
    "Dynamic filters (De Brabandere et al.)": 285.2,
    "SP-GRU (the paper)": 277.1,
    "Contextual RNN-GAN (Ghosh et al.)": 241.8,
    "Video ladder network (Cricri et al.)": 187.7,
    "Differentiable memory (Patraucean et al.)": 179.8,
}
"""Nats per predicted frame, as published."""
LIMITS = {"constant mean of every pixel": 674.0, "floor of any open-loop predictor": 114.6}
"""Nats per frame of the best constant frame, and those that no predictor can go below."""
PAPER = NATS["SP-GRU (the paper)"]


class VideoScore(NamedTuple):
    """Means over sequences and predicted frames."""

    name: str
    weights: float
    """in millions"""
    squared_error: float
    """summed over the pixels of a frame"""
    absolute_error: float
    """likewise"""
    similarity: float
    """structural, with scikit-image's earlier default range of 2"""


VIDEO = [
    VideoScore("ConvLSTM-S", 15.0, 46.26, 142.18, 0.878),
    VideoScore("E3D-LSTM", 51.0, 36.19, 78.64, 0.932),
    VideoScore("PhyDNet", 3.1, 35.68, 96.70, 0.917),
    VideoScore("CrevNet", 5.0, 30.15, 86.28, 0.935),
    VideoScore("ConvLSTM-L", 33.8, 29.88, 95.05, 0.925),
    VideoScore("PredRNN.V2", 23.9, 27.73, 82.17, 0.937),
    VideoScore("SimVP+gSTA, 200 epochs", 46.8, 26.69, 77.19, 0.9402),
    VideoScore("PredRNN", 23.8, 25.04, 76.26, 0.944),
    VideoScore("MIM", 38.0, 23.66, 74.37, 0.946),
    VideoScore("PredRNN++", 38.6, 22.45, 69.70, 0.950),
    VideoScore("SimVP+IncepU, 2000 epochs", 58.0, 21.15, 64.15, 0.9536),
    VideoScore("SimVP+gSTA, 2000 epochs", 46.8, 15.05, 49.80, 0.967),
]
"""OpenSTL, docs/en/model_zoos/video_benchmarks.md at commit 033a2dd, on the official test set. Its
first table gives SimVP+IncepU the scores of gSTA after 200 epochs; the second, used here, does not.
"""


def video_table(ours: list[VideoScore], marked: bool = True) -> str:
    """Ours among the published, the largest squared error first, in Markdown.

    Args:
        marked: whether ours are bold
    """
    rows = []
    for entry in sorted([*VIDEO, *ours], key=lambda entry: -entry.squared_error):
        name = _shown(entry.name, marked and entry in ours)
        shown = (f"{entry.squared_error:.2f}", f"{entry.absolute_error:.2f}")
        rows.append([name, f"{entry.weights:.1f} M", *shown, f"{entry.similarity:.3f}"])
    header = ["model", "weights", "squared error", "absolute error", "structural similarity"]
    return table(header, rows)


def nats_table(
    ours: Mapping[str, float], reconstructed: Mapping[str, float] | None = None, marked: bool = True
) -> str:
    """Likewise of nats per frame, the fewest first, with the limits.

    Args:
        ours: of predictions, by name
        reconstructed: of frames that were seen, in a column of their own, below the predictions;
            None for no such column
    """
    entries: list[tuple[str, str, float]] = [(name, "published", v) for name, v in NATS.items()]
    entries += [(name, "limit", value) for name, value in LIMITS.items()]
    entries += [(_shown(name, marked), "here", v) for name, v in ours.items()]
    rows = [[name, what, number(nats, 4)] for name, what, nats in sorted(entries, key=_nats)]
    header = ["model", "", "nats per frame"]
    if reconstructed:
        header = ["model", "", "prediction, nats per frame", "reconstruction"]
        rows = [[*row, "-"] for row in rows]
        rows += [
            [_shown(name, marked), "here", "-", number(nats, 4)]
            for name, nats in reconstructed.items()
        ]
    return table(header, rows)


def _shown(name: str, marked: bool) -> str:
    return f"**{name}**" if marked else name


def _nats(entry: tuple[str, str, float]) -> float:
    return entry[2]
