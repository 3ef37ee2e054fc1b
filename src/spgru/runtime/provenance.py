"""Where results come from: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

__all__ = ["commit", "origin", "provenance"]


def commit() -> str:
    """The commit this code is of: SPGRU_COMMIT if set, what git says, or "unknown".

    The variable is for machines that have a copy of the files without the repository. "+changes"
    means that files differ from the commit.
    """
    named = os.environ.get("SPGRU_COMMIT")
    if named:
        return named
    found = _git("rev-parse", "--short=12", "HEAD")
    if not found or not _git("ls-files", Path(__file__).name):
        return "unknown"  # the repository found does not track this file: it is an installed copy
    return found + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def origin(device: torch.device) -> dict[str, str]:
    """What is stored with weights: commit, version of torch and hardware of their training.

    Nothing that may differ between a run and its continuation on the same machine.
    """
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"commit": commit(), "torch": torch.__version__, "hardware": kind}


def provenance(device: torch.device) -> dict[str, str]:
    """Hardware, versions and commit. Call it before the work: a commit may be made meanwhile."""
    found = origin(device) | {"python": platform.python_version()}
    if device.type == "cpu":
        found["hardware"] = f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
    return found
