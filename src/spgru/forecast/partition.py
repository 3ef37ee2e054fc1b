"""One Parquet file of series in, one of forecasts out, in bounded memory.

A file is read batch by batch, and some hundred series are forecast at a time. The result appears
under its name when it is whole: a process that dies leaves nothing that looks like a result, and
whoever does its work again writes the same numbers, since they depend on the file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from spgru.forecast.data import LONG
from spgru.forecast.files import load
from spgru.forecast.forecaster import Forecaster
from spgru.forecast.usual import MOST_BLOCKS
from spgru.runtime.storage import sync_folder

__all__ = ["Bad", "Done", "PartitionTask", "forecast_file", "leftovers", "parquet_modules"]

Bad = Literal["raise", "skip"]
_ROWS = 1 << 16
"""Rows of one read."""
_SERIES = 512
"""Series of one forecast, as many as the network takes at once."""
_NOTE = b"spgru"
"""Key of what a result's file says of itself."""


@dataclass(frozen=True)
class PartitionTask:
    """Everything a worker needs to know."""

    forecaster: str
    """folder"""
    stamp: str
    """of the weights, so that a worker notices others in the same folder"""
    source: str
    target: str
    quantiles: tuple[float, ...]
    bad: Bad
    device: str


@dataclass(frozen=True)
class Done:
    """What became of a file."""

    source: str
    names: npt.NDArray[np.uint64]
    """hashes of the names of its series, to find one that lies in two files"""
    refused: list[tuple[str, str]]
    """name and reason of every series without a forecast"""


def parquet_modules() -> tuple[Any, Any, Any]:
    """pandas, pyarrow and pyarrow.parquet."""
    try:
        import pandas
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Parquet files need {error.name}; install it with pip install 'spgru[scale]'"
        ) from error
    return pandas, pyarrow, pyarrow.parquet


def leftovers(folder: Path) -> list[Path]:
    """Unfinished files of processes that died."""
    return list(folder.glob(".*.partial"))


def forecast_file(task: PartitionTask) -> Done:
    """Forecast every series of a file, unless that has been done."""
    _, pyarrow, parquet = parquet_modules()
    target = Path(task.target)
    if target.exists():
        return _described(task)
    forecaster = _loaded(task.forecaster, task.stamp, task.device)
    refused: list[tuple[str, str]] = []
    partial = target.with_name(f".{target.name}.{os.getpid()}-{uuid4().hex[:8]}.partial")
    writer = None
    try:
        for chunk in _chunks(_series(task.source, _covariates(forecaster))):
            table = _forecast(forecaster, chunk, task, refused)
            if table is None:
                continue
            laid = pyarrow.Table.from_pandas(table, preserve_index=False)
            if writer is None:
                writer = parquet.ParquetWriter(partial, laid.schema)
            writer.write_table(laid.cast(writer.schema))
        if writer is None:
            # A file of its own all the same: it tells that the work is done.
            writer = parquet.ParquetWriter(partial, pyarrow.schema([("item", pyarrow.string())]))
        writer.add_key_value_metadata({_NOTE: json.dumps(refused).encode()})
        writer.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        if writer is not None:
            writer.close()
        partial.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
    return _described(task)


def _described(task: PartitionTask) -> Done:
    pandas, _, parquet = parquet_modules()
    file = parquet.ParquetFile(task.target)
    # One row in `horizon` names a series, the others repeat it.
    found = [np.empty(0, np.uint64)]
    for batch in file.iter_batches(_ROWS, columns=["item"]):
        names = np.asarray(batch.column(0).unique().to_pandas())
        found.append(pandas.util.hash_array(names))
    refused = [tuple(pair) for pair in json.loads(file.metadata.metadata[_NOTE])]
    return Done(task.source, np.unique(np.concatenate(found)), refused)


@lru_cache(maxsize=1)
def _loaded(folder: str, stamp: str, device: str) -> Forecaster:
    """Once in a process; of the series that it was fitted to, one tells the frequency."""
    return load(Forecaster, folder, device, most_series=1)


def _covariates(forecaster: Forecaster) -> list[str]:
    known = forecaster._fitted().covariates
    return [] if known is None else known.names


