"""The application, and the options that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Device", "Digits", "MaxSeconds", "Official", "Overrides", "Show", "Source", "app"]

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
        help="Folder of a run, a checkpoint's JSON file, an exported file, or the name of a "
        "network that comes with the package; any other word lists those.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Digits = Annotated[
    Path | None, typer.Option("--mnist", metavar="DIR", help="Folder with your own MNIST files.")
]
Official = Annotated[
    Path | None,
    typer.Option(
        "--official",
        metavar="FILE",
        help="The official mnist_test_seq.npy instead of our own, for two-digits.",
    ),
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


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from.")
    ] = False,
) -> None:
    # Both are here for --help; `main` reads them itself.
    del version, traceback
