"""What a worker process does: it answers one request after another until it is ended."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from spgru.serve.answers import ANSWERS
from spgru.serve.errors import RefusedError
from spgru.serve.forecasting import forecast
from spgru.serve.prediction import Asked, load, predict
from spgru.serve.table import columns_of

__all__ = ["answer_requests"]


def _prediction(asked: Asked, form: str) -> Any:
    return ANSWERS[form](predict(asked), asked)


TASKS: dict[str, Callable[..., Any]] = {
    "columns": columns_of,
    "forecast": forecast,
    "predict": _prediction,
}


def answer_requests(connection: Connection, threads: int, networks: tuple[str, ...] = ()) -> None:
    """Receive (task, arguments), send ("found", value), ("refused", ...) or ("failed", text).

    Args:
        threads: of torch
        networks: to load before the first request
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us
    torch.set_num_threads(threads)
    for name in networks:
        load(name)
    while True:
        try:
            task, arguments = connection.recv()
        except (EOFError, OSError):
            return  # the server is gone
        try:
            answer: tuple[str, Any] = ("found", TASKS[task](*arguments))
        except RefusedError as error:
            answer = ("refused", (str(error), error.status))
        except Exception:
            answer = ("failed", traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return
