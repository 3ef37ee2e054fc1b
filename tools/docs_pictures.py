"""The pictures of README and documentation, from small runs and from accuracy/results.

Each is drawn twice, for light and for dark pages. The same seeds and versions give the same files.

Run:  python tools/docs_pictures.py [NAME ...]        (all: about a minute on two cores)
"""

from __future__ import annotations

import csv
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

import spgru
from spgru import Moments

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"

# Okabe and Ito's colours, which people who see fewer colours can tell apart.
THEMES: dict[str, dict[str, str]] = {
    "light": {"text": "#24292f", "grid": "#d0d7de", "ours": "#0072B2", "other": "#D55E00",
              "third": "#009E73", "truth": "#24292f", "shade": "#8c959f", "strange": "#E69F00"},
    "dark": {"text": "#d5d9de", "grid": "#3d444d", "ours": "#56B4E9", "other": "#E69F00",
             "third": "#2BC79B", "truth": "#f0f3f6", "shade": "#9198a1", "strange": "#E69F00"},
}  # fmt: skip


def figure(
    theme: dict[str, str], width: float, height: float, columns: int = 1
) -> tuple[Figure, Any]:
    """A transparent figure, and its axes in one row."""
    colours = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"),
        theme["text"],
    )
    matplotlib.rcParams.update(
        {**colours, "svg.hashsalt": "spgru", "svg.fonttype": "none", "font.family": "sans-serif",
         "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
         "grid.color": theme["grid"], "grid.linewidth": 0.6, "axes.facecolor": "none",
         "figure.facecolor": "none", "legend.frameon": False, "savefig.facecolor": "none"}
    )  # fmt: skip
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = drawn.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        one.grid(True)
        one.set_axisbelow(True)
    return drawn, axes


def results(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (ROOT / "accuracy" / "results" / f"{name}.json").read_text()
    )["result"]
    return found


# -- the front page -----------------------------------------------------------------------------


def forecast() -> Callable[[dict[str, str]], Figure]:
    """Two days of hourly demand with intervals, and what came."""
    from spgru.forecast import Forecaster

    ahead, shown = 48, 96
    y = runpy.run_path(str(ROOT / "examples" / "forecast.py"))["demand"](1600)
    torch.manual_seed(0)
    forecaster = Forecaster(ahead, season=24, steps=200, mode="direct").fit(y[:-ahead])
    found = forecaster.predict()

    def draw(theme: dict[str, str]) -> Figure:
        drawn, (axes,) = figure(theme, 6, 2.6)
        times = range(ahead)
        axes.plot(range(-shown, 0), y[-ahead - shown : -ahead], color=theme["truth"], linewidth=1)
        for level, alpha in ((0.95, 0.22), (0.8, 0.3)):
            low, high = found.interval(level)
            label = "80 and 95 % interval" if level == 0.8 else None
            axes.fill_between(
                times, low, high, color=theme["ours"], alpha=alpha, linewidth=0, label=label
            )
        axes.plot(times, found.mean, color=theme["ours"], linewidth=1.6, label="forecast")
        axes.plot(times, y[-ahead:], ".", color=theme["truth"], markersize=4, label="what came")
        axes.set(xlabel="hours from now", ylabel="demand", xlim=(-shown, ahead), ylim=(28, 78))
        axes.legend(ncols=3, fontsize=9, loc="upper left")
        return drawn

    return draw


