"""Factors by level in one launch against torch's operations; without a GPU, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spgru.nn.scale import Scale

pytest.importorskip("triton")
from spgru.nn.kernels.level import scale_by_level

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def scale_of(time: int, steps: int, powers: int, limited: bool) -> Scale:
    def form(values: torch.Tensor) -> torch.Tensor:
        return values.reshape([*[1] * time, -1]).to(DEVICE)

    low, high = (form(limit * torch.ones(powers)) if limited else None for limit in (0.3, 0.8))
    return Scale(form(torch.rand(steps) + 0.5), form(torch.rand(powers) - 0.5), low=low, high=high)


def in_one_launch(scale: Scale, var: torch.Tensor) -> Any:
    assert scale.power is not None
    time = scale.factor.ndim - 1
    return scale_by_level(var, scale.factor, scale.power, scale.low, scale.high, time)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize(("steps", "powers"), [(4, 4), (2, 2), (1, 1), (4, 1)])
@pytest.mark.parametrize("limited", [False, True])
def test_one_launch_is_the_scale(time: int, steps: int, powers: int, limited: bool) -> None:
    """More steps than factors, too; a row of several blocks, and one that is no power of 2."""
    scale = scale_of(time, steps, powers, limited)
    for features in ((5, 3), (37,), (4100,)):
        var = 2 * torch.rand(4, 3, *features, device=DEVICE) * torch.rand(4, 3, device=DEVICE)[
            (..., *[None] * len(features))
        ]  # fmt: skip
        var[0, 1] = 0
        if time == 1:
            var = var.transpose(0, 1)
        expected = scale._replace(**{
            name: value.double() for name, value in scale._asdict().items() if value is not None
        })(var.double())  # fmt: skip
        found = in_one_launch(scale, var)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=0)


def test_nan_stays_in_its_row() -> None:
    scale = scale_of(0, 2, 2, limited=True)
    var = torch.rand(2, 3, 6, device=DEVICE)
    var[0, 1, 2] = float("nan")
    found = in_one_launch(scale, var)
    assert found[0, 1].isnan().all()
    assert int(found.isnan().sum()) == 6
    assert torch.equal(found.isnan(), scale(var).isnan())


def test_nothing_to_scale() -> None:
    scale = scale_of(0, 2, 2, limited=False)
    assert in_one_launch(scale, torch.zeros(2, 0, 5, device=DEVICE)).shape == (2, 0, 5)


@pytest.mark.skipif(DEVICE == "cpu", reason="a launch that is chosen needs a GPU")
def test_the_launch_is_taken_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where gradients or a compiler need torch's own operations."""
    taken = []
    monkeypatch.setattr(
        "spgru.nn.kernels.level.scale_by_level",
        lambda *arguments: taken.append(1) or scale_by_level(*arguments),
    )
    scale, var = scale_of(0, 2, 2, limited=True), torch.rand(2, 3, 6, device=DEVICE)
    found = scale(var)
    assert len(taken) == 1
    learning = var.clone().requires_grad_()
    scale(learning).sum().backward()
    assert learning.grad is not None
    torch.testing.assert_close(found, scale(learning).detach())
    scale(var.double())
    scale._replace(own=torch.zeros(6, device=DEVICE))(var)
    assert len(taken) == 1
