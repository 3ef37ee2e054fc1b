"""`spgru serve` as a user starts and ends it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "spgru", "serve", "--no-open"]


def processes_of(group: int) -> list[str]:
    """Names of the processes of a group that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group, *_ = rest.split()
        if int(its_group) == group and state != "Z":
            found.append(folder.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc, which Linux has")
def test_all_addresses_are_answered_until_ctrl_c_ends_it_and_its_workers() -> None:
    options = ["--host", "0.0.0.0", "--port", "0", "--allow-host", "Lab.example"]
    with subprocess.Popen(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        found = re.fullmatch(r"spgru serves http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", line)
        assert found is not None
        assert "whoever can reach this machine" in server.stdout.readline()
        # 127.0.0.3 is this machine, too, and in no list.
        for host, status in (("127.0.0.3", 200), ("lab.example", 200), ("evil.example", 400)):
            connection = HTTPConnection("127.0.0.3", int(found[1]), timeout=10)
            connection.request("GET", "/api/about", headers={"Host": f"{host}:{found[1]}"})
            assert connection.getresponse().status == status
            connection.close()
        assert len(processes_of(server.pid)) > 1
        os.killpg(server.pid, signal.SIGINT)
        server.wait(30)
        assert "Traceback" not in server.stderr.read()
        assert server.returncode in (0, 130)
        until = time.monotonic() + 10
        while processes_of(server.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert not processes_of(server.pid)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in done.stderr
    assert "--port" in done.stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from spgru.serve.limits import Limits
    from spgru.serve.run import serve

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs uvicorn; .*'spgru\[web\]'"):
        serve("127.0.0.1", 0, Limits(), open_page=False)
