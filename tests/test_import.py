from __future__ import annotations

import ast
import subprocess
import sys

import pytest

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
    """At most 0.3 s of a processor beyond torch (in one of three runs), no new package."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        )
        seconds, added = done.stdout.split(maxsplit=1)
        assert set(ast.literal_eval(added)) <= {"spgru", "torch", "numpy", "safetensors"}
        if float(seconds) < 0.3:
            return
    pytest.fail(f"importing spgru takes {seconds} s of a processor")
