"""How a run reports its progress: a bar or lines, a file of metrics, TensorBoard."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from spgru.checks import check_choice
from spgru.runtime.storage import write_whole
from spgru.training.checkpoint import CheckpointWarning
from spgru.training.config import TrainConfig

__all__ = ["METRICS", "Progress", "Show", "parse_metrics", "read_metrics"]

METRICS = "metrics.jsonl"
_SHOWN = {
    "total": "loss",
    "nll": "nll",
    "kl": "kl",
    "lr": "lr",
    "sequences_per_second": "sequences/s",
}
Show = Literal["auto", "bar", "lines", "none"]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Logged rows, oldest first; an incomplete last line, left by a kill, is ignored."""
    path = folder / METRICS
    return parse_metrics(path.read_text(encoding="utf-8")) if path.exists() else []


def parse_metrics(text: str) -> list[dict[str, Any]]:
    """The rows of a log's text, likewise."""
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


class Progress:
    """Reports of the first process. A full disk costs the log, and never ends the run.

    Args:
        folder: of the run
        start: step at which it starts; rows of later steps are removed: that run was rolled back
        config: of the run
        show: a `"bar"`, `"lines"`, `"none"`, or `"auto"` for a bar on a terminal, else lines
    """

    def __init__(self, folder: Path, start: int, config: TrainConfig, show: Show) -> None:
        check_choice("show", show, get_args(Show))
        self.folder, self.steps, self.batch_size = folder, config.steps, config.batch_size
        self._bar = None if show in ("lines", "none") else _make_bar(show, start, self.steps)
        self._lines = show == "lines" or (show == "auto" and self._bar is None)
        self._warned = False
        self._writer = _tensorboard_writer(folder, start) if config.tensorboard else None
        rows = [row for row in read_metrics(folder) if row["step"] <= start]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_whole(folder / METRICS, text.encode())
        self._last = start, time.perf_counter()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if self._writer:
            self._writer.close()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Values after `step` steps; the throughput since the last call is added."""
        now = time.perf_counter()
        before, then = self._last
        rate = (step - before) * self.batch_size / max(now - then, 1e-9)
        self._last = step, now
        row = {"step": step, **values, "sequences_per_second": round(rate, 2)}
        shown = "  ".join(
            f"{label} {_short(row[name])}" for name, label in _SHOWN.items() if name in row
        )
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=step, shown=shown)
        elif self._lines:
            print(f"step {step} of {self.steps}  {shown}", file=sys.stderr, flush=True)
        self.record(row)

    def record(self, row: Mapping[str, Any]) -> None:
        """Append to the file of metrics and to TensorBoard."""
        with self.tolerating("the log"):
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                # A correlation may be NaN, which JSON cannot hold; only NaN differs from itself.
                plain = {name: value if value == value else None for name, value in row.items()}
                file.write(json.dumps(plain) + "\n")
            if self._writer:
                for name, value in row.items():
                    if name != "step":
                        self._writer.add_scalar(name, value, row["step"])

    def picture(self, path: Path, step: int) -> None:
        """Show a picture in TensorBoard too."""
        if self._writer:
            from matplotlib.image import imread

            self._writer.add_image("prediction", imread(path)[..., :3], step, dataformats="HWC")

    def exclude(self, seconds: float) -> None:
        """Leave time spent on something else out of the throughput."""
        self._last = self._last[0], self._last[1] + seconds

    def tolerating(self, what: str) -> _Tolerating:
        return _Tolerating(self, what)


class _Tolerating:
    """A context in which an OSError becomes a warning, the first time, and training continues."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress, self._what = progress, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, OSError):
            return False
        if not self._progress._warned:
            self._progress._warned = True
            warnings.warn(
                f"{self._what} cannot be written ({error.strerror or error}); training goes on",
                CheckpointWarning,
                stacklevel=2,
            )
        return True


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _make_bar(show: Show, start: int, steps: int) -> Any:
    """A bar on standard error; None with "auto" where there is no terminal or no rich."""
    try:
        from rich import progress
        from rich.console import Console
    except ModuleNotFoundError as error:
        if show == "auto":
            return None
        raise ModuleNotFoundError(
            "a progress bar needs rich; install it with pip install 'spgru[cli]', "
            "or show lines instead"
        ) from error
    console = Console(stderr=True)
    if show == "auto" and not console.is_terminal:
        return None
    bar = progress.Progress(
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[shown]}"),
        console=console,
    )
    bar.add_task("training", total=steps, completed=start, shown="")
    return bar


def _tensorboard_writer(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "logging for TensorBoard needs it; install it with pip install 'spgru[tensorboard]', "
            "or set tensorboard to false"
        ) from error
    # Later steps were logged by a run that was rolled back to `start`.
    return SummaryWriter(folder / "tensorboard", purge_step=start + 1)
