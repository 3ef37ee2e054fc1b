"""The scripts of the guides run, and say what the guides say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_convert(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "convert.py"), run_name="__main__")
    text = capsys.readouterr().out
    (moved,) = re.findall(r"largest change of a forecast.*: ([\d.]+)", text)
    assert float(moved) < 0.05
    before, after = (int(found) for found in re.findall(r"for (\d+)%", text))
    assert before < 60
    assert 85 <= after <= 95
    response = dict(re.findall(r"^  ([a-z, ]+?) +closed form.*response ([\d.]+)", text, flags=re.M))
    assert float(response["noise, no rhythm"]) > 1.5 * float(response["familiar"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch and onnxscript
def test_onnx_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "onnx_stream.py"), run_name="__main__")
    (held,) = re.findall(r"intervals held (\d+)%", capsys.readouterr().out)
    assert 80 <= int(held) <= 100
