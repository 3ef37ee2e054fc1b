"""Ten times more requests than `spgru serve` allows at once, for minutes, from a second process.

    python benchmarks/serve_load.py [--seconds 600] [--write]

Clients ask again as soon as they are answered: most for predictions, one in ten each for an upload
that is no .npy file and for a body that is too large. Counted are answers by status; a connection
that is reset or an answer that is not JSON counts as broken. The memory of the server and all its
processes is read from /proc. `--write` keeps the result in benchmarks/results/serve/load.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from serve_common import keep, scene, server

from spgru.serve.limits import Limits

TIMES = 10
LIMITS = Limits()
AT_ONCE = LIMITS.quick + LIMITS.waiting
"""Computed or waiting."""


def memory(root: int) -> float:
    """Megabytes of a process and all below it; pages that several share count for each a part."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(folder.name))
    total, left = 0, [root]
    while left:
        process = left.pop()
        left += children.get(process, [])
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


class Client(threading.Thread):
    """Asks until the time is up."""

    def __init__(self, number: int, netloc: str, until: float) -> None:
        super().__init__(daemon=True)
        self.number, self.netloc, self.until = number, netloc, until
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        k = self.number
        connection = http.client.HTTPConnection(self.netloc, timeout=60)
        while time.monotonic() < self.until:
            k += 1
            path, kind, body = "/api/scene", "application/json", scene(angle=k % 90, sample=k % 800)
            if k % 10 == 0:
                path, kind, body = "/api/sequence", "application/octet-stream", b"\x93NUMPY" * 99
            elif k % 10 == 5:
                body = b" " * (LIMITS.scene_bytes + 1)
            try:
                connection.request("POST", path, body, {"Content-Type": kind})
                answer = connection.getresponse()
                found = json.loads(answer.read())
                assert answer.status == 200 or found["error"]
                self.counts[str(answer.status)] += 1
            except (OSError, ValueError, AssertionError, http.client.HTTPException) as error:
                self.counts[f"broken: {type(error).__name__}"] += 1
                connection.close()
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with server() as (address, process):
        until = time.monotonic() + options.seconds
        clients = [Client(7 * k, urlsplit(address).netloc, until) for k in range(TIMES * AT_ONCE)]
        for client in clients:
            client.start()
        megabytes = []
        while time.monotonic() < until:
            time.sleep(min(10, options.seconds / 10))
            megabytes.append(round(memory(process), 1))
            print(megabytes[-1], "MB", flush=True)
        for client in clients:
            client.join(90)
        counts = sum((client.counts for client in clients), Counter())
        found = {
            "seconds": options.seconds,
            "clients": len(clients),
            "allowed_at_once": AT_ONCE,
            "answers": dict(sorted(counts.items())),
            "broken": sum(n for name, n in counts.items() if name.startswith("broken")),
            "clients_that_hang": sum(client.is_alive() for client in clients),
            "megabytes": megabytes,
        }
    print(found)
    if options.write:
        command = f"python benchmarks/serve_load.py --seconds {options.seconds:g} --write"
        keep("load.json", command, found)


if __name__ == "__main__":
    main()
