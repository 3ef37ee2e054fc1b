"""The command line as a user meets it: what it prints, and the status it ends with."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("typer")

from spgru.cli import main
from spgru.training import loop as loop_module
from spgru.training import packaged

TINY = """
model: {hidden_size: 4}
batch_size: 2
steps: 2
log_every: 1
precision: float32
device: cpu
"""


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def spgru(capsys: pytest.CaptureFixture[str]):
    """Run the command line in this process."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(f"{TINY}output: {tmp_path / 'run'}\n")
    return path


@pytest.fixture
def run(spgru, config: Path, tmp_path: Path) -> Path:
    """The folder of a trained model."""
    assert spgru("train", config, "--show", "none").status == 0
    return tmp_path / "run"


def assert_sentence(outcome: Outcome, message: str, status: int = 1) -> None:
    """One line on standard error, nothing else, and the status."""
    assert outcome.status == status
    assert outcome.out == ""
    assert outcome.err.startswith("spgru: error: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_the_verbs(spgru, arguments: tuple[str, ...]) -> None:
    outcome = spgru(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    for verb in ("train", "evaluate", "predict", "export", "reproduce"):
        assert verb in outcome.out


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("train", ["--resume", "--set", "--max-seconds", "torchrun", "exit status", "configs/"]),
        ("evaluate", ["--sequences", "--official", "nats per frame"]),
        ("predict", ["--input", "--steps", "(T, B, height, width)", "comes with the package"]),
        ("export", ["--precision", ".safetensors"]),
        (
            "reproduce",
            [
                "--scale",
                "--max-seconds",
                "--mnist",
                "--official",
                "--only",
                "--report",
                "out-of-domain",
            ],
        ),
    ],
)
def test_help_helps(spgru, verb: str, words: list[str]) -> None:
    outcome = spgru(verb, "--help")
    assert outcome.status == 0
    for word in words:
        assert word in " ".join(outcome.out.split()), word


def test_version(spgru) -> None:
    outcome = spgru("--version")
    assert outcome == (0, f"spgru {importlib.metadata.version('spgru')}\n", "")


WITHOUT = """
import contextlib, io, json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"typer", "rich", "yaml"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from spgru.cli import main

outcomes = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            outcomes.append((end.code, out.getvalue(), err.getvalue()))
print(json.dumps(outcomes))
"""


