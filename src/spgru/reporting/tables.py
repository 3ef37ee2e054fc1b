"""Rows of plain values as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

__all__ = ["Row", "to_csv"]

Row = dict[str, Any]
"""Names and plain values: a line of a table."""


def to_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A header and a line for each row; None is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
