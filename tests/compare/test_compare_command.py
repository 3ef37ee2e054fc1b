from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from spgru.cli import main
from spgru.compare.methods import make_methods
from spgru.compare.ranks import standings
from spgru.compare.report import verdict
from spgru.compare.tasks import read_tasks

INSTALLED = [method.name for method in make_methods() if method.package is None]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["compare", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files as those of the tasks, small: waves with noise."""
    generator = np.random.default_rng(0)
    t = np.arange(400)
    waves = np.stack([20 + 5 * np.sin(2 * np.pi * (t + k) / 24) for k in range(3)], 1)
    waves += 0.3 * generator.normal(size=waves.shape)

    def write(name: str, lines: list[str]) -> None:
        with gzip.open(tmp_path / name, "wt") as file:
            file.write("\n".join(lines) + "\n")

    def joined(values: np.ndarray) -> str:
        return ",".join(f"{value:.4f}" for value in values)

    write("exchange_rate.txt.gz", [joined(row) for row in waves])
    for name in ("ETTh1", "ETTh2"):
        write(f"{name}.csv.gz", ["date,a,b,c", *(f"2020,{joined(row)}" for row in waves)])
    ids = enumerate(waves.T)
    write("m4_hourly_train.csv.gz", ["id,v", *(f"H{k},{joined(v[:-48])},NA" for k, v in ids)])
    ids = enumerate(waves.T)
    write("m4_hourly_test.csv.gz", ["id,v", *(f"H{k},{joined(v[-48:])}" for k, v in ids)])
    return tmp_path


def test_files_become_tasks(data: Path) -> None:
    m4, exchange, etth = read_tasks(data)
    assert (len(m4.histories), m4.horizon, len(m4.histories[0])) == (3, 48, 352)
    assert (len(exchange.windows), exchange.horizon, exchange.season) == (3, 30, 5)
    assert (len(etth.histories), etth.horizon) == (6, 24)
    history, future = etth.windows[1]
    assert len(history) == 376
    # What follows has not been seen, and is what m4 has as its end, too.
    np.testing.assert_array_equal(future, m4.windows[1][1][-24:])


def test_from_options_to_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every method of our own and of torch.nn learns the waves a little, and covers them."""
    folder, page = data / "out", data / "page.md"
    options = ["--data", str(data), "--task", "etth", "--series", "2", "--seeds", "2"]
    options += ["--steps", "12", "--hidden-size", "4", "--members", "2", "--draws", "3"]
    options += [word for name in INSTALLED for word in ("--method", name)]
    assert run(*options, "--output", str(folder), "--page", str(page)) == 0
    printed = capsys.readouterr().out
    document = json.loads((folder / "compare.json").read_text())
    rows = document["rows"]
    assert {row["method"] for row in rows} == set(INSTALLED)
    assert len(rows) == 2 * (len(INSTALLED) - 1) + 1  # seasonal naive has no seed
    for row in rows:
        assert row["reason"] == ""
        assert row["crps"] < 1.0  # the seasonal error is 1
        assert 0.5 <= row["coverage"] <= 1
        assert 0.5 < row["width"] < 10
        assert row["forecast_s"] > 0
    assert document["command"].startswith("spgru compare --data")
    text = page.read_text()
    assert text == (folder / "compare.md").read_text()
    for part in ("### etth", "| ours |", document["commit"], "statsforecast"):
        assert part in text
    assert "CRPS rank" in printed
    # The same command finds all of it done.
    assert run(*options, "--output", str(folder)) == 0
    assert "seed 0: CRPS" not in capsys.readouterr().out
    assert json.loads((folder / "compare.json").read_text())["rows"] == rows


def test_misuse_is_one_sentence(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--task", "tides"], "there is no task 'tides'; there are el_nino"),
        (["--task", "etth"], "etth needs its files; pass their folder by --data"),
        (["--data", str(data / "none"), "--task", "etth"], "github.com/zhouhaoyi/ETDataset"),
        (["--data", str(data), "--task", "etth", "--method", "oracle"], "no method 'oracle'"),
    ):
        assert run(*options) == 1
        assert message in capsys.readouterr().err


def test_peers_that_are_missing_are_named(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spgru.compare.method.find_spec", lambda name: None)
    options = ["--data", str(data), "--task", "etth", "--series", "1", "--seeds", "1"]
    options += ["--method", "DeepAR", "--method", "seasonal naive", "--output", str(data / "out")]
    assert run(*options) == 0
    assert "DeepAR is left out: gluonts is not installed" in capsys.readouterr().out
    assert "DeepAR: gluonts is not installed" in (data / "out" / "compare.md").read_text()


def row(task: str, method: str, crps: float, seconds: float, **more: float) -> dict[str, object]:
    found = {"mase": crps, "coverage": 0.8} | more
    return {
        "task": task,
        "method": method,
        "crps": crps,
        "forecast_s": seconds,
        "reason": "",
    } | found


def test_ranks_and_what_they_say() -> None:
    rows = [
        row("a", "ours", 1.0, 0.1), row("a", "ours", 3.0, 0.1), row("a", "ensemble", 1.5, 0.5),
        row("a", "quick", 2.0, 0.05), row("b", "ours", 1.0, 0.1),
        row("b", "ensemble", 0.5, 0.5), row("b", "quick", 2.0, 0.05),
    ]  # fmt: skip
    found = {one.method: one for one in standings(rows)}
    assert (found["ensemble"].crps, found["ours"].crps, found["quick"].crps) == (1, 2.25, 2.75)
    assert found["ensemble"].time == pytest.approx(5)
    lines = verdict(list(found.values()))
    assert "No method with a better average CRPS rank forecasts as fast as ours." in lines
    assert any("**ensemble**" in line and "medians are better" in line for line in lines)
    rows += [row("a", "ideal", 0.1, 0.1), row("b", "ideal", 0.1, 0.1)]
    assert any("**ideal**" in x and "in no more time" in x for x in verdict(standings(rows)))
    rows += [row("a", "twin", 2.0, 0.2), row("b", "twin", 1.0, 0.2)]
    assert any("**twin** has the same, in 2 times" in x for x in verdict(standings(rows)))
    # A method that failed once has no rank.
    rows.append(row("b", "ideal", 0.1, 0.1) | {"reason": "no memory"})
    assert "ideal" not in {one.method for one in standings(rows)}
