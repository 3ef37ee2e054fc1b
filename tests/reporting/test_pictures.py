from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spgru.moments import Moments
from spgru.reporting.pictures import Line, Panel, Tile, save_frames, save_panels
from spgru.studies.animation import Clip, save_animation


def test_frames_and_panels_are_written(tmp_path: Path) -> None:
    frame = torch.rand(4, 4)
    rows = {"one": [Tile("frame", frame), Tile("uncertainty", frame)]}
    save_frames(tmp_path / "frames.png", ["a", "b"], rows)
    line = Line([1, 2], [1, 2], [0.5, 1.5], [1.5, 2.5])
    save_panels(tmp_path / "panels.png", [[Panel("title", "x", "y", {"model": line})]])
    for name in ("frames.png", "panels.png"):
        with Image.open(tmp_path / name) as image:
            assert image.format == "PNG"
    with pytest.raises(ValueError, match="row 'one' has 2 cells for 1 columns"):
        save_frames(tmp_path / "frames.png", ["a"], rows)


def test_animation(tmp_path: Path) -> None:
    """A frame for every frame; dark while the model still looks on, then its answer."""
    seen, after = torch.zeros(3, 8, 8), torch.zeros(2, 8, 8)
    seen[0] = 1
    answer = Moments(torch.ones(2, 8, 8), torch.full((2, 8, 8), 0.04))
    clip = Clip(seen, after, answer)
    path = tmp_path / "clip.gif"
    save_animation(path, {"first": clip, "second": clip})
    with Image.open(path) as image:
        assert image.n_frames == 5
        assert image.info["duration"] > 0
        brightness = []
        for t in range(5):
            image.seek(t)
            pixels = np.asarray(image.convert("L")).astype(float)
            # Middles of the three columns in the first row, each 24 pixels and a gap wide.
            brightness.append([pixels[26, 90 + 12 + 28 * k] for k in range(3)])
    assert [row[0] > 200 for row in brightness] == [True, False, False, False, False]
    assert [row[1] > 200 for row in brightness] == [False, False, False, True, True]
    assert [row[2] > 100 for row in brightness] == [False, False, False, True, True]