def off_the_path() -> Callable[[dict[str, str]], Figure]:
    """The controlled study at the size of the paper: variance over that of the familiar path.

    Ours is calibrated; there is nothing to calibrate in the LSTM.
    """
    with (ROOT / "results" / "controlled-paper" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    units = {
        "angle": "angle, degrees",
        "speed": "speed, of 36 pixels",
        "noise": "noise, Unif(0, b)",
    }

    def draw(theme: dict[str, str]) -> Figure:
        drawn, panels = figure(theme, 6, 2.6, columns=3)
        for axes, (kind, label) in zip(panels, units.items(), strict=True):
            for model, colour, name in (
                ("SP-GRU", "ours", "SP-GRU, one pass, calibrated"),
                ("MC-LSTM", "other", "LSTM, 50 draws"),
            ):
                points: dict[float, list[float]] = {}
                for row in rows:
                    if row["model"] == model and row["kind"] == kind:
                        variance = float(row["calibrated"] or row["variance"])
                        points.setdefault(float(row["value"]), []).append(variance)
                values = torch.tensor([points[value] for value in sorted(points)])
                values = values / values[:1]
                axes.plot(
                    sorted(points), values.mean(1), "o-", color=theme[colour], markersize=4,
                    label=name,
                )  # fmt: skip
            axes.set(xlabel=label, xticks=sorted(points), yscale="log", ylim=(0.8, 120))
            axes.set_yticks([1, 10, 100], ["1", "10", "100"])
            axes.tick_params(axis="x", labelsize=8)
        panels[0].set_ylabel("variance / familiar")
        handles, labels = panels[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9)
        return drawn

    return draw


def digits() -> Callable[[dict[str, str]], Figure]:
    """Two digits by the network that comes with the package: seen, expected, and how uncertain."""
    from spgru.data import MovingMNISTTest
    from spgru.training import load_model

    model = load_model("two-digits-conv").model.eval()
    frames = MovingMNISTTest().sequences(5, 6).float() / 255
    with torch.no_grad(), spgru.frozen(model):
        expected: Moments = model.predict(frames[:10])
    after = (0, 2, 4, 6, 9)
    rows: list[tuple[str, list[Tensor | None]]] = [
        ("seen", [frames[t, 0] for t in (1, 3, 5, 7, 9)] + [None] * 5),
        ("truth", [None] * 5 + [frames[10 + t, 0] for t in after]),
        ("expected", [None] * 5 + [expected.mean[t, 0] for t in after]),
        ("uncertainty", [None] * 5 + [expected.std[t, 0] for t in after]),
    ]
    times = [2, 4, 6, 8, 10, *(11 + t for t in after)]
    top = max(image.max().item() for image in rows[-1][1] if image is not None)

    def draw(theme: dict[str, str]) -> Figure:
        figure(theme, 1, 1)  # for its colours
        drawn = Figure(figsize=(7.4, 2.35), layout="constrained")
        layout: Any = drawn.get_layout_engine()
        layout.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
        # What was seen and what was to come share the first row.
        first = [a if a is not None else b for a, b in zip(rows[0][1], rows[1][1], strict=True)]
        shown = [("frame", first), ("expected", rows[2][1]), ("uncertainty", rows[3][1])]
        grid = drawn.subplots(3, 10)
        for (name, images), line in zip(shown, grid, strict=True):
            for image, axes, time in zip(images, line, times, strict=True):
                axes.set(xticks=[], yticks=[])
                if image is None:
                    axes.axis("off")
                    continue
                colours = "magma" if name == "uncertainty" else "gray"
                last = axes.imshow(
                    image, cmap=colours, vmin=0, vmax=top if colours == "magma" else 1
                )
                for spine in axes.spines.values():
                    spine.set(visible=True, color=theme["grid"], linewidth=0.6)
                if name == "frame":
                    axes.set_title(f"{time}", fontsize=8, pad=2)
        grid[0, 0].set_ylabel("truth", fontsize=9)
        for line, name in ((1, "expected"), (2, "uncertainty")):
            grid[line, 4].text(
                1.0, 0.5, f"{name}  ", transform=grid[line, 4].transAxes, ha="right", va="center",
                fontsize=9, in_layout=False,
            )  # fmt: skip
        drawn.text(0.25, 1.0, "seen, frame", ha="center", va="bottom", fontsize=9)
        drawn.text(0.75, 1.0, "to come", ha="center", va="bottom", fontsize=9)
        bar = drawn.colorbar(last, ax=grid[:, 9], fraction=0.6, aspect=30, pad=0.05)
        bar.set_label("standard deviation of a pixel", fontsize=8)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
        return drawn

    return draw


# -- the mathematics ----------------------------------------------------------------------------


def sigmoid() -> Callable[[dict[str, str]], Figure]:
    """Moments of the sigmoid of a Gaussian: closed form, as printed, and a million draws."""
    means, dots = torch.linspace(-6, 6, 241, dtype=torch.float64), torch.linspace(-6, 6, 13)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1_000_000, generator=generator, dtype=torch.float64)
    curves = {}
    for sd in (0.5, 2.0, 5.0):
        x = Moments(means, torch.full_like(means, sd**2))
        draws = torch.stack([torch.sigmoid(m + sd * noise) for m in dots.double()], 0)
        curves[sd] = (
            spgru.functional.sigmoid(x), spgru.functional.sigmoid(x, rule="paper"),
            draws.mean(1), draws.var(1),
        )  # fmt: skip

    def draw(theme: dict[str, str]) -> Figure:
        drawn, (left, right) = figure(theme, 9, 3.1, columns=2)
        for (sd, (ours, printed, mean, var)), colour in zip(
            curves.items(), ("ours", "third", "other"), strict=True
        ):
            for axes, line, dashed, points in (
                (left, ours.mean, printed.mean, mean), (right, ours.var, printed.var, var),
            ):  # fmt: skip
                axes.plot(means, line, color=theme[colour], linewidth=1.6, label=f"sd {sd:g}")
                axes.plot(means, dashed, color=theme[colour], linewidth=1.1, linestyle=":")
                axes.plot(dots, points, "o", color=theme["truth"], markersize=3)
        left.plot([], [], "o", color=theme["truth"], markersize=3, label="a million draws")
        left.plot([], [], ":", color=theme["truth"], linewidth=1.1, label="as printed in the paper")
        left.set(xlabel="mean of X", title="mean of sigmoid(X)")
        right.set(xlabel="mean of X", title="variance of sigmoid(X)")
        left.legend(fontsize=9)
        return drawn

    return draw


