"""`spgru reproduce | bench`: what the paper found, and what uncertainty costs."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spgru.cli.app import Device, Digits, MaxSeconds, Official, Show, app

__all__ = ["bench", "reproduce"]


class StudyName(StrEnum):
    controlled = "controlled"
    maps = "maps"
    speed = "speed"
    two_digits = "two-digits"
    out_of_domain = "out-of-domain"
    deep_markov = "deep-markov"
    all = "all"


class ScaleName(StrEnum):
    small = "small"
    paper = "paper"


@app.command()
def reproduce(
    context: typer.Context,
    name: Annotated[StudyName, typer.Argument(metavar="NAME", help="Which study, or all.")],
    scale: Annotated[
        ScaleName, typer.Option(help="small: minutes on two cores; paper: on a GPU.")
    ] = ScaleName.small,
    output: Annotated[
        Path, typer.Option(help="Folder of all studies and of the networks they share.")
    ] = Path("outputs/reproduce"),
    device: Device = "auto",
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="Of a network; repeat for several. Default: 0, 1, 2.", min=0),
    ] = None,
    mnist: Digits = None,
    official: Official = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="Override a field of every training run, as steps=100, of one, as "
            "two_digits.steps=100, or of the scale, as scale.draws=10.",
        ),
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN=CHECKPOINT",
            help="Use this trained network, as two_digits=folder/, or a packaged one, by name.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Only this network of two-digits or out-of-domain, as two_digits_conv; repeat for "
            "several. Its report is OUTPUT/NAME-SCALE-RUN/report.md.",
        ),
    ] = None,
    max_seconds: MaxSeconds = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Only write the report again, from results.json; with several --only that were "
            "measured one at a time, one report of them all.",
        ),
    ] = False,
    show: Annotated[Show, typer.Option(help="How to report progress.")] = Show.auto,
) -> None:
    """Reproduce a study of the paper: train, measure, and write a report with figures.

    controlled: variance off the trained path; maps: SP-GRU beside MC-LSTM; speed; two-digits: the
    published table; out-of-domain: three digits to a model of two; deep-markov.

    Each leaves OUTPUT/NAME-SCALE/report.md. Networks are trained once, in OUTPUT/models, and shared
    between studies; stopped by --max-seconds or a signal, the same command continues.
    """
    from spgru import studies
    from spgru.studies.command import make_study_config

    config = make_study_config(
        scale.value,
        output=output,
        device=device,
        seeds=seeds,
        mnist=mnist,
        official=official,
        overrides=overrides or [],
        use=use or [],
        only=only or [],
    )
    names = list(studies.STUDIES) if name is StudyName.all else [name.value]
    if report:
        written = studies.rewrite_reports(names, config)
    else:
        try:
            written = studies.reproduce(
                names,
                config,
                max_seconds=max_seconds,
                show=show.value,
                command=shlex.join(["spgru", *context.obj]),
            )
        except studies.UnfinishedError as unfinished:
            print(unfinished)
            signal = unfinished.stopped.signal
            raise typer.Exit(128 + signal if signal else 0) from None
    for path, findings in written:
        for sentence in findings:
            print(f"  {sentence}")
        print(f"wrote {path}")


class Preset(StrEnum):
    issue = "issue"
    growth = "growth"
    all = "all"
    none = "none"


class BenchDtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


class BenchBackend(StrEnum):
    reference = "reference"
    triton = "triton"
    compiled = "compiled"


class BenchCell(StrEnum):
    gru = "GRU"
    lstm = "LSTM"
    rnn = "RNN"


@app.command()
def bench(
    context: typer.Context,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="issue: the shapes that have bars on this device; growth: T, B and H varied. "
            "Default: all, or none with --shape or --quick."
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="B,T,I,H", help="Sizes of your own; repeat for several."),
    ] = None,
    dtypes: Annotated[
        list[BenchDtype] | None,
        typer.Option("--dtype", help="Repeat for both. Default: what the bars ask for."),
    ] = None,
    cells: Annotated[
        list[BenchCell] | None, typer.Option("--cell", help="Repeat for several. Default: all.")
    ] = None,
    backends: Annotated[
        list[BenchBackend] | None,
        typer.Option("--backend", help="Of our layers; repeat for several. Default: all."),
    ] = None,
    device: Device = "auto",
    threads: Annotated[int, typer.Option(help="Of a CPU.", min=1)] = 2,
    tf32: Annotated[
        bool, typer.Option("--tf32/--no-tf32", help="Whether a GPU multiplies float32 in TF32.")
    ] = True,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Whether other libraries take part.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few samples, by default of one small shape.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("outputs/bench"),
) -> None:
    """Measure what uncertainty costs, in time and memory, beside torch.nn, sampling and others.

    Every contender is compared with float64 first; one that fails is listed as wrong, without a
    time. Writes bench.csv, bench.json, bench.md and figures; ratios and bars are printed last.
    Interrupted with Ctrl-C, it reports the cases that are done.

    Peers: pip install 'spgru[bench]'
    """
    from spgru.bench import measure, summary, write
    from spgru.bench.options import make_bench_config

    config = make_bench_config(
        preset=None if preset is None else preset.value,
        shapes=shapes or [],
        dtypes=None if dtypes is None else [dtype.value for dtype in dtypes],
        cells=None if cells is None else [cell.value for cell in cells],
        backends=None if backends is None else [backend.value for backend in backends],
        device=device,
        threads=threads,
        tf32=tf32,
        peers=peers,
        quick=quick,
    )
    document = measure(config, shlex.join(["spgru", *context.obj]))
    for path in write(document, output):
        print(f"wrote {path}")
    print(summary(document))
