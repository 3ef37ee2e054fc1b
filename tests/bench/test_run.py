from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")

from spgru.bench import BenchConfig, Case, Shape, measure, summary, write
from spgru.bench import peers as peers_module
from spgru.bench.contender import Absent, Contender
from spgru.bench.contenders import make_contenders
from spgru.bench.problem import Problem
from spgru.bench.ratios import judge, ratios
from spgru.bench.run import FIELDS
from spgru.bench.shapes import Bar
from spgru.bench.timing import Effort

SHAPE = Shape(2, 3, 4, 5)
EFFORT = Effort(rounds=2, seconds=0.01, least=2, sample=0.0)
SETTINGS = BenchConfig(
    [Case(SHAPE), Case(SHAPE, grows="T")],
    torch.device("cpu"),
    ("GRU",),
    EFFORT,
    threads=1,
    peers=False,
)


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return measure(SETTINGS, "spgru bench --made-up", quiet)


def test_a_wrong_contender_gets_no_time() -> None:
    called = []

    def with_a_wrong_one(*arguments: Any) -> list[Contender | Absent]:
        made = make_contenders(*arguments)
        right = next(one for one in made if one.name == "ours GRU, reference")
        assert isinstance(right, Contender)
        problem = arguments[0]
        layer = problem.ours("GRU", "reference")

        def work() -> Any:
            called.append(1)
            output, _ = layer(problem.x)
            return output.mean.detach(), 1.001 * output.var.detach()

        def check() -> Any:
            from spgru.bench.check import compare

            mean, var = work()
            return compare({"mean": mean, "var": var}, problem.truth("GRU"), 1e-5)

        return [*made, replace(right, name="ours GRU, bent", work=work, check=check)]

    settings = replace(SETTINGS, cases=[Case(SHAPE)])
    found = measure(settings, "", quiet, with_a_wrong_one)
    bent = [row for row in found["rows"] if row["contender"] == "ours GRU, bent"]
    assert len(bent) == len(called) == 2  # once in each mode, by the check alone
    for row in bent:
        assert row["status"] == "wrong"
        assert row["seconds"] is None
        assert row["reason"] == "var is off by 0.001, allowed is 1e-05"
    assert not any(one.row["contender"] == "ours GRU, bent" for one in ratios(found["rows"]))
    assert "| ours GRU, bent | wrong | var is off by 0.001" in summary(found)


def test_rows(document: dict[str, Any]) -> None:
    rows = document["rows"]
    assert all(tuple(row) == FIELDS for row in rows)
    for row in rows:
        if row["status"] == "timed":
            assert row["error"] <= row["limit"]
            assert 0 < row["least"] <= row["seconds"] <= row["largest"]
            assert row["work_bytes"] > 0
        else:
            assert row["seconds"] is None
            assert row["reason"]
    single = {row["contender"]: row["status"] for row in rows if not row["grows"]}
    assert single["ours GRU, reference"] == single["MC-LSTM-50, looped"] == "timed"
    assert single["ours GRU, triton"] == "refused"
    series = {row["contender"] for row in rows if row["grows"]}
    assert "MC-LSTM-50, folded" in series
    assert "MC-LSTM-50, looped" not in series
    assert document["command"] == "spgru bench --made-up"
    assert document["torch"] == torch.__version__


def test_ratios_are_of_one_case_and_mode(document: dict[str, Any]) -> None:
    rows = [dict(row) for row in document["rows"]]
    for row in rows:  # times that tell which row they came from
        if row["status"] == "timed":
            factor = 10.0 if row["grows"] else 1.0
            factor *= 100.0 if row["mode"] == "training" else 1.0
            base = {"ours": 6.0, "plain": 2.0, "sampling": 30.0}[row["kind"]]
            looped = 5.0 if row["contender"].endswith("looped") else 0.0
            row |= {"seconds": factor * (base + looped), "work_bytes": 90, "parameter_bytes": 10}
    found = ratios(rows)
    backends = {one.row["contender"] for one in found}
    assert "ours GRU, reference" in backends
    assert len(found) == 4 * len(backends)
    for one in found:
        assert one.over_plain == 3.0
        assert one.over_plain_graph is None
        assert one.sampling_over == (5.0 if one.row["mode"] == "forward" else None)
        assert one.memory_over_plain == 1.0


