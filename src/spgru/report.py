"""What `audit` found, as numbers, table and figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spgru.reporting.plain import for_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LEVELS", "LayerReport", "Report"]

LEVELS = (0.5, 0.9, 0.95)
"""Of the intervals whose coverage a report has."""
_MOST_ROWS = 10


@dataclass(frozen=True)
class LayerReport:
    """One layer; every tensor has one entry per time step, (T,), averaged over batch and units."""

    closed_var: Tensor
    """closed-form variance, calibrated if the module is"""
    true_var: Tensor
    """variance over networks that keep their weights over time"""
    true_var_error: Tensor
    """standard error of true_var"""
    redrawn_var: Tensor | None
    """variance with weights redrawn at every step"""
    redrawn_var_error: Tensor | None
    mean_error: Tensor
    """root mean square of (closed-form mean - true mean) / true standard deviation"""
    coverage: Tensor
    """(levels, T): share of draws within the closed form's central interval, see LEVELS"""
    plain_var: Tensor | None = None
    """closed-form variance without the calibration, None where there is none"""

    @property
    def ratio(self) -> Tensor:
        """Closed-form over true variance; 1 is right, above 1 cautious, below 1 too sure."""
        return self.closed_var / self.true_var

    @property
    def plain_ratio(self) -> Tensor | None:
        """`ratio` before calibration."""
        return None if self.plain_var is None else self.plain_var / self.true_var

    @property
    def ratio_interval(self) -> tuple[Tensor, Tensor]:
        """95 % confidence interval of `ratio`."""
        return _ratio_interval(self.closed_var, self.true_var, self.true_var_error)

    @property
    def redrawn_ratio(self) -> Tensor | None:
        """Closed-form variance over that with redrawn weights: the cost of ignoring covariance."""
        return None if self.redrawn_var is None else self.closed_var / self.redrawn_var

    @property
    def redrawn_ratio_interval(self) -> tuple[Tensor, Tensor] | None:
        """95 % confidence interval of `redrawn_ratio`."""
        if self.redrawn_var is None or self.redrawn_var_error is None:
            return None
        return _ratio_interval(self.closed_var, self.redrawn_var, self.redrawn_var_error)

    @property
    def sharing_ratio(self) -> Tensor | None:
        """Variance with redrawn over that with kept weights: the cost of ignoring the sharing."""
        return None if self.redrawn_var is None else self.redrawn_var / self.true_var

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {
            "ratio": self.ratio,
            "redrawn_ratio": self.redrawn_ratio,
            "plain_ratio": self.plain_ratio,
        }
        return {name: for_json(value) for name, value in fields.items()}


def _ratio_interval(closed: Tensor, truth: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    half = 1.96 * error
    upper = torch.where(truth > half, closed / (truth - half), torch.inf)
    return closed / (truth + half), upper


@dataclass(frozen=True)
class Report:
    """The result of `spgru.audit`: print it, plot it, or read `layers[name].ratio`."""

    draws: int
    layers: dict[str, LayerReport]
    output: LayerReport | None = None
    """of the module's own output; None for a layer, or where it returns no Moments"""

    @property
    def _rows(self) -> dict[str, LayerReport]:
        return self.layers if self.output is None else {**self.layers, "output": self.output}

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        layers = {name: layer.to_dict() for name, layer in self.layers.items()}
        output = None if self.output is None else self.output.to_dict()
        return {"draws": self.draws, "levels": list(LEVELS), "output": output, "layers": layers}

    def __str__(self) -> str:
        width = max(len("output"), *(len(name) for name in self.layers))
        calibrated = any(layer.plain_var is not None for layer in self._rows.values())
        before = "  before calibration" if calibrated else ""
        lines = [
            f"Closed-form variance against {self.draws} drawn networks",
            f"{'layer':{width}}  step  closed/truth [95 % interval]{before}  closed/redrawn"
            f"  redrawn/truth  mean error"
            f"  coverage {'/'.join(f'{level * 100:.0f}' for level in LEVELS)} %",
        ]
        for name, layer in self._rows.items():
            low, high = layer.ratio_interval
            for t in _shown_steps(len(layer.ratio)):
                ratio = f"{_number(layer.ratio, t)} [{_number(low, t)}, {_number(high, t)}]"
                plain = f"  {_number(layer.plain_ratio, t):>18s}" if calibrated else ""
                coverage = " / ".join(f"{100 * value:.0f}" for value in layer.coverage[:, t])
                redrawn, sharing = _number(layer.redrawn_ratio, t), _number(layer.sharing_ratio, t)
                lines.append(
                    f"{name:{width}}  {t + 1:4d}  {ratio:>28s}{plain}  {redrawn:>14s}"
                    f"  {sharing:>13s}  {layer.mean_error[t].item():10.3f}  {coverage}"
                )
        lines.append(
            "closed/redrawn: lost to covariance between units; redrawn/truth: lost to weights "
            f"shared over time.\nmean error is in true standard deviations, {self.draws**-0.5:.3f} "
            "of which is sampling noise."
        )
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Ratio and coverage along time, one row per layer and one for the output."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plotting needs matplotlib: pip install 'spgru[plot]'") from error
        figure = Figure(figsize=(10, 3 * len(self._rows)), layout="constrained")
        axes = figure.subplots(len(self._rows), 2, squeeze=False, sharex="row")
        for (name, layer), (left, right) in zip(self._rows.items(), axes, strict=True):
            steps = range(1, len(layer.ratio) + 1)
            left.axhline(1, color="black", linewidth=0.8)
            left.plot(steps, layer.ratio, label="closed form / truth")
            left.fill_between(steps, *layer.ratio_interval, alpha=0.25)
            if layer.plain_ratio is not None:
                left.plot(steps, layer.plain_ratio, ":", label="before calibration")
            if layer.redrawn_ratio is not None:
                left.plot(
                    steps, layer.redrawn_ratio, "--", label="closed form / truth, weights redrawn"
                )
            left.set(title=f"{name}: variance ratio", xlabel="step")
            left.legend(fontsize="small")
            for level, coverage in zip(LEVELS, layer.coverage, strict=True):
                (line,) = right.plot(steps, coverage, label=f"{level * 100:.0f} % interval")
                right.axhline(level, color=line.get_color(), linewidth=0.8, linestyle=":")
            right.set(title=f"{name}: coverage (dotted: nominal)", xlabel="step", ylim=(0, 1.02))
            right.legend(fontsize="small")
        return figure


def _shown_steps(count: int) -> list[int]:
    """All steps of a short sequence; first, last and evenly spaced ones of a long sequence."""
    if count <= _MOST_ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)})


def _number(values: Tensor | None, t: int) -> str:
    return "-" if values is None or values[t].isnan() else f"{values[t].item():.3g}"
