from __future__ import annotations

import pytest
import torch

from spgru.studies.guesses import least_error, measure_guesses, simple_guesses
from spgru.studies.sequences import Deviation, controlled_pairs


def test_guesses() -> None:
    seen, training = torch.rand(3, 2, 4, 4), torch.rand(5, 7, 4, 4)
    average, last = simple_guesses(seen, training).values()
    assert average.shape == last.shape == (5, 2, 4, 4)
    torch.testing.assert_close(average.mean[4, 1], training[4].mean(0))
    assert torch.equal(last.mean[4, 1], seen[2, 1])
    assert not bool(average.var.any())


def test_errors_of_the_guesses(tiny) -> None:
    pairs = controlled_pairs(tiny(), Deviation("angle", 20.0), 3)
    average, last = measure_guesses(tiny(), pairs)
    again = (pairs.after - pairs.seen[-1]).double().square().sum((0, 2, 3)).mean() / 10
    assert last["error"] == pytest.approx(again.item())
    assert least_error({"guesses": [last, average]}) == average["error"] < last["error"]
