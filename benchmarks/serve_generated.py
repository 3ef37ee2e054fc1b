"""Generated requests to `spgru serve` by schemathesis, from the description that it serves.

    pip install schemathesis
    python benchmarks/serve_generated.py [--requests 10000] [--write]

All of schemathesis' checks but one: data that the description allows may still be refused, since it
cannot say what a .npy file or a table of numbers is. Networks that take seconds are left out of the
description, so that the number of requests is reached in minutes. `--write` keeps the result in
benchmarks/results/serve/generated.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from serve_common import keep, server

from spgru.serve.networks import NETWORKS

LEFT_OUT = "positive_data_acceptance"
OPERATIONS = 4
"""With something to generate."""


def without_slow(value: Any) -> Any:
    """The description without networks that take seconds."""
    if isinstance(value, dict):
        return {name: without_slow(part) for name, part in value.items()}
    if isinstance(value, list):
        slow = [part for part in value if isinstance(part, str) and part in NETWORKS]
        kept = [part for part in value if part not in slow or not NETWORKS[part].slow]
        return [without_slow(part) for part in kept]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    tool = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if tool is None:
        raise SystemExit("schemathesis is not installed; pip install schemathesis")
    with server() as (address, _), tempfile.TemporaryDirectory() as folder:
        with urllib.request.urlopen(f"{address}/openapi.json") as answer:
            description = without_slow(json.load(answer))
        schema, report = Path(folder, "openapi.json"), Path(folder, "report.json")
        schema.write_text(json.dumps(description))
        examples = -(-options.requests // OPERATIONS)
        subprocess.run(
            [
                tool, "--no-color", "run", str(schema), "--url", address,
                "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples),
                "--exclude-checks", LEFT_OUT, "--continue-on-failure", "--seed", str(options.seed),
                "--suppress-health-check", "all", "--request-timeout", "120",
                "--report", "json", "--report-json-path", str(report),
            ],
            cwd=folder,
            check=False,
        )  # fmt: skip
        found = json.loads(report.read_text())
    kept = {name: found[name] for name in ("schemathesis_version", "test_cases", "failures")}
    kept["seconds"] = round(found["running_time"], 1)
    print(kept)
    if options.write:
        command = f"python benchmarks/serve_generated.py --requests {options.requests} --write"
        keep("generated.json", command, {"left_out": LEFT_OUT, **kept})


if __name__ == "__main__":
    main()
