"""A column of a CSV file as a series."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

__all__ = ["read_column"]


def read_column(path: str | Path | TextIO, column: str, time: str | None = None) -> Any:
    """A pandas Series of one column, indexed by the times in another, if there is one.

    Empty cells are missing values. What is no number, or no time, is refused by the name of its
    column and its row.

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
        table = pandas.read_csv(path)
    except (OSError, UnicodeDecodeError, pandas.errors.ParserError) as error:
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
