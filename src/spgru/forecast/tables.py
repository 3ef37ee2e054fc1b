"""A column of a CSV file as a series."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["YEARS", "read_column", "table_rows"]

YEARS = range(1700, 2201)
"""Whole numbers that are years where times are wanted."""

_DATES = {
    4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S",
}  # fmt: skip
"""Dates written as one number, by how many digits it has."""
_SECONDS = (315532800, 4102444800)
"""Since 1970, from 1980 to 2100: other numbers of seconds are rather something else."""


def read_column(path: str | Path | TextIO, column: str, time: str | None = None) -> Any:
    """A pandas Series of one column, indexed by the times in another, if there is one.

    Empty cells are missing values, and in a table of one column so are empty lines, other than
    those at its end. What is no number, or no time, is refused by
    the name of its column and its row, as is a row with more or fewer fields than the header.

    Numbers are times if they are years, 202401, 20240131, 2024013123, 202401312359 or
    20240131235959, or seconds, milliseconds, microseconds or nanoseconds since 1970, then in UTC.
    Texts with different offsets from UTC become UTC. Dates such as 01/02/2024 are read if others of
    the column tell whether the day or the month comes first.

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
        header = _require_equal_rows(text, name)
        # Without index_col, pandas takes the first of too many fields as an index.
        table = pandas.read_csv(io.StringIO(_marked(text), newline=""), index_col=False)
    except (OSError, UnicodeDecodeError, csv.Error, pandas.errors.ParserError) as error:
        raise ValueError(f"{name} cannot be read as CSV ({error})") from error
    except pandas.errors.EmptyDataError as error:
        raise ValueError(f"{name} is empty; give a table with a header") from error
    for wanted in (column, *([] if time is None else [time])):
        if wanted not in table.columns:
            raise ValueError(f"{name} has no column {wanted!r}; it has {', '.join(table.columns)}")
        if header.count(wanted) > 1:
            raise ValueError(f"{name} has several columns named {wanted!r}; rename them")
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
    times = pandas.DatetimeIndex(_times(table[time], time, name))
    return pandas.Series(values.to_numpy(), times, name=column)


_UNCLEAR = {
    r"\d{1,2}[/.-]\d{1,2}[/.-]\d{1,2}(?!\d)": "a year of two digits",
    r"\d{1,2}:\d\d": "a time of day without a date",
}
"""What pandas reads as some day or other, by its form."""


def _times(cells: Any, column: str, name: str | Path) -> Any:
    """A column as times, without and with a zone."""
    import pandas

    if pandas.api.types.is_numeric_dtype(cells) and not pandas.api.types.is_bool_dtype(cells):
        _require_times(cells, cells.notna(), column, name)
        return _from_numbers(cells, column, name)
    cells = cells.astype("string").str.strip()
    for form, what in _UNCLEAR.items():
        if cells.str.match(form).any():
            cell = cells[cells.str.match(form)].iloc[0]
            raise ValueError(
                f"{column} of {name} holds {cell!r}, {what}; write times as 2024-01-31 or "
                "2024-01-31 10:00"
            )
    offsets = cells.str.extract(r"\d:\d\d.*?(Z|[+-]\d\d(?::?\d\d)?)$", expand=False)
    if offsets.notna().any():
        _require_times(cells, offsets.notna(), column, name, " with an offset from UTC as others")
    with warnings.catch_warnings():
        # pandas tells of cells without a form; they are named below.
        warnings.simplefilter("ignore")
        # One zone for all: pandas has no column of times with several.
        found, day_first = (
            pandas.to_datetime(cells, errors="coerce", utc=offsets.nunique() > 1, dayfirst=first)
            for first in (False, True)
        )
    if cells.str.match(r"\d{1,2}[/.-]\d{1,2}[/.-]\d{4}").all() and day_first.notna().all():
        if found.notna().all() and not found.equals(day_first):
            raise ValueError(
                f"{column} of {name} holds dates such as {cells.iloc[0]}, which may begin with the "
                "day or with the month; write them as 2024-01-31"
            )
        found = day_first
    _require_times(cells, found.notna(), column, name)
    return found


def _require_times(cells: Any, right: Any, column: str, name: str | Path, kind: str = "") -> None:
    import pandas

    if not right.all():
        row = int((~right).to_numpy().argmax())
        cell = cells.iloc[row]
        raise ValueError(
            f"{column} holds {'nothing' if pandas.isna(cell) else repr(cell)} in row {row + 1} of "
            f"{name}, which is no time{kind}"
        )


def _from_numbers(cells: Any, column: str, name: str | Path) -> Any:
    """Times of numbers whose meaning is beyond doubt."""
    import pandas

    if (cells == cells.round()).all() and cells.abs().max() < 2**63:
        whole = cells.astype("int64")
        texts = whole.astype("string")
        form = _DATES.get(len(texts.iloc[0]))
        if form is not None and texts.str[:4].astype(int).isin(YEARS).all():
            found = pandas.to_datetime(texts, format=form, errors="coerce")
            if found.notna().all() and texts.str.len().nunique() == 1:
                return found
        for unit, number in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
            if whole.between(*(number * bound for bound in _SECONDS)).all():
                return pandas.to_datetime(whole, unit=unit, utc=True)
    raise ValueError(
        f"{column} of {name} holds numbers such as {cells.iloc[0]}, which may be anything; write "
        "times as 2024-01-31 23:59, or leave the column out if its numbers only count the rows"
    )


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


def _require_equal_rows(text: str, name: str | Path) -> list[str]:
    """Every row has as many fields as the header, which is returned."""
    rows = table_rows(text)
    header = next(rows, [])
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"row {number} of {name} has {len(row)} fields and the header has {len(header)}; "
                "give every row a field for each column, empty where a value is missing, and put "
                "fields that hold commas into quotes"
            )
    return header
