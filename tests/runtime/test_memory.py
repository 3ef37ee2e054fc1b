from __future__ import annotations

import torch

from spgru.runtime.memory import peak_bytes


def test_the_peak_counts_what_is_alive_at_once() -> None:
    before = torch.zeros(10_000)

    def work() -> None:
        x = torch.ones(1000)  # 4,000 bytes
        y = x + 1  # 8,000
        del x
        z = (y * 2).view(10, 100)  # 8,000, and the view none
        y.add_(1)
        before.add_(1)
        del y
        w = torch.ones(1500)  # z and w, 10,000
        assert len(z) < len(w)

    assert peak_bytes(work, torch.device("cpu")) == 10_000
