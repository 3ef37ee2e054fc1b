"""Trained networks that come with the package, by name: `load_model("two-digits-conv")`."""

from __future__ import annotations

from pathlib import Path

from spgru.training.checkpoint import CheckpointError

__all__ = ["WEIGHTS", "find_weights", "packaged_names"]

WEIGHTS = Path(__file__).parents[1] / "weights"
"""Exported files; README.md there says what each must come with."""


def packaged_names() -> list[str]:
    """Names of the networks that come with the package."""
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors"))


def find_weights(source: str | Path) -> Path:
    """`source` itself where there is such a file or folder, else the packaged network's file.

    Raises:
        CheckpointError: neither is there; the sentence lists the packaged networks.
    """
    path = Path(source)
    if path.exists():
        return path
    names = packaged_names()
    if str(path) in names:
        return WEIGHTS / f"{path}.safetensors"
    listed = f", or the name of a packaged network ({', '.join(names)})" if names else ""
    raise CheckpointError(
        f"{path} does not exist; give the folder of a run, a checkpoint or an exported file{listed}"
    )
