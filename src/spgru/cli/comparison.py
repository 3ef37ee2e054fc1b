"""`spgru compare`: our forecasts beside those of others."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from spgru.cli.app import app

__all__ = ["compare"]


@app.command()
def compare(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the files of m4_hourly, exchange_rate and etth, which are not "
            "included: m4_hourly_train.csv.gz and m4_hourly_test.csv.gz (Hourly-train.csv and "
            "Hourly-test.csv of github.com/Mcompetitions/M4-methods), exchange_rate.txt.gz "
            "(github.com/laiguokun/multivariate-time-series-data), ETTh1.csv.gz and ETTh2.csv.gz "
            "(github.com/zhouhaoyi/ETDataset), each compressed by gzip.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            help="Repeat for several. Default: el_nino, co2, sunspots and macro, which come with "
            "statsmodels, and with --data also m4_hourly, exchange_rate and etth.",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="As the table names it; repeat for several. Default: all."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Of the training of a network.", min=1)] = 200,
    hidden_size: Annotated[int, typer.Option(help="Of the recurrent layer.", min=1)] = 32,
    series: Annotated[
        int | None, typer.Option(help="Of a task, at most, spread over it.", min=1)
    ] = None,
    members: Annotated[int, typer.Option(help="Of the deep ensemble.", min=2)] = 5,
    draws: Annotated[int, typer.Option(help="Of dropout masks.", min=2)] = 50,
    samples: Annotated[int, typer.Option(help="Paths of DeepAR.", min=2)] = 100,
    threads: Annotated[int, typer.Option(help="Of the CPU.", min=1)] = 1,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("outputs/compare"),
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there, too.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Only write the report again, from compare.json.")
    ] = False,
) -> None:
    """Compare forecasts: ours, MC dropout, an ensemble, DeepAR, Laplace, AutoETS and others.

    The same data, size and steps for all, several seeds; measures WQL, CRPS, MASE, coverage and
    width of the 80 % interval, times and memory. Writes compare.json and compare.md; interrupted,
    the same command continues. Methods whose package is missing are left out.

    Packaged series and peers: pip install 'spgru[compare]'
    """
    import json

    from spgru.compare import measure, summary, write
    from spgru.compare.options import known_rows, make_compare_config

    path = output / "compare.json"
    if report:
        document = json.loads(path.read_text())
    else:
        config = make_compare_config(
            data, tasks or [], methods or [], seeds, steps, hidden_size, series, members, draws,
            samples, threads,
        )  # fmt: skip
        document = measure(
            config,
            shlex.join(["spgru", *context.obj]),
            known=known_rows(path, config),
            keep=lambda found: write(found, output),
        )
    for written in write(document, output, page):
        print(f"wrote {written}")
    print(summary(document))
