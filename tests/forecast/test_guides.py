"""The script of the guide runs; tests/test_pages.py runs the code on its page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_forecasting_with_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "forecast.py"), run_name="__main__")
    found = re.search(
        r"held (\d+)% of the hours\nmean absolute error ([\d.]+), .* ([\d.]+)",
        capsys.readouterr().out,
    )
    assert found is not None
    held, error, naive = (float(part) for part in found.groups())
    assert 70 <= held <= 90
    assert error < naive
    assert (tmp_path / "outputs" / "forecast.png").exists()
