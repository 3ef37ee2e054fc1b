"""A column of a CSV file as a series."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, TextIO

__all__ = ["read_column"]


def read_column(path: str | Path | TextIO, column: str, time: str | None = None) -> Any:
    """A pandas Series of one column, indexed by the times in another, if there is one.

    Empty cells are missing values. What is no number, or no time, is refused by the name of its
    column and its row, as is a row with more or fewer fields than the header.

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
        table = pandas.read_csv(io.StringIO(text, newline=""), index_col=False)
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


def _require_equal_rows(text: str, name: str | Path) -> None:
    """Every row has as many fields as the header; lines without anything do not count."""
    rows = (
        row
        for row in csv.reader(io.StringIO(text, newline=""))
        if "".join(row).strip() or len(row) > 1
    )
    header = next(rows, [])
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"row {number} of {name} has {len(row)} fields and the header has {len(header)}; "
                "give every row a field for each column, empty where a value is missing, and put "
                "fields that hold commas into quotes"
            )
