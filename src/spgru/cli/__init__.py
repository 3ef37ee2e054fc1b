"""The command line: `spgru <verb>`. A verb reads its options and calls the library.

To add a verb, write a function with `@app.command()` in one of the modules beside this; import what
it needs inside, so that no verb waits for what another one uses, and raise `ValueError` or an error
of ours for whatever the user can put right: it becomes one sentence on standard error and the exit
status 1.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NoReturn

from spgru import __version__

__all__ = ["main"]

_USER_ERRORS = (ValueError, TypeError, OSError, ModuleNotFoundError, MemoryError)


def _is_expected(error: Exception) -> bool:
    """Whether the user can correct it; anything else is a bug and keeps its traceback."""
    ours = type(error).__module__.startswith("spgru.") or type(error).__name__ == "OutOfMemoryError"
    return ours or isinstance(error, _USER_ERRORS)


def _fail(message: str, status: int) -> NoReturn:
    print(f"spgru: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"spgru: warning: {message}", file=sys.stderr)


def _load_app() -> Any:
    """The application with all its verbs; a function, since it needs packages of an extra."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        _fail(f"the command line needs {error.name}; install it with pip install 'spgru[cli]'", 1)
    from spgru.cli import comparison, forecasts, models, research  # noqa: F401
    from spgru.cli.app import app

    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 for an error, 2 for a misuse of options."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in takewhile(lambda word: word.startswith("-"), given):
        # Before the application is loaded: a version is wanted most where a package is missing.
        print(f"spgru {__version__}")
        raise SystemExit(0)
    app = _load_app()
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