def _series(path: str, covariates: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Name and table (value, covariates; indexed by time) of every series of a file, in order.

    The value is the first column, whatever its name: a covariate may be named "value".
    """
    pandas, _, parquet = parquet_modules()
    file = parquet.ParquetFile(path)
    there = file.schema_arrow.names
    layout = next((names for names in LONG if set(names) <= set(there)), None)
    if layout is None:
        raise ValueError(
            f"{path} has the columns {', '.join(there)}; it needs "
            + "; or ".join(", ".join(names) for names in LONG)
        )
    missing = [name for name in covariates if name not in there]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}, a covariate of the forecaster")
    twice = [name for name in covariates if name in layout]
    if twice:
        raise ValueError(
            f"{path} holds its series in the columns {', '.join(layout)}, and {twice[0]!r} is a "
            "covariate of the forecaster, too; rename the columns of the series to "
            + ", or ".join(", ".join(names) for names in LONG if twice[0] not in names)
        )
    item, time, value = layout
    seen: set[Any] = set()
    held: list[Any] = []
    label: Any = None
    for batch in file.iter_batches(_ROWS, columns=[*layout, *covariates]):
        table = batch.to_pandas()
        names = table[item].to_numpy()
        if pandas.isna(names).any():
            raise ValueError(f"{path} has rows without a name in the column {item!r}; remove them")
        table = table.set_index(time)[[value, *covariates]]
        starts = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1), len(names)]
        for start, stop in pairwise(starts):
            if start == stop:
                continue
            if held and names[start] != label:
                yield label, pandas.concat(held)
                held = []
            if not held:
                label = names[start]
                if label in seen:
                    raise ValueError(
                        f"the rows of the series {label!r} are not together in {path}; sort the "
                        f"table by {item!r} and {time!r}"
                    )
                seen.add(label)
            held.append(table.iloc[start:stop])
    if held:
        yield label, pandas.concat(held)


def _chunks(series: Iterator[tuple[Any, Any]]) -> Iterator[dict[Any, Any]]:
    chunk: dict[Any, Any] = {}
    for name, table in series:
        chunk[name] = table
        if len(chunk) == _SERIES:
            yield chunk
            chunk = {}
    if chunk:
        yield chunk


def _forecast(
    forecaster: Forecaster,
    chunk: dict[Any, Any],
    task: PartitionTask,
    refused: list[tuple[str, str]],
) -> Any:
    """A table of forecasts; None if there is none."""
    pandas, _, _ = parquet_modules()
    try:
        return _table(forecaster, chunk, task.quantiles)
    except (TypeError, ValueError) as error:
        if task.bad == "raise":
            raise ValueError(
                f"{task.source}: {error}. With bad='skip' such series are left out and listed"
            ) from error
    # Which of them: one by one.
    found = []
    for name, table in chunk.items():
        try:
            found.append(_table(forecaster, {name: table}, task.quantiles))
        except (TypeError, ValueError) as error:
            refused.append((str(name), str(error)))
    return pandas.concat(found) if found else None


def _table(forecaster: Forecaster, chunk: dict[Any, Any], quantiles: Sequence[float]) -> Any:
    horizon, names = forecaster.settings.horizon, _covariates(forecaster)
    rows = MOST_BLOCKS * forecaster.context + (horizon if names else 0)
    short = {name: _end(table, rows) for name, table in chunk.items()}
    values = {name: table.iloc[:, 0] for name, table in short.items()}
    known = None
    if names:
        for name, future in values.items():
            if future.iloc[-horizon:].notna().any():
                raise ValueError(
                    f"the last {horizon} rows of the series {name!r} have values; with covariates "
                    "every series ends with the rows of the horizon, whose values are empty"
                )
        values = {name: y.iloc[:-horizon] for name, y in values.items()}
        known = {name: table[names] for name, table in short.items()}
    forecast = forecaster.predict(values, known, parts=False)
    table = forecast.to_frame(quantiles)
    if forecast.index is None:
        # Steps from the start of the whole series.
        cut = [len(whole) - len(short[name]) for name, whole in chunk.items()]
        table["time"] += np.repeat(cut, horizon)
    table.insert(1, "step", np.tile(np.arange(1, horizon + 1), len(chunk)))
    return table


def _end(table: Any, rows: int) -> Any:
    """What a forecast depends on; all of a table whose disorder is to be noticed."""
    ordered = table.index.is_monotonic_increasing and table.index.is_unique
    return table.iloc[-rows:] if ordered else table
