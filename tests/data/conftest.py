from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from spgru.data import Layout


@pytest.fixture
def paste():
    """Frames by the obvious slow loop, pixel by pixel: the truth for the renderer."""

    def slow(images: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
        frames, batch, digits, _ = layout.corners.shape
        canvas = np.zeros((frames, batch, 64, 64), dtype=np.uint8)
        for t, b, d in np.ndindex(frames, batch, digits):
            top, left = layout.corners[t, b, d]
            image = images[layout.digits[b, d]]
            for y in range(max(0, -top), min(28, 64 - top)):
                for x in range(max(0, -left), min(28, 64 - left)):
                    old = canvas[t, b, top + y, left + x]
                    canvas[t, b, top + y, left + x] = max(old, image[y, x])
        return canvas

    return slow
