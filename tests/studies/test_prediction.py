from __future__ import annotations

import numpy as np
import pytest
import torch

from spgru.baselines import MCDropoutLSTM
from spgru.models import ModelConfig, Predictor
from spgru.moments import Moments
from spgru.studies.prediction import compare, parameters, predict

SIZE = {"height": 4, "width": 4}


def test_compare_sums_pixels_and_averages_frames() -> None:
    mean, var, target = torch.rand(3, 2, 4, 4), torch.rand(3, 2, 4, 4), torch.rand(3, 2, 4, 4)
    found = compare(Moments(mean, var), target)
    m, v, y = (x.double().numpy() for x in (mean, var, target))
    for b in range(2):
        assert found.variance[b].item() == pytest.approx(v[:, b].sum() / 3)
        assert found.error[b].item() == pytest.approx(((m - y)[:, b] ** 2).sum() / 3)
        assert found.ink[b].item() == pytest.approx(m[:, b].sum() / 3)
        entropy = -(y * np.log(m) + (1 - y) * np.log(1 - m))[:, b].sum() / 3
        assert found.nats[b].item() == pytest.approx(entropy, rel=1e-6)


def test_a_batch_is_asked_in_parts() -> None:
    model, seen = Predictor(ModelConfig(hidden_size=4, **SIZE)), torch.rand(2, 12, 4, 4)
    whole, parts = model.predict(seen), predict(model, seen, draws=2)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.var, whole.var)


def test_sampling_gives_the_same_draws_at_every_call() -> None:
    model, seen = MCDropoutLSTM(4, **SIZE), torch.rand(2, 7, 4, 4)
    first, again = (predict(model, seen, draws=3) for _ in range(2))
    assert torch.equal(first.var, again.var)
    assert bool((first.var > 0).any())
    assert not torch.equal(first.var, predict(model, seen, draws=4).var)


def test_parameters() -> None:
    assert parameters(torch.nn.Linear(3, 2)) == 8
