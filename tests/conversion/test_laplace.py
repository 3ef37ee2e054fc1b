"""Variances from data: against the analytic posterior, and against gradients one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spgru
from spgru.nn.weight import named_weights

PRIOR = 2.0


def variances(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight.moments().var.detach() for name, weight in named_weights(module)}


def line(count: int = 200) -> tuple[nn.Linear, Tensor, Tensor]:
    """A fitted linear regression with two outputs."""
    x = torch.randn(count, 3, dtype=torch.float64) * torch.tensor([1.0, 0.1, 3.0])
    y = x @ torch.randn(3, 2).double() + torch.tensor([0.1, 0.5]) * torch.randn(count, 2).double()
    model, design = nn.Linear(3, 2).double(), torch.cat([x, torch.ones(count, 1).double()], 1)
    solution = torch.linalg.lstsq(design, y).solution
    model.weight.data, model.bias.data = solution[:3].T.contiguous(), solution[3]
    return model, x, y


def test_linear_regression_has_the_curvature_of_its_posterior() -> None:
    model, x, y = line()
    twin = spgru.convert(model, data=[(x[:70], y[:70]), (x[70:], y[70:])], prior_precision=PRIOR)
    noise = (model(x) - y).square().mean(0).detach()
    # The posterior's precision is X'X / noise + prior, whose diagonal this is.
    found = variances(twin)
    expected = 1 / (x.square().sum(0) / noise[:, None] + PRIOR)
    torch.testing.assert_close(found["weight"], expected)
    torch.testing.assert_close(found["bias"], 1 / (len(x) / noise + PRIOR))
    torch.testing.assert_close(twin(x).mean, model(x))
    near, far = twin(x).var.mean(), twin(10 * x).var.mean()
    assert far > 10 * near


def test_strength_of_the_prior_gives_the_variance_of_the_whole_posterior() -> None:
    """At the data, on average: with independent inputs the diagonal is nearly the whole."""
    model, x, y = line(400)
    twin = spgru.convert(model)
    report = spgru.laplace(twin, [(x, y)])
    assert report.samples == 400
    torch.testing.assert_close(report.noise_var, (model(x) - y).square().mean(0).detach())
    assert report.determined is not None
    assert 7.5 < report.determined <= 8  # weights, all determined well
    leverage = (twin(x).var / report.noise_var).sum()
    assert 0.9 * report.determined < leverage <= 1.01 * report.determined


class Forecaster(nn.Module):
    def __init__(self, outputs: int, way: str = "") -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, outputs)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        x = x.clone()
        if self.way == "branches" and bool((x > 100).any()):
            x = x / 100
        return self.head(self.lstm(x)[0][:, -1])


@pytest.mark.parametrize("way", ["", "branches"])
def test_curvature_of_a_recurrent_network(way: str) -> None:
    """Against torch's own gradients of torch's own network, sample by sample."""
    model, x, y = Forecaster(2, way).double(), torch.randn(5, 6, 1).double(), torch.zeros(5, 2)
    twin = spgru.convert(model, data=[(x, y.double())], prior_precision=PRIOR)
    noise = model(x).square().mean(0).detach()
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in x:
        for k in range(2):
            grads = torch.autograd.grad(model(row[None])[0, k], list(model.parameters()))
            for name, grad in zip(total, grads, strict=True):
                total[name] += grad.square() / noise[k]
    for name, var in variances(twin).items():
        torch.testing.assert_close(var, 1 / (total[name] + PRIOR))


def test_many_outputs_are_right_on_average() -> None:
    model, x = nn.Linear(3, 40).double(), torch.randn(300, 3).double()
    y = model(x).detach() + torch.randn(300, 40).double()
    twin = spgru.convert(model, data=[(x, y)], prior_precision=PRIOR)
    noise = (model(x) - y).square().mean(0).detach()
    expected = 1 / (x.square().sum(0) / noise[:, None] + PRIOR)
    ratio = variances(twin)["weight"] / expected
    assert (ratio - 1).abs().max() < 0.5
    assert (ratio.mean() - 1).abs() < 0.03


def test_noise_of_the_network_itself() -> None:
    """Both parts of a head: the mean by its noise, the log-variance by half a square."""
    x = torch.randn(100, 3).double()
    head = spgru.nn.GaussianHead(3, 1, dtype=torch.float64)
    report = spgru.laplace(head, [(x, torch.randn(100, 1).double())], prior_precision=PRIOR)
    assert report.noise_var is None
    noise = (x @ head.log_var.weight.T + head.log_var.bias).exp().detach()
    found = variances(head)
    torch.testing.assert_close(
        found["value.weight"], 1 / ((x.square() / noise).sum(0, keepdim=True) + PRIOR)
    )
    torch.testing.assert_close(
        found["log_var.weight"], 1 / (0.5 * x.square().sum(0, keepdim=True) + PRIOR)
    )


def test_loss_of_a_classifier() -> None:
    """The empirical Fisher information, and words that were never read stay uncertain."""
    model = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(6, 3)).double()
    x, y = torch.randint(0, 5, (40, 2)), torch.randint(0, 3, (40,))
    loss = nn.CrossEntropyLoss(reduction="sum")
    twin = spgru.convert(model, data=[(x, y)], loss=loss, prior_precision=PRIOR)
    total = torch.zeros_like(model[2].weight)
    for row, target in zip(x, y, strict=True):
        (grad,) = torch.autograd.grad(loss(model(row[None]), target[None]), [model[2].weight])
        total += grad.square()
    torch.testing.assert_close(variances(twin)["2.weight"], 1 / (total + PRIOR))
    rows = twin[0].weight_moments("weight").var
    torch.testing.assert_close(rows[5], torch.full_like(rows[5], 1 / PRIOR))
    assert (rows[:5] < 1 / PRIOR).any()
    searched = spgru.convert(model, data=[(x, y)], loss=loss)
    assert torch.isfinite(searched(x).var).all()


def test_trained_network_keeps_its_fit_and_is_less_certain_elsewhere() -> None:
    x = 2 * torch.rand(200, 1) - 1
    y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
    model = nn.Sequential(
        nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    twin = spgru.convert(model, data=batches, example=x[:2])
    fit = (twin(x).mean - y).square().mean()
    assert fit < 1.02 * loss
    assert twin(4 * torch.sign(x)).var.mean() > 4 * twin(x).var.mean()


def test_samples_along_the_second_dimension() -> None:
    rnn, x = nn.GRU(2, 3).double(), torch.randn(5, 7, 2).double()
    y = torch.randn(5, 7, 3).double()
    first = nn.GRU(2, 3, batch_first=True).double()
    first.load_state_dict(rnn.state_dict())
    found = spgru.convert(rnn, data=[(x, y)], prior_precision=PRIOR, batch_dim=1)
    flipped = [(x.transpose(0, 1), y.transpose(0, 1))]
    expected = spgru.convert(first, data=flipped, prior_precision=PRIOR)
    for a, b in zip(variances(found).values(), variances(expected).values(), strict=True):
        torch.testing.assert_close(a, b)


def test_steps_of_time_are_not_taken_for_samples() -> None:
    rnn, x, y = nn.GRU(2, 3), torch.randn(5, 7, 2), torch.randn(5, 7, 3)
    with pytest.raises(ValueError, match="along dimension 0, which is time, it seems; pass batch_"):
        spgru.convert(rnn, data=[(x, y)], prior_precision=PRIOR)
    single = [(x[:, :1], y[:, :1])]  # one sample, which nothing else could depend on
    spgru.convert(rnn, data=single, prior_precision=PRIOR, batch_dim=1)


def test_weights_that_the_likelihood_does_not_depend_on_are_named() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_var = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.mean(x), self.log_var(x)

    data = [(torch.randn(9, 2), torch.randn(9, 1))]
    with pytest.warns(UserWarning, match="not depend on log_var.weight, log_var.bias, which keep"):
        spgru.convert(TwoHeads(), data=data, prior_precision=PRIOR)


def test_arguments_are_checked() -> None:
    twin, x = spgru.Linear(2, 1), torch.randn(3, 2)
    with pytest.raises(TypeError, match="pass a DataLoader or a list"):
        spgru.laplace(twin, iter([(x, x)]))
    with pytest.raises(ValueError, match="data has no batches"):
        spgru.laplace(twin, [])
    with pytest.raises(ValueError, match=r"target has shape \(3, 2\) but the output \(3, 1\)"):
        spgru.laplace(twin, [(x, x)])
    with pytest.raises(TypeError, match="pairs"):
        spgru.laplace(twin, [x])
    with pytest.raises(ValueError, match="prior_precision must be positive"):
        spgru.laplace(twin, [(x, x)], prior_precision=0.0)
    with pytest.raises(ValueError, match="holds no random weights"):
        spgru.laplace(nn.Linear(2, 1), [(x, x)])
    with pytest.raises(ValueError, match="not stored by its mean"):
        spgru.laplace(spgru.Linear(2, 1, parameterization="natural"), [(x, x)])


@pytest.mark.parametrize("place", ["input", "target"])
def test_missing_values_are_named(place: str) -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    (x if place == "input" else y)[4, 1] = math.nan
    data = [(x[:3], y[:3]), (x[3:], y[3:])]
    with pytest.raises(ValueError, match=f"the {place} of batch 2 of data holds NaN or infinite"):
        spgru.convert(nn.Linear(3, 2), data=data)
    text = "input of batch 2" if place == "input" else "gradients of the loss"
    with pytest.raises(ValueError, match=text):
        spgru.laplace(spgru.Linear(3, 2), data, loss=nn.MSELoss(reduction="sum"))


def test_weights_of_a_layer_used_twice_stay_parameters() -> None:
    """Both uses count in the curvature, and the layer can be trained afterwards."""
    first = spgru.Linear(3, 3, bias=False)
    model = nn.Sequential(first, first)
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    spgru.laplace(model, [(x, y)], prior_precision=1.0)
    assert isinstance(first.weight, nn.Parameter)

    def outputs(weight: Tensor) -> Tensor:
        return x @ weight.T @ weight.T

    slopes = torch.autograd.functional.jacobian(outputs, first.weight.detach())
    noise = (y - outputs(first.weight.detach())).square().mean(0)
    curvature = (slopes.square() / noise[:, None, None]).sum((0, 1))
    var = first.weight_moments("weight").var.detach()
    torch.testing.assert_close(var, 1 / (curvature + 1), rtol=1e-4, atol=0)
