"""The guides' scripts run, and so does the code on their pages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

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


@pytest.mark.filterwarnings("ignore:Using `json`-module")  # GluonTS, when it is imported
def test_the_pages_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guides" / "forecast.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for code in blocks:  # in order, since later ones use what earlier ones made
        exec(compile(code, "forecast.md", "exec"), names)
    assert (tmp_path / "outputs" / "demand" / "forecaster.json").exists()
    scores: Any = names["scores"]
    assert 0 < scores["mean_wQuantileLoss"] < 1
