"""Figures: frames in a grid, and lines with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

__all__ = [
    "COLOURS",
    "Line",
    "Panel",
    "Tile",
    "new_figure",
    "require_matplotlib",
    "save_frames",
    "save_panels",
]  # fmt: skip

COLOURS = {"frame": "gray", "uncertainty": "magma"}
"""Colour maps: frames from 0 to 1, uncertainty from 0 to the largest in the picture."""


def require_matplotlib(what: str) -> None:
    """Raise now rather than at the first picture.

    Args:
        what: what needs it, to begin the sentence with
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs matplotlib; install it with pip install 'spgru[plot]'"
        ) from error


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of that size in inches."""
    require_matplotlib("drawing a figure")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


class Tile(NamedTuple):
    kind: str
    """a key of `COLOURS`"""
    pixels: Tensor
    """(height, width)"""


def save_frames(
    path: Path,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[Tile]],
    title: str = "uncertainty: standard deviation, 0 to {top:.2g}",
) -> None:
    """A grid of frames.

    Args:
        columns: title of each column
        rows: label of each row, and its cells, one per column
        title: of the whole; {top} is the largest uncertainty, where the colours end
    """
    for label, cells in rows.items():
        if len(cells) != len(columns):
            raise ValueError(f"row {label!r} has {len(cells)} cells for {len(columns)} columns")
    every = [cell for cells in rows.values() for cell in cells]
    top = max(
        (cell.pixels.max().item() for cell in every if cell.kind == "uncertainty"), default=0.0
    )
    highest = {"frame": 1.0, "uncertainty": max(top, 1e-9)}
    figure = new_figure(1.1 * len(columns) + 0.8, 1.15 * len(rows) + 0.5)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for (label, cells), axes_of_row in zip(rows.items(), grid, strict=True):
        for (kind, pixels), axes in zip(cells, axes_of_row, strict=True):
            image = pixels.float().cpu().numpy()
            axes.imshow(image, cmap=COLOURS[kind], vmin=0, vmax=highest[kind])
            axes.set(xticks=[], yticks=[])
        axes_of_row[0].set_ylabel(label, fontsize=9)
    for name, axes in zip(columns, grid[0], strict=True):
        axes.set_title(name, fontsize=8)
    figure.suptitle(title.format(top=top), fontsize=9)
    figure.savefig(path, dpi=110)


class Line(NamedTuple):
    """Mean over seeds with the range of all seeds around it."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Panel(NamedTuple):
    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    bottom: float | None = 0.0
    """where the y axis starts; None for where its lines do"""


_INSIDE = 4
"""Most lines whose legend has room in a panel; a longer one that all share stands below them."""


def save_panels(path: Path, panels: Sequence[Sequence[Panel]]) -> None:
    """A grid of panels, each with its lines and bands."""
    figure = new_figure(4 * len(panels[0]), 3 * len(panels))
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False)
    names = {tuple(panel.lines) for row in panels for panel in row}
    common = len(names) == 1 and len(*names) > _INSIDE
    for row, cells in zip(panels, grid, strict=True):
        for panel, axes in zip(row, cells, strict=True):
            for label, line in panel.lines.items():
                (drawn,) = axes.plot(line.x, line.mean, "o-", label=label)
                axes.fill_between(line.x, line.low, line.high, alpha=0.25, color=drawn.get_color())
            axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
            if panel.bottom is not None:
                # The margin at the top is a part of the whole axis, also of lines that are flat.
                axes.update_datalim([(0, panel.bottom)], updatex=False)
                axes.autoscale_view()
                axes.set_ylim(bottom=panel.bottom)
            axes.set_xticks(sorted({x for line in panel.lines.values() for x in line.x}))
            if not common:
                axes.legend(fontsize="small")
    if common:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=110)
