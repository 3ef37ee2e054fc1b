"""The script of the guide runs; tests/test_pages.py runs the code on its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_forecasting_with_intervals(tmp_path: Path) -> None:
    script = ROOT / "examples" / "forecast.py"
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = re.search(
        r"held (\d+)% of the hours\nmean absolute error ([\d.]+), .* ([\d.]+)", run.stdout
    )
    assert found is not None
    held, error, naive = (float(part) for part in found.groups())
    assert 70 <= held <= 90
    assert error < naive
    assert (tmp_path / "outputs" / "forecast.png").exists()
