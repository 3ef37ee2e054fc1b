from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.fixture
def bars() -> Tensor:
    """(6, 2, 8, 8): an upright bar that moves to the right, and a lying one that rises."""
    frames = torch.zeros(6, 2, 8, 8)
    for t in range(6):
        frames[t, 0, :, t + 1] = 1
        frames[t, 1, 6 - t, :] = 1
    return frames
