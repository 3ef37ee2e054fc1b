"""Two processes in one folder: the second is refused, and told who is there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spgru.models import ModelConfig
from spgru.runtime.lock import FolderInUseError, locked
from spgru.training import TrainConfig, load_model, train

HOLD = """
import sys, time
from pathlib import Path
from spgru.runtime.lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start a process that locks a folder."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        ModelConfig(hidden_size=4), steps=2, batch_size=2, device="cpu", output=str(tmp_path / "a")
    )


def test_a_second_training_in_a_folder_is_refused_until_the_first_is_killed(
    hold, config: TrainConfig
) -> None:
    train(dataclasses.replace(config, steps=1), show="none")
    folder = Path(config.output)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    first = hold(folder)
    before[folder / ".lock"] = (folder / ".lock").read_bytes()
    with pytest.raises(FolderInUseError) as caught:
        train(config, resume=True, show="none")
    message = str(caught.value)
    assert message.startswith(f"{folder} is in use by process {first.pid} on ")
    assert message.endswith("; wait until it has finished, or choose another output")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    # Reading takes no lock, and neither is a folder beside it concerned.
    assert load_model(folder).step == 1
    other = dataclasses.replace(config, output=str(folder.with_name("b")))
    assert train(other, show="none").step == 2
    first.send_signal(signal.SIGKILL)
    first.wait()
    with locked(folder):
        assert f"process {os.getpid()} on " in (folder / ".lock").read_text()


def test_a_finished_training_leaves_no_lock(config: TrainConfig, tmp_path: Path) -> None:
    train(config, max_seconds=0, show="none")
    assert train(config, resume=True, show="none").step == 2


def test_reproduce_is_refused_before_it_writes_anything(hold, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("yaml")
    from spgru.studies import SCALES, StudyConfig, reproduce

    first = hold(tmp_path)
    settings = StudyConfig(SCALES["small"], tmp_path, "cpu", seeds=(0,))
    with pytest.raises(FolderInUseError, match=rf"is in use by process {first.pid} on "):
        reproduce(["maps"], settings, show="none")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_another_thread_is_refused_too(tmp_path: Path) -> None:
    errors: list[str] = []

    def second() -> None:
        try:
            with locked(tmp_path):
                pass
        except FolderInUseError as error:
            errors.append(str(error))

    with locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert f"process {os.getpid()} on " in errors[0]
    second()
    assert len(errors) == 1


def test_the_command_line_says_it_in_a_sentence(hold, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    first = hold(tmp_path / "run")
    (tmp_path / "c.yaml").write_text(f"output: {tmp_path / 'run'}\ndevice: cpu\nbatch_size: 2\n")
    command = [sys.executable, "-m", "spgru", "train", str(tmp_path / "c.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    start = f"spgru: error: {tmp_path / 'run'} is in use by process {first.pid} on "
    assert done.stderr.startswith(start)