def test_without_the_extra_a_sentence_names_it_and_the_version_is_there() -> None:
    """One process for all: importing torch takes longer than the rest."""
    refused = [["--help"], ["train", "x.yaml"], ["train", "--version"], []]
    command = [sys.executable, "-c", WITHOUT, json.dumps([*refused, ["--version"]])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *outcomes, last = (Outcome(*outcome) for outcome in json.loads(done.stdout))
    assert len(outcomes) == len(refused)
    for outcome in outcomes:
        assert_sentence(
            outcome, "the command line needs typer; install it with pip install 'spgru[cli]'"
        )
    assert last == (0, f"spgru {importlib.metadata.version('spgru')}\n", "")


def test_train_evaluate_predict_export(spgru, config: Path, tmp_path: Path) -> None:
    options = ("--set", "schedule.warmup=1", "--steps", 3, "--seed", 7, "--show", "lines")
    outcome = spgru("train", config, *options)
    assert outcome.status == 0
    assert outcome.out == f"finished at step 3 of 3 in {tmp_path / 'run'}\n"
    assert outcome.err.count("step ") == 3
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (written["schedule"]["warmup"], written["seed"], written["steps"]) == (1, 7, 3)

    weights = tmp_path / "weights.safetensors"
    assert spgru("export", tmp_path / "run", weights, "--precision", "float16").out.startswith(
        f"wrote {weights}"
    )

    scores = tmp_path / "scores.json"
    outcome = spgru("evaluate", weights, "--sequences", 3, "--output", scores, "--device", "cpu")
    assert outcome.status == 0
    assert "two digits, regenerated" in outcome.out
    (row,) = json.loads(scores.read_text())["scores"]
    assert row["sequences"] == 3
    assert row["cross_entropy"] > 2000
    # Frame by frame, and beside published scores.
    assert len(row["by_frame"]["similarity"]) == 10
    assert outcome.out.count("  frame ") == 10
    shown = f"{row['squared_error']:.2f} ± {row['standard_errors']['squared_error']:.2f}"
    assert shown in outcome.out
    lines = outcome.out.splitlines()
    ours, theirs = (
        next(k for k, line in enumerate(lines) if f"| {name} |" in line)
        for name in ("**this network**", "ConvLSTM-S")
    )
    assert ours + 1 == theirs
    assert "| 0.1 M |" in lines[ours]  # 4 units on 4096 pixels, without variances
    outcome = spgru("evaluate", weights, "--sequences", 2, "--data", "controlled")
    assert len(outcome.out.splitlines()) == 13

    np.save(tmp_path / "mine.npy", np.zeros((5, 64, 64), np.uint8))
    outcome = spgru("predict", weights, "--input", tmp_path / "mine.npy", "--steps", 2)
    assert outcome.status == 0
    assert np.load(tmp_path / "mine_var.npy").shape == (2, 64, 64)


def test_a_packaged_network(
    spgru, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "WEIGHTS", tmp_path / "weights")
    assert spgru("export", run, tmp_path / "weights" / "small-one.safetensors").status == 0
    np.save(tmp_path / "mine.npy", np.zeros((5, 64, 64), np.uint8))
    assert spgru("predict", "small-one", "--input", tmp_path / "mine.npy").status == 0
    by_name = np.load(tmp_path / "mine_var.npy")
    spgru("predict", run, "--input", tmp_path / "mine.npy", "--overwrite")
    assert np.array_equal(by_name, np.load(tmp_path / "mine_var.npy"))
    outcome = spgru("evaluate", "small-one", "--sequences", 2)
    assert (outcome.status, outcome.err) == (0, "")
    for verb in (("predict", "--input", "x.npy"), ("evaluate",)):
        wrong = spgru(verb[0], "large-one", *verb[1:])
        assert_sentence(wrong, "large-one does not exist; give the folder of a run, a checkpoint")
        assert_sentence(wrong, "or the name of a packaged network (small-one)")


def test_evaluation_follows_the_data_of_training(spgru, config: Path, tmp_path: Path) -> None:
    controlled = ("--set", "data.path=controlled", "--set", "data.digits=1", "--show", "none")
    spgru("train", config, *controlled)
    outcome = spgru("evaluate", tmp_path / "run", "--sequences", 1)
    assert "angle 35" in outcome.out


def test_own_digits(spgru, config: Path, tmp_path: Path) -> None:
    """Trained on and asked about digits that are white squares."""
    squares = np.full((4, 28, 28), 255, np.uint8)
    labels = np.zeros(4, np.uint8)
    folder = tmp_path / "mine"
    folder.mkdir()
    arrays = {f"{split}_images": squares for split in ("train", "test")}
    arrays |= {f"{split}_labels": labels for split in ("train", "test")}
    np.savez(folder / "mnist.npz", **arrays)
    assert spgru("train", config, "--mnist", folder, "--show", "none").status == 0
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["data"]["directory"] == str(folder)
    asked = ("evaluate", tmp_path / "run", "--sequences", 2)
    plain, mine = (
        spgru(*asked, "--data", "controlled", *options) for options in ((), ("--mnist", folder))
    )
    assert mine.status == 0
    assert mine.out != plain.out
    two_digits = spgru(*asked, "--mnist", folder)
    assert two_digits.status == 0
    assert "two digits, of your own" in two_digits.out
    assert_sentence(
        spgru(*asked, "--mnist", folder, "--official", tmp_path / "x.npy"),
        "the official file has digits of its own; leave out yours",
    )


def test_pieces_and_resume(spgru, config: Path, tmp_path: Path) -> None:
    outcome = spgru("train", config, "--max-seconds", 0, "--show", "none")
    assert outcome.status == 0
    assert outcome.out.startswith("out of time at step 1 of 2")
    assert outcome.out.endswith("; continue with --resume\n")
    assert_sentence(spgru("train", config), "already holds a run (step 1); continue it with --res")
    assert spgru("train", config, "--resume", "--show", "none").out.startswith("finished at step 2")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_has_its_status(
    spgru, config: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    real = loop_module.learning_rate

    def rate(*arguments):
        os.kill(os.getpid(), number)
        return real(*arguments)

    monkeypatch.setattr(loop_module, "learning_rate", rate)
    outcome = spgru("train", config, "--show", "none")
    assert outcome.status == status
    assert outcome.out.startswith("interrupted at step 1 of 2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frain",), "No such command 'frain'"),
        (("train",), "Missing argument 'CONFIG'"),
        (("train", "x.yaml", "--fast"), "No such option: --fast"),
        (("train", "x.yaml", "--steps", "many"), "Invalid value for '--steps'"),
        (("train", "x.yaml", "--show", "off"), "Invalid value for '--show'"),
        (("predict", "x"), "Missing option '--input'"),
        (("evaluate", "x", "--sequences", "0"), "Invalid value for '--sequences'"),
        (("reproduce", "everything"), "Invalid value for 'NAME'"),
        (("reproduce", "maps", "--scale", "huge"), "Invalid value for '--scale'"),
        (("reproduce", "maps", "--seed", "-1"), "Invalid value for '--seed'"),
    ],
)
def test_misuse_is_status_2(spgru, arguments: tuple[str, ...], message: str) -> None:
    assert_sentence(spgru(*arguments), message, status=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--set", "model.hiden_size=3"),
            "model.hiden_size is not a field of model; did you mean hi",
        ),
        (("--set", "steps=many"), "steps is the text 'many'; give a whole number"),
        (("--set", "steps"), "is not of the form section.field=value"),
        (("--set", "steps=[1"), "is not valid YAML"),
        (("--steps", "0"), "steps is 0; give at least 1"),
        (("--precision", "float8"), "precision is the text 'float8'; give one of float32"),
        (("--device", "gpu"), "device is 'gpu'; give auto, cpu, cuda"),
        (("--set", "model.kind=mc_dropout_gru", "--set", "model.dropout=2"), "dropout must lie in"),
        (("--set", "data.noise=3"), "noise is 3.0; pass a number from 0 to 1"),
        (("--set", "data.directory=nowhere"), "'nowhere' is not a folder"),
        (("--mnist", "nowhere"), "'nowhere' is not a folder"),
        (("--set", "initial=nowhere"), "nowhere does not exist"),
        (("--set", "cuda_graph=always"), "cuda_graph is always, but a graph needs one process"),
    ],
)
def test_bad_configurations(spgru, config: Path, options: tuple[str, ...], message: str) -> None:
    assert_sentence(spgru("train", config, *options), message)
    assert not (config.parent / "run" / "checkpoints" / "step-00000002.json").exists()


