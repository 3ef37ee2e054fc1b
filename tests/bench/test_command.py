from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from spgru.bench.options import make_bench_config
from spgru.bench.timing import QUICK
from spgru.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    for option in (
        "--preset",
        "--shape",
        "--dtype",
        "--device",
        "--output",
        "--quick",
        "--threads",
    ):
        assert option in text


def test_from_options_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--shape", "2,3,4,5", "--cell", "GRU", "--device", "cpu", "--no-peers"]
    assert run(*arguments, "--threads", "1", "--output", str(tmp_path / "deep" / "er")) == 0
    printed = capsys.readouterr().out
    assert printed.index("| ours GRU, reference |") < printed.index("| GRU, reference |")
    assert printed.index("| GRU, reference |") < printed.index(
        "None of what has a bar was measured"
    )
    document = json.loads((tmp_path / "deep" / "er" / "bench.json").read_text())
    assert document["command"].startswith("spgru bench --quick --shape 2,3,4,5")
    assert {row["hidden"] for row in document["rows"]} == {5}


def test_a_wrong_shape_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--shape", "1,2,3", "--device", "cpu") == 1
    assert "pass four positive integers B,T,I,H" in capsys.readouterr().err


def test_defaults() -> None:
    options = {
        "preset": None, "shapes": [], "dtypes": None, "cells": None, "backends": None,
        "device": "cpu", "threads": 2, "tf32": True, "peers": True, "quick": False,
    }  # fmt: skip
    everything = make_bench_config(**options)
    assert {case.grows for case in everything.cases} == {"", "T", "B", "H"}
    assert not everything.uses_tf32
    own = make_bench_config(**options | {"shapes": ["1,2,3,4"], "dtypes": ["float32", "bfloat16"]})
    assert [(str(case.shape), case.dtype) for case in own.cases] == [
        ("1,2,3,4", "float32"), ("1,2,3,4", "bfloat16"),
    ]  # fmt: skip
    assert make_bench_config(**options | {"backends": ["reference"]}).backends == ["reference"]
    quick = make_bench_config(**options | {"quick": True})
    assert len(quick.cases) == 1
    assert quick.effort is QUICK
    assert torch.device("cpu") == quick.device
