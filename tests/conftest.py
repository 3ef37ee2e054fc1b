from __future__ import annotations

import os
import sys

import pytest
import torch

import quick_interpreter

# Read by Triton when it is imported: without a GPU its kernels run in an interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


# Two workers on two cores: processes that tests start shall not wait for one another's threads, and
# Inductor shall not start a pool of processes, each of which would import torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="brute-force tests at full size")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly why the page was not tried in a browser: reasons of skips are not shown else."""
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])}
    for reason in sorted(reason for reason in reasons if "no browser" in reason):
        terminalreporter.write_line(f"The page of `spgru serve` was not tested: {reason}")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session", autouse=True)
def _quick_process() -> None:
    # Also for fixtures that several tests share, which are made before `_reproducible` is.
    torch.set_num_threads(1)
    # Where tests that have been collected use Triton; for others it need not be imported.
    if os.environ.get("TRITON_INTERPRET") and "triton" in sys.modules:
        quick_interpreter.install()


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)
    # Two workers on two cores: more threads would only get in each other's way.
    torch.set_num_threads(1)
    # On a GPU convolutions of float32 would round to TF32 unasked.
    torch.backends.cudnn.allow_tf32 = False
