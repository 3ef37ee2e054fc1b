from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="brute-force tests at full size")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)
    # Two workers on two cores: more threads would only get in each other's way.
    torch.set_num_threads(1)
