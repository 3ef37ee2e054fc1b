from __future__ import annotations

import pytest
import torch

from spgru.runtime import provenance as module
from spgru.runtime.provenance import commit, provenance


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPGRU_COMMIT", "abc123")
    assert provenance(torch.device("cpu"))["commit"] == "abc123"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"rev-parse": "abc", "ls-files": "provenance.py", "status": ""}, "abc"),
        ({"rev-parse": "abc", "ls-files": "provenance.py", "status": " M x"}, "abc+changes"),
        ({"rev-parse": "abc", "ls-files": "", "status": ""}, "unknown"),
        ({"rev-parse": "", "ls-files": "", "status": ""}, "unknown"),
    ],
)
def test_what_git_says(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, str], expected: str
) -> None:
    monkeypatch.delenv("SPGRU_COMMIT", raising=False)
    monkeypatch.setattr(module, "_git", lambda command, *_: answers[command])
    assert commit() == expected


def test_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPGRU_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"
