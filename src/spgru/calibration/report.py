"""What `calibrate` found, as numbers and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from spgru.reporting.plain import for_json

__all__ = ["CalibrationReport", "OutcomeReport", "by_step", "spread_of"]

_MOST_ROWS = 10


def _plain(report: Any, **more: Tensor) -> dict[str, Any]:
    """The fields of a report, and more, with lists for tensors."""
    values = {field.name: getattr(report, field.name) for field in fields(report)} | more
    return {name: for_json(value) for name, value in values.items()}


@dataclass(frozen=True)
class CalibrationReport:
    """The result of `spgru.calibrate`; its figures are of the sequences held out of the fit."""

    chosen: str
    """the form that was applied, "plain" if none was better"""
    scores: dict[str, float]
    """by form, lower is better; see `spgru.calibration`"""
    true_var: Tensor
    """(T,) mean over held-out sequences and features"""
    plain_var: Tensor
    """(T,) before"""
    var: Tensor
    """(T,) after"""
    plain_spread: float
    """standard deviation of log(closed / true) over all entries, before"""
    spread: float
    """after"""
    mean_shift: float
    """by how much the mean has moved, root of squares over true variance: gains change it, too"""
    draws: int
    sequences: tuple[int, int]
    """in the fit, and held out"""
    copies: bool
    """whether changed copies of the sequences took part, in the fit and in the choice"""
    outputs: int = 1
    """Moments that the module returns, of which the first is what all of this is about"""

    @property
    def plain_ratio(self) -> Tensor:
        """(T,) closed over true variance, before."""
        return self.plain_var / self.true_var

    @property
    def ratio(self) -> Tensor:
        """(T,) closed over true variance, after."""
        return self.var / self.true_var

    @property
    def relative_error(self) -> float:
        """Standard error of the variance of a Gaussian from so many draws, over that variance.

        The sequences held out have it in common with those of the fit, so the figures do not show
        it; a total whose parts do not go together is known better.
        """
        return math.sqrt(2 / self.draws)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return _plain(self, ratio=self.ratio, plain_ratio=self.plain_ratio)

    def __str__(self) -> str:
        fitted, held = self.sequences
        copies = " and as many changed copies" * self.copies
        lines = [
            f"Calibrated to {self.draws} drawn networks on {fitted} sequences{copies}: "
            f"{self.chosen}{_first_of(self.outputs)}",
            f"(so many know a variance to {100 * self.relative_error:.2g} %, here and in the fit)",
            f"Of {held} sequences held out, closed/true variance:",
            "step        before    after",
        ]
        rows = {f"{t + 1}": t for t in _shown_steps(len(self.ratio))}
        for name, t in rows.items():
            before, after = self.plain_ratio[t].item(), self.ratio[t].item()
            lines.append(f"{name:>4s}  {before:12.3g} {after:8.3g}")
        total = self.true_var.sum()
        before, after = ((v.sum() / total).item() for v in (self.plain_var, self.var))
        lines.append(f" all  {before:12.3g} {after:8.3g}")
        lines.append(
            f"spread of the log ratio {self.plain_spread:.3g} before, {self.spread:.3g} after"
        )
        if self.mean_shift:
            lines.append(
                f"the mean has moved by {self.mean_shift:.2g} standard deviations; keep_mean=True "
                "leaves it as it was, for a second pass"
            )
        listed = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        lines.append(f"held-out score (lower is better): {listed}")
        return "\n".join(lines)


@dataclass(frozen=True)
class OutcomeReport:
    """The result of `spgru.calibrate` with outcomes; figures of the sequences held out."""

    chosen: str
    """the form that was applied, "plain" if none was better"""
    scores: dict[str, float]
    """mean of -log likelihood by form, in nats"""
    plain_squares: Tensor
    """(T,) mean of z^2, squared error over variance, before; 1 is right"""
    squares: Tensor
    """(T,) after"""
    plain_coverage: float
    """share of outcomes within the central interval of `level`, before"""
    coverage: float
    """after"""
    level: float
    missing: int
    """outcomes that were not observed"""
    sequences: int
    """held out"""
    outputs: int = 1
    """Moments that the module returns, of which the first is what all of this is about"""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return _plain(self)

    def __str__(self) -> str:
        lines = [
            f"Calibrated to outcomes: {self.chosen}{_first_of(self.outputs)}",
            f"Of {self.sequences} sequences held out, squared error over variance:",
            "step        before    after",
        ]
        for t in _shown_steps(len(self.squares)):
            before, after = self.plain_squares[t].item(), self.squares[t].item()
            lines.append(f"{t + 1:4d}  {before:12.3g} {after:8.3g}")
        lines.append(
            f"{100 * self.level:g} % intervals hold {100 * self.plain_coverage:.1f} % before, "
            f"{100 * self.coverage:.1f} % after"
        )
        listed = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        lines.append(f"held-out -log likelihood in nats: {listed}")
        if self.missing:
            lines.append(f"{self.missing} outcomes were not observed (NaN) and left out")
        return "\n".join(lines)


def _first_of(outputs: int) -> str:
    return f", of the first of {outputs} outputs" * (outputs > 1)


def spread_of(true: Tensor, var: Tensor) -> float:
    """Standard deviation of log(var / true) over the entries that are random in both."""
    is_random = (true > 0) & (var > 0)
    logs = (var.double()[is_random] / true[is_random]).log()
    return logs.std().item() if logs.numel() > 1 else 0.0


def _shown_steps(count: int) -> list[int]:
    if count <= _MOST_ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)})


def by_step(values: Tensor, time: int | None) -> Tensor:
    """(T,) mean over everything but time, or (1,) without time; NaN is left out"""
    rows = values.unsqueeze(0) if time is None else values.movedim(time, 0)
    return rows.double().flatten(1).nanmean(1).cpu()