def test_bad_files(spgru, run: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert_sentence(spgru("train", missing), "missing cannot be read (No such file or directory)")
    for verb in (("evaluate",), ("predict", "--input", "x.npy"), ("export", "y.safetensors")):
        assert_sentence(spgru(verb[0], missing, *verb[1:]), "missing does not exist; give the fold")
    absent = spgru("predict", run, "--input", tmp_path / "absent.npy")
    assert_sentence(absent, "absent.npy cannot be read")
    np.save(tmp_path / "small.npy", np.zeros((4, 32, 32)))
    wrong = spgru("predict", run, "--input", tmp_path / "small.npy")
    assert_sentence(wrong, "has shape (4, 32, 32); save (T, 64, 64) or (T, B, 64, 64)")
    np.save(tmp_path / "official.npy", np.zeros((2, 2)))
    official = spgru("evaluate", run, "--official", tmp_path / "official.npy")
    assert_sentence(official, "pass the official mnist_test_seq.npy")
    assert_sentence(spgru("export", run, tmp_path / "w.bin"), "must end in .safetensors")
    (tmp_path / "w.safetensors").write_text("precious")
    assert_sentence(spgru("export", run, tmp_path / "w.safetensors"), "exists; remove it")
    assert (tmp_path / "w.safetensors").read_text() == "precious"
    for path in (run / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"damaged")
    for verb in ("evaluate", "train"):
        target = (run,) if verb == "evaluate" else (tmp_path / "tiny.yaml", "--resume")
        assert_sentence(spgru(verb, *target), "is sound: ")


def test_a_resumed_run_must_be_the_same(spgru, run: Path, config: Path) -> None:
    outcome = spgru("train", config, "--resume", "--set", "model.hidden_size=8")
    assert_sentence(outcome, "(model.hidden_size was 4, now 8); set it back, or start anew")


def test_faults_of_ours_show_their_origin(
    spgru, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does anything with --traceback."""

    def broken(*_):
        raise AssertionError("a fault")

    monkeypatch.setattr(loop_module, "learning_rate", broken)
    with pytest.raises(AssertionError, match="a fault"):
        main(["train", str(config), "--show", "none"])
    with pytest.raises(ValueError, match="cannot be read"):
        main(["--traceback", "train", "missing.yaml"])


def test_as_a_process(run: Path, tmp_path: Path) -> None:
    """Damage is told on standard error as one line, and the one before serves."""
    newest = run / "checkpoints" / "step-00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    weights = tmp_path / "w.safetensors"
    command = [sys.executable, "-m", "spgru", "export", str(run), str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("spgru: warning: ")
    assert line.endswith("; falling back to step 0")
    assert weights.exists()


TINY_STUDY = (
    "--seed=0", "--device=cpu", "--show=none", "--set=steps=2",
    "--set=controlled_sp_gru.mean_steps=1", "--set=batch_size=2",
    "--set=model.hidden_size=4", "--set=schedule.warmup=1", "--set=scale.sequences=2",
    "--set=scale.draws=2", "--set=scale.audit_draws=2", "--set=scale.audit_sequences=1",
    "--set=scale.calibration_sequences=4", "--set=scale.calibration_draws=2",
    "--set=scale.calibration_steps=1",
)  # fmt: skip


def test_reproduce_in_pieces(spgru, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ("reproduce", "maps", "--output", tmp_path, *TINY_STUDY)
    outcome = spgru(*command, "--max-seconds", 0)
    assert outcome.status == 0
    stopped = "stopped at step 1 of 2 of controlled_sp_gru-0; run again to continue\n"
    assert (outcome.out, outcome.err) == (stopped, "")
    report = tmp_path / "maps-small" / "report.md"
    *found, last = spgru(*command).out.splitlines()
    assert last == f"wrote {report}"
    assert found
    assert all(f"- {line.strip()}\n" in report.read_text() for line in found)
    results = json.loads((report.parent / "results.json").read_text())
    assert results["command"].startswith("spgru reproduce maps --output ")
    assert results["scale"]["draws"] == 2
    report.unlink()
    assert spgru(*command, "--report").out.splitlines() == [*found, last]
    assert report.exists()


def test_reproduce_all_trains_everything_first(spgru, tmp_path: Path) -> None:
    outcome = spgru("reproduce", "all", "--output", tmp_path, *TINY_STUDY, "--max-seconds", 0)
    assert outcome.out.startswith("stopped at step 1 of 2 of controlled_sp_gru-0")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "models"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "scale.drows=3"), "scale.drows is not a field of scale; did you mean draws?"),
        (("--set", "scale.draws=1"), "scale.draws is 1; give at least 2"),
        (("--set", "steps=0"), "steps is 0; give at least 1"),
        (("--use", "two_digits"), "--use 'two_digits' is not of the form RUN=CHECKPOINT"),
        (("--use", "x=y"), "'x' is not a run; give one of controlled_deep_markov, "),
        (("--only", "x"), "'x' is not a run; give one of controlled_deep_markov, "),
        (("--only", "controlled_mc_lstm"), "controlled compares its networks with each other"),
        (
            ("--only", "two_digits"),
            "controlled has no network two_digits; it has controlled_sp_gru",
        ),
        (("--use", "controlled_sp_gru=nowhere", "--use", "controlled_mc_lstm=x"), "nowhere does"),
        (("--report",), "results.json cannot be read (No such file or directory); run the study"),
        (("--device", "gpu"), "device is 'gpu'; give auto, cpu, cuda"),
        (("--mnist", "nowhere"), "'nowhere' is not a folder"),
        (("--official", "x.npy"), "the test set of two-digits alone; leave it out for controlled"),
    ],
)
def test_bad_studies(spgru, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    pytest.importorskip("matplotlib")
    settings = ("--output", tmp_path, *TINY_STUDY, *options)
    assert_sentence(spgru("reproduce", "controlled", *settings), message)


def test_reproduce_one_network_that_comes_with_the_package(
    spgru, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(packaged, "WEIGHTS", tmp_path / "weights")
    spgru("export", run, tmp_path / "weights" / "small-one.safetensors")
    chosen = ("--only", "two_digits", "--use", "two_digits=small-one")
    sizes = ("--set", "scale.test_sequences=2", "--output", tmp_path)
    outcome = spgru("reproduce", "two-digits", *TINY_STUDY, *sizes, *chosen)
    report = tmp_path / "two-digits-small-two_digits" / "report.md"
    assert outcome.out.endswith(f"wrote {report}\n")
    assert not (tmp_path / "models").exists()
    assert spgru("reproduce", "two-digits", *sizes, *chosen, "--report").out == outcome.out


@pytest.mark.parametrize("name", ["two-digits", "all"])
def test_a_missing_test_set_is_told_before_training(spgru, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    missing = ("--official", tmp_path / "gone.npy")
    outcome = spgru("reproduce", name, "--output", tmp_path / "studies", *TINY_STUDY, *missing)
    assert_sentence(outcome, "gone.npy' is not a file; pass the official mnist_test_seq.npy")
    assert not (tmp_path / "studies").exists()
