"""`spgru forecast`: from a table of numbers to a forecast with intervals."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from spgru.cli.app import Device, app

__all__ = ["forecast", "forecast_dataset"]


class Mode(StrEnum):
    auto = "auto"
    direct = "direct"
    fed_back = "fed-back"


@app.command()
def forecast(
    table: Annotated[Path, typer.Argument(metavar="CSV", help="A table with a header, in time.")],
    column: Annotated[str, typer.Option(help="What to forecast.")],
    horizon: Annotated[int, typer.Option(help="Steps to forecast.", min=1)],
    time: Annotated[
        str | None, typer.Option(help="Column of dates or times; none: rows are equally far apart.")
    ] = None,
    season: Annotated[
        int | None, typer.Option(help="Steps of a season; default: usual for the times.", min=1)
    ] = None,
    context: Annotated[int | None, typer.Option(help="Values to read.", min=1)] = None,
    mode: Annotated[Mode, typer.Option(help="All steps at once, or one by one.")] = Mode.auto,
    positive: Annotated[bool, typer.Option("--positive", help="Values are not negative.")] = False,
    level: Annotated[float, typer.Option(help="Of the interval, between 0 and 1.")] = 0.8,
    steps: Annotated[int, typer.Option(help="Of the training, at most.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Of weights and windows.")] = 0,
    device: Device = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Beginning of the files' names; default: CSV_forecast.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace old files.")] = False,
) -> None:
    """Forecast a column of a CSV file: writes NAME.csv (quantiles) and NAME.png.

    The training sees all of the column but its last windows, on which the interval is made to hold.
    """
    from spgru.forecast import Forecaster
    from spgru.forecast.tables import read_column
    from spgru.runtime.distributed import is_first_process
    from spgru.runtime.storage import require_folder

    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    prefix = table.with_name(f"{table.stem}_forecast") if output is None else output
    numbers, picture = (prefix.with_name(f"{prefix.name}.{end}") for end in ("csv", "png"))
    for path in (numbers, picture):
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; remove it, choose another output, or overwrite it")
    require_folder(numbers.parent)
    series = read_column(table, column, time)
    forecaster = Forecaster(
        horizon, context, season, mode=mode.value, positive=positive, steps=steps, level=level,
        seed=seed, device=device,
    )  # fmt: skip
    forecaster.fit(series)
    if not is_first_process():
        return
    found = forecaster.predict()
    print(forecaster.report)
    tail = (1 - level) / 2
    deciles = [round(q / 10, 1) for q in range(1, 10)]
    quantiles = sorted({*deciles, round(tail, 6), round(1 - tail, 6)})
    found.to_frame(quantiles).to_csv(numbers, index=False)
    found.plot(levels=sorted({0.5, level})).savefig(picture, dpi=150)
    print(f"wrote {numbers} and {picture}")


@app.command()
def forecast_dataset(
    forecaster: Annotated[Path, typer.Argument(help="Folder that Forecaster.save wrote.")],
    source: Annotated[Path, typer.Argument(help="A Parquet file, or a folder with some.")],
    output: Annotated[Path, typer.Argument(help="Folder for the forecasts.")],
    workers: Annotated[int, typer.Option(help="Processes, by Dask; 0: this one alone.", min=0)] = 0,
    skip: Annotated[
        bool, typer.Option("--skip", help="Leave out series that cannot be forecast.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Forecast all series of a Parquet dataset, in bounded memory.

    Files hold columns item, time, value; the rows of a series are together and in one file. The
    same command goes on where it was stopped.
    """
    from spgru.forecast import forecast_dataset as run

    bad: Literal["raise", "skip"] = "skip" if skip else "raise"
    print(run(forecaster, source, output, workers=workers, bad=bad, device=device))
