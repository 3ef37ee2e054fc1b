from __future__ import annotations

import ast
import subprocess
import sys

SCRIPT = """
import sys, time
import torch, numpy
before = set(sys.modules)
start = time.process_time()
import spgru
seconds = time.process_time() - start
added = {name.split(".")[0] for name in set(sys.modules) - before}
print(seconds, sorted(added - set(sys.stdlib_module_names)))
"""


def test_import_is_light() -> None:
    """At most 0.3 s of a processor beyond torch (the best of three), no new package."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        ).stdout.split(maxsplit=1)
        for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in runs) < 0.3
    for _, added in runs:
        assert set(ast.literal_eval(added)) <= {"spgru", "torch", "numpy", "safetensors"}
