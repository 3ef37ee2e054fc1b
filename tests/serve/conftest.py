"""A server in this process for the interface, and one of its own for browsers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from spgru.serve.app import make_app

MOVER: dict[str, Any] = {"digit": 3, "sample": 0, "x": -3, "y": 7, "angle": 20, "speed": 0.05}
SCENE: dict[str, Any] = {"networks": ["one-digit"], "digits": [MOVER]}
"""The path of training."""


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(), base_url="http://localhost") as found:
        yield found


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of a server as a user starts it."""
    command = [sys.executable, "-m", "spgru", "serve", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None, "the server did not start"
        yield found[0]
        server.terminate()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium that is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the PATH; apt install chromium")
    return found
