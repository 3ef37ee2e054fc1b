"""Muon against that of torch, and against what orthogonal means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spgru import GRU
from spgru.models import ConvGRUCell, ConvLSTM
from spgru.training.config import OptimizerConfig
from spgru.training.muon import Muon, orthogonal
from spgru.training.optimizer import make_optimizer


@pytest.mark.parametrize("shape", [(1, 20, 50), (3, 50, 20), (2, 16, 16)], ids=str)
def test_all_directions_count_alike(shape: tuple[int, ...]) -> None:
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    spread = torch.linspace(0.1, 5, right.shape[-2])
    found = orthogonal(left @ (spread[:, None] * right))
    # The same directions, which before counted from 1 to 50.
    values = (left.mT @ found.float() @ right.mT).diagonal(dim1=-2, dim2=-1)
    assert ((values > 0.6) & (values < 1.25)).all()
    assert orthogonal(torch.zeros(shape)).eq(0).all()


def test_it_is_that_of_torch_for_one_matrix() -> None:
    start, options = torch.randn(12, 30), {"lr": 0.01, "weight_decay": 0.1}
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([{"params": [ours], **options}])
    other = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    for _ in range(5):
        gradient = torch.randn(12, 30)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        other.step()
    moved = (theirs - start).abs().max()
    # Eight bits in the iterations, in another order.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05 * moved.item())


def test_gates_are_matrices_of_their_own() -> None:
    together, alone = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(2, 4))
    gradient = torch.randn(6, 4)
    gradient[:2] *= 100  # a loud gate does not silence the others
    with torch.no_grad():
        together[2:4] = alone
    together.grad, alone.grad = gradient, gradient[2:4].clone()
    Muon([{"params": [together], "lr": 0.1, "matrices": 3}]).step()
    Muon([{"params": [alone], "lr": 0.1}]).step()
    torch.testing.assert_close(together[2:4], alone)


def test_it_turns_the_means_between_hidden_units_and_nothing_else() -> None:
    model = nn.ModuleDict(
        {
            "gru": GRU(3, 4, 2),
            "conv": ConvGRUCell(2, 3, 3),
            "conv_lstm": ConvLSTM(2, 3, 2, 3),
            "lstm": nn.LSTM(3, 5),
            "out": nn.Linear(4, 2),
        }
    )
    config = OptimizerConfig("muon", lr=0.01, weight_decay=0.1, rest_rate=0.5, spread_rate=3.0)
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    turned = {
        name: group["matrices"]
        for group in optimizer.param_groups
        for name, parameter in model.named_parameters()
        if "matrices" in group and any(parameter is other for other in group["params"])
    }
    assert turned == {
        "gru.weight_hh_l0": 3, "gru.weight_ih_l1": 3, "gru.weight_hh_l1": 3,
        "conv.weight_hh": 3, "lstm.weight_hh_l0": 4,
        "conv_lstm.cells.0.weight_hh": 4, "conv_lstm.cells.1.weight_ih": 4,
        "conv_lstm.cells.1.weight_hh": 4,
    }  # fmt: skip
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(model.parameters()))
    assert set(optimizer.state) == set(grouped)
    for group in optimizer.param_groups:
        assert group["lr"] == 0.01 * group["factor"]
        assert group["factor"] in ((1.0,) if "matrices" in group else (0.5, 3.0))
