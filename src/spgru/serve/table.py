"""An uploaded table: the request for a forecast, and the columns to choose from. Checked."""

from __future__ import annotations

import csv
import itertools
import math
from dataclasses import dataclass

from spgru.forecast.tables import YEARS, table_rows
from spgru.serve.errors import RefusedError
from spgru.serve.fields import Fields
from spgru.serve.limits import Limits

__all__ = ["Column", "ForecastAsked", "columns_of", "read_forecast", "read_table"]

_LOOKED_AT = 200
"""Rows that tell what a column holds."""


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    """`"number"`, `"year"` (numbers that may be meant as times), `"time"` or `"text"`"""


@dataclass(frozen=True)
class ForecastAsked:
    csv: str
    column: str
    time: str | None
    horizon: int
    level: float
    season: int | None
    positive: bool
    thorough: bool


def read_table(fields: Fields, limits: Limits) -> str:
    """The text of a table, with a header and not too many rows."""
    text = fields.text("csv", limits.table_bytes)
    if not text.strip():
        raise RefusedError("the table is empty; paste rows with a header, such as: day,visitors")
    rows = max(text.count("\n"), text.count("\r"))
    if rows > limits.table_rows + 1:
        raise RefusedError(
            f"the table has about {rows} rows, and {limits.table_rows} are the limit here; use "
            "spgru forecast on the command line, or fewer rows"
        )
    columns = len(_rows(text, 1)[0])
    if columns > limits.table_columns:
        raise RefusedError(
            f"the table has {columns} columns, and {limits.table_columns} are the limit here; "
            "leave out those that are not needed"
        )
    return text


def _rows(text: str, most: int | None = None) -> list[list[str]]:
    """The header and the rows as a forecast reads them; all, or the first so many."""
    try:
        return list(itertools.islice(table_rows(text), most)) or [[]]
    except csv.Error as error:
        raise RefusedError(f"the table cannot be read as CSV ({error})") from error


def read_forecast(fields: Fields, limits: Limits) -> ForecastAsked:
    """Takes all fields of a request for a forecast."""
    text = read_table(fields, limits)
    time = fields.take("time", None)
    if time is not None and not isinstance(time, str):
        raise RefusedError("time must be the name of a column, or null")
    season = fields.take("season", None)
    if season is not None:
        season = Fields({"season": season}).whole("season", 1, limits.table_rows)
    return ForecastAsked(
        text,
        fields.text("column", 1000),
        time,
        fields.whole("horizon", 1, limits.horizon),
        fields.number("level", 0.5, 0.99, 0.8),
        season,
        fields.flag("positive", False),
        fields.flag("thorough", False),
    )


def columns_of(text: str) -> tuple[list[Column], int]:
    """Columns with what they seem to hold, and the number of rows."""
    rows = _rows(text)
    if len(rows) < 2:
        raise RefusedError(
            "the table has no rows below its header; paste at least a few dozen values"
        )
    names = rows[0]
    _require_commas(names, rows[1])
    if len(set(names)) != len(names):
        raise RefusedError("two columns have the same name; give each column its own")
    looked_at = rows[1 : 1 + _LOOKED_AT]
    found = []
    for k, name in enumerate(names):
        cells = [row[k].strip() for row in looked_at if k < len(row) and row[k].strip()]
        found.append(Column(name, _kind(cells)))
    return found, len(rows) - 1


def _require_commas(names: list[str], first: list[str]) -> None:
    """A table of one column whose header and first row have another mark is separated by that."""
    if len(names) > 1:
        return
    for mark, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if mark in names[0] and mark in first[0]:
            raise RefusedError(
                f"the table is separated by {called}; separate its columns by commas, and write "
                "decimals with a point"
            )


def _kind(cells: list[str]) -> str:
    if not cells:
        return "text"
    if all(_is_number(cell) for cell in cells):
        return "year" if _are_years(cells) else "number"
    # The forecast itself reads times by pandas, and says so where it cannot.
    digits = all(sum(map(str.isdigit, cell)) >= 4 for cell in cells)
    return (
        "time" if digits and all(any(mark in cell for mark in "-/:.") for cell in cells) else "text"
    )


def _are_years(cells: list[str]) -> bool:
    """Whole numbers that rise by one and the same."""
    if not all(cell.isascii() and cell.isdigit() and int(cell) in YEARS for cell in cells):
        return False
    steps = {int(after) - int(before) for before, after in itertools.pairwise(cells)}
    return len(steps) == 1 and min(steps) > 0


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
