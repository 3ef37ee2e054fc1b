"""A worker whose tasks are to wait, to die, or to fail."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection


def answer(connection: Connection) -> None:
    while True:
        try:
            task, arguments = connection.recv()
        except EOFError:
            return
        if task == "die":
            os._exit(1)
        if task == "sleep":
            time.sleep(*arguments)
        connection.send(("failed", "text") if task == "fail" else ("found", os.getpid()))
