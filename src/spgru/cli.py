"""The command line: `spgru <verb>`. A verb reads its options and calls the library.

To add a verb, write a function with `@app.command()`; import what it needs inside, so that no verb
waits for what another one uses, and raise `ValueError` or an error of ours for whatever the user
can put right: it becomes one sentence on standard error and the exit status 1.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import typer
except ModuleNotFoundError:
    raise SystemExit(
        "spgru: error: the command line needs typer; install it with pip install 'spgru[cli]'"
    ) from None

__all__ = ["app", "main"]

app = typer.Typer(
    name="spgru",
    help="Recurrent networks that know what they do not know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Source = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Folder of a run, a checkpoint's JSON file, or an exported file.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Digits = Annotated[
    Path | None, typer.Option("--mnist", metavar="DIR", help="Folder with your own MNIST files.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="Override a field, as model.hidden_size=64."
    ),
]
MaxSeconds = Annotated[
    float | None, typer.Option(help="Checkpoint and stop training after this time.", min=0)
]


class Show(StrEnum):
    auto = "auto"
    bar = "bar"
    lines = "lines"
    none = "none"


class Sequences(StrEnum):
    auto = "auto"
    two_digits = "two-digits"
    controlled = "controlled"


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


@app.callback()
def _options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from.")
    ] = False,
) -> None:
    # `main` looks for it itself, since it is where errors end.
    del traceback


@app.command()
def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML file, see src/spgru/studies/configs/.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the output folder, if any.")
    ] = False,
    overrides: Overrides = None,
    output: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the optimiser.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, data and all draws.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bfloat16.")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Log for TensorBoard too.")
    ] = None,
    mnist: Digits = None,
    max_seconds: MaxSeconds = None,
    show: Annotated[Show, typer.Option(help="How to report progress.")] = Show.auto,
) -> None:
    """Train a model.

    The configuration sets model, data, objective, optimiser and schedule; config.json in the output
    folder lists every field with its value, and --set changes any of them.

    The exit status is 0 when the run is finished or its time is up, 130 after Ctrl-C and 143 after
    SIGTERM (in all of these cases a checkpoint was written), and 1 after an error.

    On several GPUs: torchrun --nproc-per-node=4 --max-restarts=3 -m spgru train CONFIG
    """
    from spgru.training import load_config
    from spgru.training import train as run_training
    from spgru.training.config import parse_override

    options = {
        "output": output,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
        "device": device,
        "precision": precision,
        "tensorboard": tensorboard,
        "data.directory": None if mnist is None else str(mnist),
    }
    changes = {name: value for name, value in options.items() if value is not None}
    changes |= dict(parse_override(text) for text in overrides or ())
    settings = load_config(config, changes)
    result = run_training(settings, resume=resume, max_seconds=max_seconds, show=show.value)
    if os.environ.get("RANK", "0") == "0":
        where = f"step {result.step} of {settings.steps} in {result.folder}"
        if result.stopped == "finished":
            print(f"finished at {where}")
        else:
            print(f"{result.stopped} at {where}; continue with --resume")
    if result.signal:
        raise typer.Exit(128 + result.signal)


@app.command()
def evaluate(
    checkpoint: Source,
    data: Annotated[
        Sequences, typer.Option(help="Which test sequences; auto: of the kind trained on.")
    ] = Sequences.auto,
    sequences: Annotated[
        int | None, typer.Option(help="How many; all 10000, or 100 of each controlled set.", min=1)
    ] = None,
    official: Annotated[
        Path | None, typer.Option(help="The official mnist_test_seq.npy instead of our own.")
    ] = None,
    mnist: Digits = None,
    batch_size: Annotated[int, typer.Option(help="Sequences at a time.", min=1)] = 100,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option(help="Also write the scores as JSON.")] = None,
) -> None:
    """Score a trained model: cross entropy in nats per frame, squared error, variance.

    two-digits is the test set of 10,000 sequences; controlled are unseen digits on the path of the
    controlled study, with angle, speed and noise as trained and beyond.
    """
    from spgru.training import evaluation, load_model
    from spgru.training.distributed import choose_device
    from spgru.training.storage import write_whole

    loaded = load_model(checkpoint)
    where = choose_device(device)
    model = loaded.model.to(where)
    if data is Sequences.auto and loaded.config.data.path == "controlled":
        data = Sequences.controlled
    elif data is Sequences.auto:
        data = Sequences.two_digits
    rows: list[dict[str, Any]] = []
    sets = evaluation.evaluation_sets(data.value, sequences, batch_size, where, official, mnist)
    for name, batches in sets:
        found = evaluation.score(model, batches)
        if not rows:
            print(f"{'sequences':24s} cross entropy  squared error   variance")
        print(
            f"{name:24s} {found.cross_entropy:13.2f} {found.squared_error:14.2f} "
            f"{found.variance:10.3f}"
        )
        rows.append({"set": name, **asdict(found)})
    if output is not None:
        document = {"checkpoint": str(checkpoint), "step": loaded.step, "scores": rows}
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, (json.dumps(document, indent=2) + "\n").encode())


@app.command()
def predict(
    checkpoint: Source,
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            help="A .npy file: (T, height, width) or (T, B, height, width), uint8 or in [0, 1].",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Beginning of the two files' names; default: the input's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Frames to predict; default: as many as given.", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences at a time.", min=1)] = 64,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace old files.")] = False,
) -> None:
    """Predict what follows your own sequences: writes NAME_mean.npy and NAME_var.npy."""
    from spgru.training import load_model
    from spgru.training.distributed import choose_device
    from spgru.training.inference import predict_file

    mean, var = predict_file(
        load_model(checkpoint),
        source,
        output,
        steps=steps,
        batch_size=batch_size,
        device=choose_device(device),
        overwrite=overwrite,
    )
    print(f"wrote {mean} and {var}")


@app.command()
def export(
    checkpoint: Source,
    output: Annotated[Path, typer.Argument(help="A file ending in .safetensors.")],
    half: Annotated[bool, typer.Option("--half", help="float16: half the size.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an old file.")] = False,
) -> None:
    """Write the weights alone, for sharing; load them with spgru.training.load_exported."""
    from spgru.training import export as write_export

    path = write_export(checkpoint, output, "float16" if half else "float32", overwrite)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


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
            metavar="RUN=CHECKPOINT", help="Use this trained network, as two_digits=weights/."
        ),
    ] = None,
    max_seconds: MaxSeconds = None,
    report: Annotated[
        bool, typer.Option("--report", help="Only write the report again, from results.json.")
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
    from spgru.studies.command import make_settings
    from spgru.studies.study import findings

    settings = make_settings(
        scale.value,
        output=output,
        device=device,
        seeds=seeds,
        mnist=mnist,
        overrides=overrides or [],
        use=use or [],
    )
    names = list(studies.STUDIES) if name is StudyName.all else [name.value]
    if report:
        written = studies.rebuild(names, settings)
    else:
        try:
            written = studies.reproduce(
                names,
                settings,
                max_seconds=max_seconds,
                show=show.value,
                command=shlex.join(["spgru", *context.obj]),
            )
        except studies.UnfinishedError as unfinished:
            print(unfinished)
            signal = unfinished.stopped.signal
            raise typer.Exit(128 + signal if signal else 0) from None
    for path in written:
        for line in findings(path):
            print(f"  {line}")
        print(f"wrote {path}")


class Preset(StrEnum):
    issue = "issue"
    growth = "growth"
    all = "all"
    none = "none"


class BenchDtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"


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

    Peers: pip install 'spgru[bench]'
    """
    from spgru.bench import measure, summary, write
    from spgru.bench.options import make_settings

    settings = make_settings(
        preset=None if preset is None else preset.value,
        shapes=shapes or [],
        dtypes=None if dtypes is None else [dtype.value for dtype in dtypes],
        cells=None if cells is None else [cell.value for cell in cells],
        device=device,
        threads=threads,
        tf32=tf32,
        peers=peers,
        quick=quick,
    )
    document = measure(settings, shlex.join(["spgru", *context.obj]))
    for path in write(document, output):
        print(f"wrote {path}")
    print(summary(document))


# -- from errors to sentences ---------------------------------------------------------------------


def _is_expected(error: Exception) -> bool:
    """Whether the user can put it right; anything else is a fault of ours and shows its origin."""
    ours = type(error).__module__.startswith("spgru.") or type(error).__name__ == "OutOfMemoryError"
    return ours or isinstance(error, ValueError | TypeError | OSError | ModuleNotFoundError)


def _fail(message: str, status: int) -> NoReturn:
    print(f"spgru: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"spgru: warning: {message}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 for an error, 2 for a misuse of options."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            status = app(
                args=given or ["--help"], prog_name="spgru", standalone_mode=False, obj=given
            )
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except Exception as error:
            if "--traceback" in given:
                raise
            if hasattr(error, "format_message"):  # an unknown option, a missing argument
                _fail(error.format_message(), 2)
            if not _is_expected(error):
                raise
            _fail(str(error) or type(error).__name__, 1)
    raise SystemExit(status if isinstance(status, int) else 0)
