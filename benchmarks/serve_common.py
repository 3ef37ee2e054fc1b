"""A server as a user starts it, for the scripts that measure it from another process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from spgru.runtime.provenance import provenance
from spgru.runtime.storage import write_whole

RESULTS = Path(__file__).parent / "results" / "serve"
ORIGIN = provenance(torch.device("cpu"))
"""At the start: files may change while a long measurement runs."""


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    command = [sys.executable, "-m", "spgru", "serve", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found is not None, "the server did not start"
        try:
            yield found[0], process.pid
        finally:
            process.terminate()


def scene(angle: float = 20.0, sample: int = 0, noise: float = 0.0) -> bytes:
    """A body for /api/scene."""
    digit = {"digit": 3, "sample": sample, "x": -3, "y": 7, "angle": angle, "speed": 0.05}
    return json.dumps({"networks": ["one-digit"], "digits": [digit], "noise": noise}).encode()


def keep(name: str, command: str, found: Mapping[str, Any]) -> None:
    """Write a result with where it comes from."""
    document = {"command": command, **ORIGIN, **found}
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS / name, (json.dumps(document, indent=2) + "\n").encode())