def by_step(rows: Sequence[dict[str, Any]], key: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, least and largest over the seeds at every step."""
    values = torch.tensor([row[key] for row in rows], dtype=torch.float64)
    return values.mean(0), values.min(0).values, values.max(0).values


def gru_over_time() -> Callable[[dict[str, str]], Figure]:
    """Variance of a random GRU's state over truth, at every step: ours and the printed rule."""
    found = results("variance_ratio")

    def draw(theme: dict[str, str]) -> Figure:
        drawn, (axes,) = figure(theme, 9, 2.9)
        for sd, style in ((0.02, "-"), (0.1, "--"), (0.3, ":")):
            rows = [r for r in found if r["kind"] == "GRU" and r["relative_std"] == sd]
            for key, colour in (("exact", "ours"), ("printed", "other")):
                mean, _, _ = by_step(rows, key)
                axes.plot(range(1, len(mean) + 1), mean, style, color=theme[colour], linewidth=1.6)
            axes.plot([], [], style, color=theme["truth"], label=f"sd of a weight {sd:g}")
        axes.axhline(1, color=theme["truth"], linewidth=0.8)
        axes.text(40.4, 0.7, "closed form", color=theme["ours"], va="center", fontsize=9)
        axes.text(40.4, 42, "as printed", color=theme["other"], va="center", fontsize=9)
        axes.set(
            yscale="log", xlabel="step", ylabel="variance / truth", xlim=(1, 45), ylim=(0.5, 3e3)
        )
        axes.legend(ncols=3, fontsize=9, loc="upper left")
        return drawn

    return draw


def response() -> Callable[[dict[str, str]], Figure]:
    """Closed form and response over truth where few inputs drive the network."""
    found = [r for r in results("respond") if r["relative_std"] == 0.1]

    def draw(theme: dict[str, str]) -> Figure:
        drawn, panels = figure(theme, 9, 2.9, columns=2)
        for axes, kind in zip(panels, ("GRU", "LSTM"), strict=True):
            rows = [r for r in found if r["kind"] == kind and "2 inputs" in r["means"]]
            for key, colour, label in (
                ("closed", "other", "closed form"), ("response", "ours", "response"),
            ):  # fmt: skip
                mean, low, high = by_step(rows, key)
                steps = range(1, len(mean) + 1)
                axes.fill_between(steps, low, high, color=theme[colour], alpha=0.2, linewidth=0)
                axes.plot(steps, mean, color=theme[colour], linewidth=1.6, label=label)
            axes.axhline(1, color=theme["truth"], linewidth=0.8)
            axes.set(xlabel="step", title=f"{kind}, 2 inputs", ylim=(0, 1.2))
        panels[0].set_ylabel("variance / truth")
        panels[0].legend(fontsize=9, loc="lower left")
        return drawn

    return draw


def calibration() -> Callable[[dict[str, str]], Figure]:
    """The controlled network at the size of the paper, before and after: one dot for a seed."""
    found = results("calibration_controlled_paper")
    kinds = list(found[0]["forms"]["plain"])

    def draw(theme: dict[str, str]) -> Figure:
        drawn, (axes,) = figure(theme, 9, 3.1)
        for name, colour in (("before", "other"), ("after", "ours")):
            for result in found:
                form = "plain" if name == "before" else result["search"]["best"]
                totals = [result["forms"][form][kind]["total"] for kind in kinds]
                label = name if result is found[0] else None
                axes.plot(totals, "o", color=theme[colour], markersize=5, alpha=0.8, label=label)
        axes.axhline(1, color=theme["truth"], linewidth=0.8)
        axes.set_xticks(
            range(len(kinds)), [kind.replace(" ", "\n", 1) for kind in kinds], fontsize=9
        )
        axes.set(ylabel="variance / truth", ylim=(0, 1.3))
        axes.legend(fontsize=9, loc="center right")
        return drawn

    return draw


def read_back() -> Callable[[dict[str, str]], Figure]:
    """Coverage of 90 % intervals by horizon, where forecasts are read back, mean of all series."""
    found = results("forecasts")

    def draw(theme: dict[str, str]) -> Figure:
        drawn, (axes,) = figure(theme, 9, 2.9)
        for key, colour, label in (
            ("closed", "other", "closed form"), ("response", "ours", "response"),
            ("drawn", "third", "200 drawn networks"),
        ):  # fmt: skip
            mean = torch.tensor([row[key]["coverage"] for row in found]).mean(0)
            axes.plot(range(1, len(mean) + 1), mean, color=theme[colour], label=label)
        axes.axhline(0.9, color=theme["truth"], linewidth=0.8)
        axes.set(xlabel="steps ahead", ylabel="share within 90 % intervals", ylim=(0.4, 1.02))
        axes.legend(ncols=3, fontsize=9, loc="lower left")
        return drawn

    return draw


PICTURES = (
    digits,
    forecast,
    off_the_path,
    sigmoid,
    gru_over_time,
    response,
    calibration,
    read_back,
)
PIXELS = {"digits"}
"""Drawn as PNG; all others as SVG."""


def main(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    known = {picture.__name__: picture for picture in PICTURES}
    if unknown := set(names) - set(known):
        raise SystemExit(f"no picture {sorted(unknown)}; there are {', '.join(known)}")
    IMAGES.mkdir(exist_ok=True)
    for name in names or known:
        draw = known[name]()
        for theme, colours in THEMES.items():
            path = IMAGES / f"{name}-{theme}.{'png' if name in PIXELS else 'svg'}"
            metadata = {"Software": None} if name in PIXELS else {"Date": None, "Creator": None}
            bounds = "tight" if name in PIXELS else None  # titles above the grid of frames
            draw(colours).savefig(path, dpi=150, metadata=metadata, bbox_inches=bounds)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
