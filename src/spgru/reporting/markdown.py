"""Pieces of a report."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bullets", "count", "figure", "number", "table", "yes_no"]


def number(value: object, digits: int = 3) -> str:
    """A value for reading: that many significant digits, no exponent where it can be avoided."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return yes_no(value)
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        shown = f"{value:.{digits}g}"
        return f"{value:.0f}" if "e" in shown else shown
    return f"{value:.{digits - 1}e}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *[[number(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(file: str, caption: str) -> str:
    return f"![{caption}]({file})\n\n*{caption}*"


def yes_no(answer: bool) -> str:
    return "yes" if answer else "no"


def count(answers: Sequence[bool]) -> str:
    """ "yes (3 of 3 seeds)": yes only where it holds for all."""
    return f"{yes_no(all(answers))} ({sum(answers)} of {len(answers)} seeds)"


def bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
