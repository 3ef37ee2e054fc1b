"""Rows of plain values as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["to_csv"]


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A header and a line for each row; None is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
