"""`forecast_dataset`: one forecaster, a folder of Parquet files, any number of series.

Every file is a task of its own. In one process they are done in turn; workers of Dask take one
after another, and what a worker that dies had in hand is given to another.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np

from spgru.calibration.progress import Bar
from spgru.checks import check_choice
from spgru.forecast.files import fingerprint
from spgru.forecast.forecast import DECILES
from spgru.forecast.partition import (
    Bad,
    Done,
    PartitionTask,
    forecast_file,
    leftovers,
    parquet_modules,
)
from spgru.runtime.lock import locked
from spgru.runtime.storage import write_whole

__all__ = ["DatasetReport", "forecast_dataset"]

_JOB = "_forecast.json"
"""What the results are of. Readers of Parquet folders skip names that begin so."""


@dataclass(frozen=True)
class DatasetReport:
    """What `forecast_dataset` did."""

    files: int
    series: int
    """with a forecast"""
    refused: dict[str, str]
    """by name: why a series has no forecast"""
    seconds: float

    def __str__(self) -> str:
        text = f"{self.series} series of {self.files} files in {self.seconds:.1f} s"
        for name, reason in list(self.refused.items())[:5]:
            text += f"\nno forecast of {name}: {reason}"
        more = len(self.refused) - 5
        return text + (f"\n... and of {more} more" if more > 0 else "")


def forecast_dataset(
    forecaster: str | PathLike[str],
    source: str | PathLike[str],
    output: str | PathLike[str],
    *,
    workers: int = 0,
    client: Any = None,
    quantiles: Sequence[float] = DECILES,
    bad: Bad = "raise",
    device: str = "auto",
    progress: bool = True,
) -> DatasetReport:
    """Forecast every series of a Parquet dataset, in bounded memory.

        forecaster.save("demand")
        forecast_dataset("demand", "series/", "forecasts/", workers=8)

    Files of `source` hold long tables: columns item, time, value (or unique_id, ds, y, or item_id,
    timestamp, target), all rows of a series together, in order of time, and in one file. Covariates
    are columns of the names that `fit` knew; every series then ends with the rows of the horizon,
    whose values are empty. Every file becomes one of the same name in `output`, with columns item,
    step (1, 2, ...), time, mean, std and the quantiles.

    A file is the unit of work, so workers need at least as many files as they are. Memory does not
    grow with the number of series, but for 8 bytes of each. If the whole job is stopped, the same
    call goes on with what is missing.

    Args:
        forecaster: folder that `Forecaster.save` wrote
        source: a Parquet file, or a folder with some at any depth
        output: folder for the results, new or of the same job
        workers: processes to start on this machine, by Dask; 0 works in this one, without Dask
        client: a `distributed.Client` to use instead, whose workers see the same folders
        quantiles: between 0 and 1
        bad: what to do with a series that cannot be forecast: `"raise"` an error, or `"skip"` it
            and say so in the report
        device: of every worker
        progress: show a bar, on a terminal and where rich is installed
    """
    start = time.perf_counter()
    parquet_modules()
    check_choice("bad", bad, get_args(Bad))
    if workers < 0:
        raise ValueError(f"workers must not be negative, got {workers}")
    probabilities = tuple(float(q) for q in quantiles)
    if any(not 0 < q < 1 for q in probabilities):
        raise ValueError(f"quantiles must lie between 0 and 1, got {probabilities}")
    base, folder = Path(source).resolve(), Path(output).resolve()
    if folder == base or base in folder.parents:
        raise ValueError(f"output {folder} lies in the source {base}; choose another")
    files = _files(base)
    stamp = fingerprint(forecaster)
    with locked(folder):
        _check_job(folder, {
            "forecaster": stamp, "quantiles": probabilities, "bad": bad,
            "files": [
                [str(_relative(file, base)), file.stat().st_size, file.stat().st_mtime_ns]
                for file in files
            ],
        })  # fmt: skip
        _clean(folder)
        make = partial(
            PartitionTask, str(Path(forecaster).resolve()), stamp,
            quantiles=probabilities, bad=bad, device=device,
        )  # fmt: skip
        tasks = []
        for file in files:
            target = folder / _relative(file, base)
            target.parent.mkdir(parents=True, exist_ok=True)
            tasks.append(make(str(file), str(target)))
        done = []
        with _working(workers, client) as work, Bar(progress, len(tasks), "forecast") as bar:
            for part in work(tasks):
                done.append(part)
                bar.advance()
        _clean(folder)
        series = _check_names(done)
    refused = {name: reason for part in done for name, reason in part.refused}
    return DatasetReport(len(files), series, refused, time.perf_counter() - start)


def _files(base: Path) -> list[Path]:
    if not base.exists():
        raise FileNotFoundError(f"{base} is not there; give a Parquet file or a folder with some")
    files = [base] if base.is_file() else sorted(base.rglob("*.parquet"))
    hidden = ("_", ".")
    files = [f for f in files if not any(p.startswith(hidden) for p in _relative(f, base).parts)]
    if not files:
        raise ValueError(f"{base} holds no file named *.parquet")
    return files


def _relative(file: Path, base: Path) -> Path:
    return Path(file.name) if file == base else file.relative_to(base)


def _check_job(folder: Path, job: dict[str, Any]) -> None:
    """Results of something else are neither mixed with these nor taken for them."""
    path, text = folder / _JOB, json.dumps(job, indent=1)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ValueError(
                f"{folder} holds forecasts of another job (other files, quantiles or weights); "
                "remove them or choose another output"
            )
        return
    if any(folder.rglob("*.parquet")):
        raise ValueError(f"{folder} holds Parquet files of something else; choose another output")
    write_whole(path, text.encode())


def _clean(folder: Path) -> None:
    for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        for unfinished in leftovers(inner):
            unfinished.unlink(missing_ok=True)


def _check_names(done: Sequence[Done]) -> int:
    """The number of series; refuses one that lies in two files, whose forecasts are both wrong."""
    together = np.concatenate([part.names for part in done])
    names, counts = np.unique(together, return_counts=True)
    if (counts > 1).any():
        twice = names[counts > 1]
        files = [part.source for part in done if np.isin(twice[0], part.names)]
        raise ValueError(
            f"{len(twice)} series lie in several files, one of them in {files[0]} and {files[1]}; "
            "write all rows of a series into one file, and remove these forecasts"
        )
    return len(names)


@contextmanager
def _working(workers: int, client: Any) -> Iterator[Any]:
    """A function from tasks to what became of them, in any order."""
    if client is None and workers == 0:
        yield lambda tasks: map(forecast_file, tasks)
        return
    distributed = _dask()
    if client is not None:
        yield lambda tasks: _by_dask(tasks, client)
        return
    # Dask has an HTTP server with or without a dashboard: at a port of its own, so that two jobs at
    # once do not meet.
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}, silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as own,
    ):  # fmt: skip
        yield lambda tasks: _by_dask(tasks, own)


def _dask() -> Any:
    try:
        return import_module("distributed")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "workers need Dask; install it with pip install 'spgru[scale]', or use workers=0"
        ) from error


def _by_dask(tasks: Sequence[PartitionTask], client: Any) -> Iterator[Done]:
    distributed = _dask()
    # Not pure: a result that is on the disk counts, not one that Dask remembers.
    futures = client.map(forecast_file, tasks, pure=False)
    sources = {future.key: task.source for future, task in zip(futures, tasks, strict=True)}
    try:
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise RuntimeError(
                    f"several workers died over {sources[future.key]}; it may take more memory "
                    "than a worker has: write smaller files or give workers more"
                ) from error
            future.release()
    finally:
        client.cancel(futures)
