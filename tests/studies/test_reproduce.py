"""All studies from training to report, as small as they can be."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spgru.models import ModelConfig
from spgru.runtime.distributed import Processes
from spgru.studies import STUDIES, StudyConfig, UnfinishedError, reproduce, rewrite_reports
from spgru.studies.networks import Networks
from spgru.studies.runs import Member
from spgru.studies.study import read_results
from spgru.training import CheckpointError, ConfigError, TrainConfig, score
from spgru.training.model import DropoutConfig
from spgru.training.progress import parse_metrics
from spgru.training.run import Run


def check_folder(folder: Path) -> None:
    document = json.loads((folder / "results.json").read_text())
    assert document["commit"] == "abc123"
    assert {"hardware", "python", "torch", "seeds", "command", "scale"} <= set(document)
    for name, rows in document["results"].items():
        with (folder / f"{name}.csv").open(newline="") as file:
            written = list(csv.DictReader(file))
        shown = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
        assert written == shown
        assert rows
    for name, config in document["configs"].items():
        assert json.loads((folder / "configs" / f"{name}.json").read_text()) == config
        assert config["steps"] == 2
        assert parse_metrics((folder / "training" / f"{name}.jsonl").read_text())[-1]["step"] == 2
    assert (folder / "training.png").exists()
    assert document["trained"].keys() == document["configs"].keys()
    report = (folder / "report.md").read_text()
    for name in document["trained"]:
        assert f"| {name} | 2 | abc123 | {torch.__version__} | CPU |" in report
    linked = re.findall(r"\]\(([^)]+)\)", report)
    assert all((folder / target).exists() for target in linked)
    pictures = {path.name for path in folder.iterdir() if path.suffix in (".png", ".gif")}
    assert pictures == set(linked) & pictures
    assert {Path(name).suffix for name in pictures} == {".png", ".gif"}


def run(name: str, settings: StudyConfig) -> Path:
    (written,) = reproduce([name], settings, show="none", command="spgru reproduce")
    assert written.path == settings.folder(name) / "report.md"
    text = written.path.read_text()
    assert written.findings
    assert "\n".join(f"- {sentence}" for sentence in written.findings) in text
    return written.path


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(tiny, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SPGRU_COMMIT", "abc123")
    settings = tiny(seeds=(0,))
    report = run(name, settings)
    check_folder(report.parent)
    trained = read_results(report.parent)["trained"]
    if STUDIES[name].calibrates:
        ours = {member for member in trained if "mc_lstm" not in member}
        assert {k for k, origin in trained.items() if origin["calibration"] != "none"} == ours
    else:
        assert all("calibration" not in origin for origin in trained.values())
    # From the numbers alone the very same report comes again.
    text = report.read_text()
    report.unlink()
    ((path, _),) = rewrite_reports([name], settings)
    assert path == report
    assert report.read_text() == text


@pytest.mark.parametrize(
    ("name", "run_name", "label", "other"),
    [
        ("two-digits", "two_digits", "SP-GRU", "conv SP-GRU"),
        ("out-of-domain", "two_digits", "SP-GRU", "conv SP-GRU"),
        ("two-digits", "two_digits_conv", "conv SP-GRU", "| SP-GRU"),
        ("out-of-domain", "two_digits_conv", "conv SP-GRU", "| SP-GRU"),
        ("two-digits", "two_digits_autoencoder", "SP-GRU autoencoder", "| SP-GRU |"),
    ],
)
def test_one_network_of_a_study(
    tiny, monkeypatch: pytest.MonkeyPatch, name: str, run_name: str, label: str, other: str
) -> None:
    monkeypatch.setenv("SPGRU_COMMIT", "abc123")
    settings = tiny(seeds=(0,), only=(run_name,))
    report = run(name, settings)
    assert report.parent.name == f"{name}-small-{run_name}"
    check_folder(report.parent)
    assert [path.name for path in (settings.output / "models").iterdir()] == [f"small-{run_name}-0"]
    document = read_results(report.parent)
    assert list(document["configs"]) == [f"{run_name}-0"]
    for rows in document["results"].values():
        assert {row["model"] for row in rows} == {label}
    text = report.read_text()
    assert f"| {label} |" in text
    assert other not in text.replace("| SP-GRU (the paper)", "")
    ((path, _),) = rewrite_reports([name], settings)
    assert path == report
    assert report.read_text() == text


def test_networks_measured_one_at_a_time_share_a_report(tiny, monkeypatch: Any) -> None:
    monkeypatch.setenv("SPGRU_COMMIT", "abc123")
    runs = ("two_digits", "two_digits_autoencoder")
    alone = {name: run("two-digits", tiny(seeds=(0,), only=(name,))).parent for name in runs}
    settings = tiny(seeds=(0,), only=runs)
    ((path, findings),) = rewrite_reports(["two-digits"], settings)
    assert path.parent.name == "two-digits-small-two_digits-two_digits_autoencoder"
    document, parts = read_results(path.parent), [read_results(alone[name]) for name in runs]
    for name, rows in document["results"].items():
        assert rows == [row for part in parts for row in part["results"][name]]
    assert list(document["configs"]) == [f"{name}-0" for name in runs]
    text = path.read_text()
    table = [line for line in text.splitlines() if "(here, " in line and line[0] == "|"]
    assert [line.split(" | ")[0] for line in table] == [
        "| **SP-GRU (here, prediction)**",
        "| **SP-GRU autoencoder (here, reconstruction)**",
    ]
    assert any("calibrated variance grows" in sentence for sentence in findings)
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert all((path.parent / target).exists() for target in linked)
    assert "two_digits_autoencoder: commit | abc123" in text
    with pytest.raises(ConfigError, match=r"two_digits_conv was not measured.*--only two_digits_c"):
        rewrite_reports(["two-digits"], tiny(only=("two_digits", "two_digits_conv")))
    with pytest.raises(ConfigError, match="controlled compares its networks"):
        rewrite_reports(["controlled"], tiny(only=("controlled_sp_gru", "controlled_mc_lstm")))


@pytest.mark.parametrize(
    ("name", "only", "message"),
    [
        ("two-digits", ["controlled_sp_gru"], "two-digits has no network controlled_sp_gru; it ha"),
        ("out-of-domain", ["two_digits_autoencoder"], "it has two_digits, two_digits_conv$"),
        (
            "two-digits",
            ["two_digits", "controlled_sp_gru"],
            "two_digits_conv, two_digits_autoencoder$",
        ),
        (
            "controlled",
            ["controlled_sp_gru"],
            "needs all of them, controlled_sp_gru, controlled_mc",
        ),
        ("maps", ["controlled_mc_lstm"], "maps compares its networks with each other"),
        ("speed", ["controlled_sp_gru"], "speed compares its networks with each other"),
        ("deep-markov", ["controlled_deep_markov"], "controlled_deep_markov; leave out --only"),
    ],
)
def test_a_part_that_makes_no_study(tiny, name: str, only: list[str], message: str) -> None:
    settings = tiny(only=tuple(only))
    with pytest.raises(ConfigError, match=message):
        reproduce([name], settings, show="none")
    assert not settings.output.exists()


def test_all_networks_by_name_are_the_whole_study(tiny) -> None:
    settings = tiny(seeds=(0,), only=("controlled_mc_lstm", "controlled_sp_gru"))
    with pytest.raises(UnfinishedError):
        reproduce(["maps"], settings, max_seconds=0, show="none")


def test_a_missing_network_is_told_before_training(tiny) -> None:
    settings = tiny(given={"two_digits_conv": Path("nowhere")})
    with pytest.raises(CheckpointError, match="nowhere does not exist"):
        reproduce(["two-digits"], settings, show="none")
    assert not settings.output.exists()


def test_what_is_wrong_is_told_before_training(tiny, tmp_path: Path, monkeypatch) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"nothing")
    small = TrainConfig(model=ModelConfig(hidden_size=4, height=32, width=32), device="cpu")
    dropout = dataclasses.replace(small, model=DropoutConfig(hidden_size=4))
    made = {}
    back = dataclasses.replace(small, model=ModelConfig("autoencoder", hidden_size=4))
    for name, config in (("small", small), ("dropout", dropout), ("back", back)):
        config = dataclasses.replace(config, output=str(tmp_path / name), steps=1, batch_size=2)
        # A start is enough: what is there is a network of that kind.
        made[name] = Run(config, Processes(0, 1, torch.device("cpu"), False), False).folder
    conv = "two_digits_conv"
    for changes, message in (
        ({"overrides": {f"{conv}.stepz": 3}}, "stepz"),
        ({"given": {conv: damaged}}, "damaged.safetensors"),
        ({"given": {conv: made["dropout"]}}, "a network of kind mc_dropout_lstm, and two_digits_c"),
        ({"given": {conv: made["back"]}}, "a network of kind autoencoder, and two_digits_conv one"),
        ({"given": {conv: made["small"]}}, "reads frames of 32 x 32, and the study has 64 x 64"),
        ({"given": {"controlled_sp_gru": made["small"]}}, "two-digits takes two_digits, two_dig"),
        ({"output": Path("/proc/nowhere")}, "/proc/nowhere cannot be made"),
    ):
        settings = tiny(**changes)
        with pytest.raises((ConfigError, CheckpointError, ValueError), match=message):
            reproduce(["two-digits"], settings, show="none")
        assert not settings.output.exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'spgru\[plot\]'"):
        reproduce(["two-digits"], tiny(), show="none")
    assert not tiny().output.exists()


def test_studies_share_their_networks(tiny) -> None:
    settings = tiny(seeds=(0,))
    wanted = {name: set(study.members(settings)) for name, study in STUDIES.items()}
    assert wanted["controlled"] == wanted["maps"] == wanted["speed"]
    assert wanted["two-digits"] - wanted["out-of-domain"] == {Member("two_digits_autoencoder", 0)}
    assert wanted["controlled"] & wanted["deep-markov"]
    assert len(set.union(*wanted.values())) == 6


def test_time_is_up_before_anything_is_measured(tiny) -> None:
    settings = tiny(seeds=(0,))
    with pytest.raises(UnfinishedError, match=r"step 1 of 2 of controlled_sp_gru-0; run again"):
        reproduce(["controlled", "maps"], settings, max_seconds=0, show="none")
    assert not settings.folder("controlled").exists()


def test_the_official_test_set(tiny, official: Path) -> None:
    settings = tiny(seeds=(0,), official=official)
    report = run("two-digits", settings)
    assert "Test set: two digits, official." in report.read_text()
    rows = read_results(report.parent)["results"]["scores"]
    assert all(row["set"] == "two digits, official" for row in rows)
    (row,) = [row for row in rows if (row["model"], row["task"]) == ("SP-GRU", "prediction")]
    frames = torch.tensor(np.load(official)) / 255
    expected = score(Networks(settings).load(Member("two_digits", 0)), [frames])
    assert row["nats"] == pytest.approx(expected.cross_entropy, rel=1e-6)


def test_a_wrong_test_set_is_refused_before_training(tiny, official: Path) -> None:
    content = bytearray(official.read_bytes())
    content[-1] ^= 1
    official.write_bytes(content)
    missing = tiny(official=official.with_name("gone.npy"))
    with pytest.raises(FileNotFoundError, match=r"gone.npy' is not a file; pass the official"):
        reproduce(list(STUDIES), missing, show="none")
    wrong = tiny(official=official)
    with pytest.raises(ValueError, match=r"has MD5 [0-9a-f]{32} but the official"):
        reproduce(["two-digits"], wrong, show="none")
    others = [name for name in STUDIES if name != "two-digits"]
    with pytest.raises(ConfigError, match=r"test set of two-digits alone; leave it out for contr"):
        reproduce(others, wrong, show="none")
    assert not wrong.output.exists()


def test_no_report_without_results(tiny, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"results.json cannot be read .* run the study first"):
        rewrite_reports(["controlled"], tiny())
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no results of a study"):
        read_results(tmp_path)
