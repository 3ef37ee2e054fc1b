"""All scripts that need no GPU, one after the other (about half an hour on two cores)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = [
    "activation_error.py", "layer_norm.py", "variance_ratio.py", "respond.py", "tangents.py",
    "noisy_heads.py", "layer_gains.py", "streaming.py",
]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for script in RUNS:
        print(f"== {script}", flush=True)
        subprocess.run([sys.executable, str(HERE / script)], check=True)


if __name__ == "__main__":
    main()