def test_bars(document: dict[str, Any]) -> None:
    made_up = [
        Bar("cpu", SHAPE, "float32", "forward", "time over nn.GRU", 1e9),
        Bar("cpu", SHAPE, "float32", "forward", "MC-LSTM over ours", 1e9),
        Bar("cpu", SHAPE, "bfloat16", "forward", "time over nn.GRU", 1e9),
        Bar("cuda", SHAPE, "float32", "forward", "time over nn.GRU", 1e9),
    ]
    verdicts = judge(document, made_up)
    assert [verdict.word for verdict in verdicts] == ["met", "NOT met", "not measured"]
    fastest = min(
        (row for row in document["rows"] if row["kind"] == "ours" and row["status"] == "timed"
         and row["mode"] == "forward" and not row["grows"]),
        key=lambda row: row["seconds"],
    )  # fmt: skip
    assert verdicts[0].contender == fastest["contender"]


def test_files_agree(document: dict[str, Any], tmp_path: Path) -> None:
    written = write(document, tmp_path)
    names = ["bench.csv", "bench.json", "bench.md", "times.png", "growth.png"]
    assert [path.name for path in written] == names
    loaded = json.loads((tmp_path / "bench.json").read_text())
    assert loaded == document
    with (tmp_path / "bench.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    as_text = [
        {name: "" if value is None else str(value) for name, value in row.items()}
        for row in loaded["rows"]
    ]
    assert lines == as_text
    text = (tmp_path / "bench.md").read_text()
    for part in ("spgru bench --made-up", torch.__version__, document["commit"], "nn.GRU"):
        assert part in text
    assert summary(document).rstrip().endswith("None of what has a bar was measured.")


def test_a_missing_peer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        if name == "laplace":
            raise RuntimeError("operator does not exist")
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(peers_module, "import_module", fail)
    found = measure(replace(SETTINGS, cases=[Case(SHAPE)], peers=True), "", quiet)
    peers = [row for row in found["rows"] if row["kind"] == "peer"]
    assert {row["status"] for row in peers} == {"not installed"}
    reasons = {row["contender"]: row["reason"] for row in peers}
    assert reasons["BLiTZ GRU"] == "No module named 'blitz.modules'"
    assert reasons["laplace-torch GRU"] == "import fails: operator does not exist"
    assert "| BLiTZ GRU | not installed | No module named" in summary(found)


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("mode", ["forward", "training"])
def test_installed_peers_are_right(mode: Any) -> None:
    made = peers_module.peers(Problem(Case(SHAPE), torch.device("cpu")), mode, 1e-5)
    there = [one for one in made if isinstance(one, Contender)]
    if not there:
        pytest.skip("no peer is installed")
    for one in there:
        assert all(finding.is_fine for finding in one.check()), one.name


def test_nothing_to_measure() -> None:
    with pytest.raises(ValueError, match="there is no case to measure; give a shape or a preset"):
        measure(replace(SETTINGS, cases=[]), "", quiet)


def test_an_interrupted_run_reports_what_it_has() -> None:
    def only_forward(*arguments: Any) -> list[Contender | Absent]:
        if arguments[1] != "forward":
            raise KeyboardInterrupt
        return make_contenders(*arguments)

    told: list[str] = []
    document = measure(SETTINGS, say=told.append, make=only_forward)
    assert {row["mode"] for row in document["rows"]} == {"forward"}
    assert told[-1].startswith("interrupted")
    assert "nn.GRU" in summary(document)

    def nothing(*_: Any) -> list[Contender | Absent]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(SETTINGS, say=quiet, make=nothing)
