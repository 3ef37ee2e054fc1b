"""A bar on a terminal, while something long runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["Bar"]

T = TypeVar("T")


class Bar:
    """A bar on standard error; nothing where there is no terminal or no rich."""

    def __init__(self, shown: bool, total: int, what: str = "calibrate") -> None:
        self._bar: Any = None
        self._total = total
        if shown:
            try:
                from rich import progress
                from rich.console import Console
            except ModuleNotFoundError:
                return
            console = Console(stderr=True)
            if console.is_terminal:
                columns = (
                    progress.TextColumn("{task.description}"),
                    progress.BarColumn(bar_width=20),
                    progress.MofNCompleteColumn(),
                    progress.TimeRemainingColumn(),
                )
                self._bar = progress.Progress(*columns, console=console, transient=True)
                self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)

    def over(self, values: Iterable[T]) -> Iterator[T]:
        """The same values; the bar advances when one has been used."""
        for value in values:
            yield value
            self.advance()
