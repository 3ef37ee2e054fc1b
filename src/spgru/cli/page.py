"""`spgru serve`: the page, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from spgru.cli.app import app

__all__ = ["serve"]


@app.command()
def serve(
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; others can reach all but the default. 0.0.0.0: all that "
            "this machine has."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name under which it may be asked; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 for any that is free.", min=0, max=65535)] = 8765,
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    workers: Annotated[
        int, typer.Option(help="Predictions at once; forecasts run one at a time besides.", min=1)
    ] = 2,
) -> None:
    """A local page: steer moving digits and watch the uncertainty, or forecast a CSV table.

    It answers this machine only, loads nothing from outside and keeps nothing.
    """
    from spgru.serve.limits import Limits
    from spgru.serve.run import serve as run_server

    run_server(host, port, Limits(quick=workers), open_page, allow_host or ())
