"""torch's two sets of switches for TF32, which it forbids to mix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from spgru.runtime.precision import float32_products

BACKENDS: Any = torch.backends
OPERATIONS = {
    "cuda.matmul": BACKENDS.cuda.matmul,
    "cudnn.conv": BACKENDS.cudnn.conv,
    "cudnn.rnn": BACKENDS.cudnn.rnn,
    "mkldnn.matmul": BACKENDS.mkldnn.matmul,
}
EVERY = {"all": BACKENDS, "cudnn": BACKENDS.cudnn, **OPERATIONS}


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = False
    for switch in EVERY.values():
        switch.fp32_precision = "none"


def state() -> dict[str, Any]:
    """All that can be read; what torch refuses to tell is "mixed"."""
    found: dict[str, Any] = {name: switch.fp32_precision for name, switch in EVERY.items()}
    for name, read in (
        ("old matmul", torch.get_float32_matmul_precision),
        ("old cublas", lambda: BACKENDS.cuda.matmul.allow_tf32),
        ("old cudnn", lambda: BACKENDS.cudnn.allow_tf32),
    ):
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "mixed"
    return found


def set_old(matmul: str, cudnn: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    BACKENDS.cudnn.allow_tf32 = cudnn


USERS = {
    "nothing": lambda: None,
    "old, tf32": lambda: set_old("high", True),
    "old, medium": lambda: set_old("medium", False),
    "all, tf32": lambda: setattr(BACKENDS, "fp32_precision", "tf32"),
    "all, ieee": lambda: setattr(BACKENDS, "fp32_precision", "ieee"),
    "matmul, tf32": lambda: setattr(BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "matmul, ieee": lambda: setattr(BACKENDS.cuda.matmul, "fp32_precision", "ieee"),
    "conv, tf32": lambda: setattr(BACKENDS.cudnn.conv, "fp32_precision", "tf32"),
    "mkldnn, bf16": lambda: setattr(BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
}


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("user", USERS)
def test_either_set_of_switches_is_obeyed_and_put_back(user: str, tf32: bool) -> None:
    USERS[user]()
    before = state()
    with float32_products(tf32):
        inside = state()
        assert all(inside[name] == ("tf32" if tf32 else "ieee") for name in OPERATIONS)
        assert inside["old matmul"] == ("high" if tf32 else "highest")
        assert inside["old cublas"] is inside["old cudnn"] is tf32
    after = state()
    for name, value in before.items():
        # What torch refused to tell before may be told after.
        assert after[name] == value or value == "mixed", name


def test_an_operation_keeps_following_its_backend() -> None:
    BACKENDS.fp32_precision = "tf32"
    with float32_products(tf32=True):
        pass
    BACKENDS.fp32_precision = "ieee"
    assert BACKENDS.cuda.matmul.fp32_precision == "ieee"


def test_they_are_put_back_after_an_error() -> None:
    before = state()
    with pytest.raises(KeyError), float32_products(tf32=True):
        raise KeyError
    assert state() == before


def test_training_and_benchmarks_run_whichever_switches_are_set(tmp_path) -> None:
    from spgru.bench import BenchConfig, Case, Shape, measure
    from spgru.bench.timing import QUICK
    from spgru.models import ModelConfig
    from spgru.training import TrainConfig, train

    BACKENDS.fp32_precision = "tf32"
    config = TrainConfig(
        ModelConfig(hidden_size=4), steps=1, batch_size=2, device="cpu", output=str(tmp_path)
    )
    assert train(config, show="none").stopped == "finished"
    settings = BenchConfig(
        [Case(Shape(2, 2, 3, 4))], torch.device("cpu"), ["GRU"], QUICK, peers=False, threads=1
    )
    rows = measure(settings, say=lambda _: None)["rows"]
    assert {row["status"] for row in rows if row["contender"] == "ours GRU, reference"} == {"timed"}
    assert BACKENDS.fp32_precision == "tf32"
