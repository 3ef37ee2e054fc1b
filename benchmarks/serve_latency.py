"""How soon a moved slider is answered: round trips of a second process to `spgru serve`.

    python benchmarks/serve_latency.py [--rounds 5] [--requests 200] [--write]

Every request is another position of the angle and noise sliders, for the small SP-GRU, one after
the other over one connection, as the page sends them. `--write` keeps the quantiles in
benchmarks/results/serve/latency.json, with the load of the machine at the start of every round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import time
from typing import Any
from urllib.parse import urlsplit

from serve_common import keep, scene, server


def measure(address: str, count: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    whole, passes = [], []
    load = os.getloadavg()[0]
    for k in range(count):
        body = scene(angle=k * 360 / count - 180, noise=0.6 * (k % 7) / 6)
        start = time.perf_counter()
        connection.request("POST", "/api/scene", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        whole.append(1e3 * (time.perf_counter() - start))
        assert answer.status == 200, found
        passes.append(found["predictions"][0]["milliseconds"])
    connection.close()
    return {"load": round(load, 2), "answer": _quantiles(whole), "pass": _quantiles(passes)}


def _quantiles(values: list[float]) -> dict[str, float]:
    percent = statistics.quantiles(values, n=100)
    found = {"median": percent[49], "p95": percent[94], "max": max(values)}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rounds = []
    with server() as (address, _):
        measure(address, 10)
        for _ in range(options.rounds):
            rounds.append(measure(address, options.requests))
            print(rounds[-1], flush=True)
    if options.write:
        command = (
            f"python benchmarks/serve_latency.py --rounds {options.rounds} "
            f"--requests {options.requests} --write"
        )
        found = {"cores": os.cpu_count(), "unit": "milliseconds", "rounds": rounds}
        keep("latency.json", command, found)


if __name__ == "__main__":
    main()
