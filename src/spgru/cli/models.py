"""`spgru train | calibrate | evaluate | predict | export`: from a configuration to predictions."""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from spgru.cli.app import Device, Digits, MaxSeconds, Official, Overrides, Show, Source, app

__all__ = ["calibrate", "evaluate", "export", "predict", "train"]


class Sequences(StrEnum):
    auto = "auto"
    two_digits = "two-digits"
    controlled = "controlled"


class Precision(StrEnum):
    float32 = "float32"
    float16 = "float16"
    compact = "compact"


_Written = Annotated[
    Precision,
    typer.Option(help="Of what is written; compact: float16, and variances in 8 bits."),
]


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
    train_config = load_config(config, changes)
    result = run_training(train_config, resume=resume, max_seconds=max_seconds, show=show.value)
    if os.environ.get("RANK", "0") == "0":
        where = f"step {result.step} of {train_config.steps} in {result.folder}"
        if result.stopped == "finished":
            print(f"finished at {where}")
        else:
            print(f"{result.stopped} at {where}; continue with --resume")
    if result.signal:
        raise typer.Exit(128 + result.signal)


@app.command()
def calibrate(
    checkpoint: Source,
    output: Annotated[Path, typer.Argument(help="A file ending in .safetensors.")],
    sequences: Annotated[
        int, typer.Option(help="Of the kind trained on; a quarter chooses the form.", min=4)
    ] = 32,
    draws: Annotated[int, typer.Option(help="Networks drawn for the truth.", min=2)] = 200,
    steps: Annotated[int, typer.Option(help="Of the fit of gains.", min=1)] = 300,
    seed: Annotated[int, typer.Option(help="Of sequences and draws.")] = 0,
    form: Annotated[
        str,
        typer.Option(
            help="One form by its name in the report, as 'gains, scale per step'; gains or scale "
            "for some of them; auto for all: the best on sequences held out is taken."
        ),
    ] = "auto",
    keep_mean: Annotated[
        bool,
        typer.Option("--keep-mean", help="Leave the mean as it is; a prediction takes two passes."),
    ] = False,
    mnist: Digits = None,
    device: Device = "auto",
    precision: _Written = Precision.float32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an old file.")] = False,
) -> None:
    """Fit the variance to that of drawn networks, once; writes weights that carry the fit.

    The sequences are of the kind that the network was trained on, of training's digits. What is
    written gives its calibrated variance wherever it is loaded; spgru.uncalibrate takes it out.
    """
    from spgru.calibration.forms import FormName
    from spgru.training.calibration import calibrate_file

    report = calibrate_file(
        checkpoint,
        output,
        sequences=sequences,
        draws=draws,
        steps=steps,
        seed=seed,
        form=cast("FormName", form),
        keep_mean=keep_mean,
        directory=mnist,
        device=device,
        precision=precision.value,
        overwrite=overwrite,
    )
    print(report)
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


@app.command()
def evaluate(
    context: typer.Context,
    checkpoint: Source,
    data: Annotated[
        Sequences, typer.Option(help="Which test sequences; auto: of the kind trained on.")
    ] = Sequences.auto,
    sequences: Annotated[
        int | None, typer.Option(help="How many; all 10000, or 100 of each controlled set.", min=1)
    ] = None,
    official: Official = None,
    mnist: Digits = None,
    batch_size: Annotated[int, typer.Option(help="Sequences at a time.", min=1)] = 100,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option(help="Also write the scores as JSON.")] = None,
) -> None:
    """Score a trained model: cross entropy in nats per frame, errors, similarity, variance.

    Squared and absolute error and variance are sums over the pixels of a frame. Structural
    similarity is given as published tables have it, and with the range that frames have, 1. Behind
    ± stand standard errors over the sequences. Two digits come frame by frame, too, and beside
    published scores. The variance of a calibrated model is shown before calibration, too.

    two-digits is the test set of 10,000 sequences; controlled are unseen digits on the path of the
    controlled study, with angle, speed and noise (on what is seen) as trained and beyond.
    """
    from spgru.calibration import is_calibrated
    from spgru.calibration.progress import Bar
    from spgru.cli import scores
    from spgru.nn.weight import is_spread
    from spgru.runtime.device import choose_device
    from spgru.runtime.provenance import provenance
    from spgru.runtime.storage import require_folder, write_whole
    from spgru.training import evaluation, load_model

    if output is not None:
        require_folder(output.parent)
    loaded = load_model(checkpoint)
    where = choose_device(device)
    model = loaded.model.to(where)
    if data is Sequences.auto and loaded.config.data.path == "controlled":
        data = Sequences.controlled
    elif data is Sequences.auto:
        data = Sequences.two_digits
    columns = scores.Columns(is_calibrated(model))
    rows: list[dict[str, Any]] = []
    sets = evaluation.evaluation_sets(data.value, sequences, batch_size, where, official, mnist)
    count = math.ceil((sequences or evaluation.SEQUENCES[data.value]) / batch_size)
    for name, batches in sets:
        with Bar(True, count, name) as bar:
            found = evaluation.score(model, bar.over(batches))
        if not rows:
            print(columns.header)
        print(columns.line(name, found))
        rows.append({"set": name, **asdict(found)})
        if data is Sequences.two_digits:
            print(columns.by_frame(found))
            if mnist is None and loaded.config.model.kind != "autoencoder":
                means = (p.numel() for n, p in model.named_parameters() if not is_spread(n))
                print(f"\n{scores.beside_published(found, sum(means))}")
    if output is not None:
        document = {
            "checkpoint": str(checkpoint),
            "step": loaded.step,
            "calibrated": is_calibrated(model),
            "command": shlex.join(["spgru", *context.obj]),
            **provenance(where),
            "scores": scores.without_nan(rows),
        }
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
    from spgru.calibration import is_calibrated
    from spgru.models import VideoModel
    from spgru.runtime.device import choose_device
    from spgru.training import load_model
    from spgru.training.inference import predict_file

    loaded = load_model(checkpoint)
    mean, var = predict_file(
        loaded,
        source,
        output,
        steps=steps,
        batch_size=batch_size,
        device=choose_device(device),
        overwrite=overwrite,
    )
    kind = ""
    if isinstance(loaded.model, VideoModel):
        is_there = is_calibrated(loaded.model)
        kind = " (calibrated)" if is_there else " (not calibrated, see spgru calibrate)"
    print(f"wrote {mean} and {var}{kind}")


@app.command()
def export(
    checkpoint: Source,
    output: Annotated[Path, typer.Argument(help="A file ending in .safetensors.")],
    precision: _Written = Precision.float32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an old file.")] = False,
) -> None:
    """Write the weights alone, for sharing; load them with spgru.training.load_exported."""
    from spgru.training import export as write_export

    path = write_export(checkpoint, output, precision.value, overwrite)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
