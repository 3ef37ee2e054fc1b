"""What all scripts here share: where results go and what they were measured on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from spgru.runtime.provenance import provenance

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "accuracy" / "results"


# Asked before anything is measured: a commit made meanwhile is not the one that ran.
STARTED = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def save(name: str, command: str, result: Any, output: Path | None = None) -> None:
    """Write accuracy/results/NAME.json, or `output`. What holds numbers only is one line."""
    path = RESULTS / f"{name}.json" if output is None else output
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": command, **STARTED, "result": result}, indent=1)
    innermost = r"[\[{][^\[\]{}]*[\]}]"
    text = re.sub(innermost, lambda match: " ".join(match[0].split()), text)
    path.write_text(text + "\n")


def publish(document: str, block: str, text: str) -> None:
    """Replace what stands between the markers of `block` in a document."""
    path = ROOT / document
    pattern = rf"(<!-- {block} -->\n).*?(<!-- end {block} -->)"
    updated, count = re.subn(
        pattern, lambda match: match[1] + text + "\n" + match[2], path.read_text(), flags=re.S
    )
    if count != 1:
        raise SystemExit(f"{document} has {count} blocks named {block!r}, expected one")
    path.write_text(updated)
