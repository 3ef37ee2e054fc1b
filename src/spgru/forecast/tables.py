"""A column of a CSV file as a series."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["YEARS", "read_column", "table_rows"]

YEARS = range(1000, 10_000)
"""Whole numbers that are years where times are wanted."""


def read_column(path: str | Path | TextIO, column: str, time: str | None = None) -> Any:
    """A pandas Series of one column, indexed by the times in another, if there is one.

    Empty cells are missing values, and in a table of one column so are empty lines, other than
    those at its end. Times may be years as numbers. What is no number, or no time, is refused by
    the name of its column and its row, as is a row with more or fewer fields than the header.

    Args:
        path: of the file, or an open one
    """
    name = path if isinstance(path, str | Path) else "the table"
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading a table needs pandas; install it with pip install 'spgru[forecast]'"
        ) from error
    try:
        text = _text(path)
        _require_equal_rows(text, name)
        # Without index_col, pandas takes the first of too many fields as an index.
        table = pandas.read_csv(io.StringIO(_marked(text), newline=""), index_col=False)
    except (OSError, UnicodeDecodeError, csv.Error, pandas.errors.ParserError) as error:
        raise ValueError(f"{name} cannot be read as CSV ({error})") from error
    except pandas.errors.EmptyDataError as error:
        raise ValueError(f"{name} is empty; give a table with a header") from error
    for wanted in (column, *([] if time is None else [time])):
        if wanted not in table.columns:
            raise ValueError(f"{name} has no column {wanted!r}; it has {', '.join(table.columns)}")
    values = pandas.to_numeric(table[column], errors="coerce")
    wrong = values.isna() & table[column].notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ValueError(
            f"{column} holds {table[column].iloc[row]!r} in row {row + 1} of {name}; give numbers, "
            "and leave cells empty where a value is missing"
        )
    if time is None:
        return pandas.Series(values.to_numpy(), name=column)
    if pandas.api.types.is_numeric_dtype(table[time]):
        # pandas would take them as nanoseconds.
        _require_years(table[time], name)
        times = pandas.to_datetime(table[time].astype(int).astype(str), format="%Y")
    else:
        times = pandas.to_datetime(table[time], errors="coerce")
    if times.isna().any():
        row = int(times.isna().to_numpy().argmax())
        raise ValueError(
            f"{time} holds {table[time].iloc[row]!r} in row {row + 1} of {name}, which is no time"
        )
    return pandas.Series(values.to_numpy(), pandas.DatetimeIndex(times), name=column)


def _text(path: str | Path | TextIO) -> str:
    """What a file holds, unpacked if its name ends like that of a compressed one."""
    from pandas.io.common import get_handle

    if not isinstance(path, str | Path):
        return path.read().removeprefix("\ufeff")
    with get_handle(path, "r", encoding="utf-8", compression="infer") as opened:
        text: str = opened.handle.read()
    return text.removeprefix("\ufeff")


def table_rows(text: str) -> Iterator[list[str]]:
    """Rows of a CSV table, the header first, without lines that hold nothing.

    Below the header of a single column such a line is a missing value, if a row follows.
    """
    found = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    header = next((row for row in found if not _is_blank(row)), None)
    if header is None:
        return
    yield header
    gap = 0
    for row in found:
        # Quotes around nothing are a value that somebody left out, at the end, too.
        if not _is_blank(row) or (len(header) == 1 and row == [""]):
            yield from [[""]] * gap
            yield row
            gap = 0
        elif len(header) == 1:
            gap += 1


def _is_blank(row: list[str]) -> bool:
    return len(row) < 2 and not "".join(row).strip()


def _marked(text: str) -> str:
    """The table, with quotes where a single column has a gap: pandas drops empty lines."""
    rows = table_rows(text)
    header = next(rows, [])
    if len(header) != 1:
        return text
    marked = io.StringIO(newline="")
    csv.writer(marked).writerows([header, *rows])
    return marked.getvalue()


def _require_years(times: Any, name: str | Path) -> None:
    wrong = ~times.isin(YEARS)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ValueError(
            f"{times.name} holds {times.iloc[row]:g} in row {row + 1} of {name}, which is neither "
            "a time nor a year; write times such as 2026-01-31 or 2026-01-31 09:00"
        )


def _require_equal_rows(text: str, name: str | Path) -> None:
    """Every row has as many fields as the header."""
    rows = table_rows(text)
    header = next(rows, [])
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"row {number} of {name} has {len(row)} fields and the header has {len(header)}; "
                "give every row a field for each column, empty where a value is missing, and put "
                "fields that hold commas into quotes"
            )
