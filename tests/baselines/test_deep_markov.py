"""The deep Markov model: its bound by torch.distributions, its forecast in a solvable case."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from spgru import Moments
from spgru.baselines import DeepMarkovModel
from spgru.baselines.deep_markov import Combiner, Transition
from spgru.functional import sigmoid
from spgru.metrics import cross_entropy_per_frame
from spgru.objectives import Objective


def model_of(height: int = 4, width: int = 3, **options: int) -> DeepMarkovModel:
    return DeepMarkovModel(3, 5, height=height, width=width, dtype=torch.float64, **options)


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_the_bound_by_torch_distributions(beta: float) -> None:
    model, frames = model_of(anneal_steps=0), torch.rand(6, 2, 4, 3).double()
    torch.manual_seed(7)
    loss = model.loss(frames, Objective("elbo", beta=beta))
    torch.manual_seed(7)
    z, posterior, prior = model.infer(frames)
    kl = kl_divergence(Normal(posterior.mean, posterior.std), Normal(prior.mean, prior.std))
    torch.testing.assert_close(loss.kl, kl.sum(-1).mean())
    logits = model.emission(z).view_as(frames)
    nll = F.binary_cross_entropy_with_logits(logits, frames, reduction="none")
    torch.testing.assert_close(loss.nll, nll.sum((-2, -1)).mean())
    torch.testing.assert_close(loss.total, loss.nll + beta * loss.kl)


def test_states_are_drawn_from_the_posterior_and_priors_follow_them() -> None:
    model, frames = model_of(), torch.rand(4, 2, 4, 3).double()
    z, posterior, prior = model.infer(frames, draws=20_000)
    standard = (z - posterior.mean) / posterior.std
    count = standard[0].numel()
    for t in range(4):
        assert abs(standard[t].mean()) < 5 / math.sqrt(count)
        assert abs(standard[t].var() - 1) < 5 * math.sqrt(2 / count)
    for t in range(1, 4):
        again = model.transition(z[t - 1])
        torch.testing.assert_close(prior.mean[t], again.mean)
        torch.testing.assert_close(prior.var[t], again.var)
    start = model.transition(model.start.expand(1, -1))
    torch.testing.assert_close(prior.mean[0, :1], start.mean)


def test_the_posterior_of_a_state_reads_its_frame_and_those_after() -> None:
    model, frames = model_of(), torch.rand(4, 1, 4, 3).double()
    with torch.no_grad():
        model.combiner.lift.weight.zero_()  # forget the last state
    before = model.infer(frames).posterior.mean
    changed = frames.clone()
    changed[1] = 1 - changed[1]
    after = model.infer(changed).posterior.mean
    assert ((before - after).abs().sum((1, 2)) > 0).tolist() == [True, True, False, False]


def test_transition_and_combiner_as_published() -> None:
    transition, combiner = Transition(3, 5).double(), Combiner(3, 5).double()
    z, right = torch.randn(4, 3).double(), torch.randn(4, 5).double()
    got = transition(z)
    assert torch.equal(transition.linear(z), z)
    gate = torch.sigmoid(transition.gate(z))
    proposal = transition.proposal(z)
    torch.testing.assert_close(got.mean, (1 - gate) * z + gate * proposal)
    var = F.softplus(transition.spread(F.relu(proposal)))
    torch.testing.assert_close(got.var, var + 1e-4)
    h = (torch.tanh(combiner.lift(z)) + right) / 2
    torch.testing.assert_close(combiner(z, right).mean, combiner.mean(h))


@torch.no_grad()
def test_the_forecast_of_a_linear_model_is_known() -> None:
    """A random walk shown through a linear emission: the logit is Gaussian at every step."""
    model = model_of()
    model.transition.gate[2].weight.zero_()
    model.transition.gate[2].bias.fill_(-100)
    model.transition.spread.weight.zero_()
    model.transition.spread.bias.fill_(-1.0)
    model.combiner.lift.weight.zero_()
    model.combiner.spread.bias.fill_(-2.0)
    # relu(z + 30) - 30 is the identity as far as z goes
    for k in (0, 2):
        model.emission[k].weight.copy_(torch.eye(5, 3 if k == 0 else 5))
        model.emission[k].bias.fill_(30 if k == 0 else 0)
    readout = model.emission[4]
    readout.bias.sub_(30 * readout.weight.sum(1))
    frames = torch.rand(3, 1, 4, 3).double()
    last = model.infer(frames).posterior[-1]
    step = F.softplus(torch.tensor(-1.0)).double() + 1e-4
    draws = 20_000
    got = model.predict(frames, steps=4, draws=draws)
    bias = model.emission[4].bias + 30 * readout.weight.sum(1)
    for t in range(4):
        z = Moments(last.mean, last.var + (t + 1) * step)
        mean = z.mean @ readout.weight[:, :3].T + bias
        var = z.var @ readout.weight[:, :3].T ** 2
        want = sigmoid(Moments(mean, var)).reshape(1, 4, 3)
        assert ((got.mean[t] - want.mean).abs() < 5 * (want.var / draws).sqrt()).all()
        assert ((got.var[t] - want.var).abs() < 5 * want.var * math.sqrt(2 / draws)).all()


def test_annealing_counts_training_steps_and_is_saved() -> None:
    model, frames = model_of(anneal_steps=4), torch.rand(2, 1, 4, 3).double()
    weights = []
    for _ in range(6):
        weights.append(model.annealing().item())
        model.loss(frames, Objective())
    assert weights == pytest.approx([0.01, 0.2575, 0.505, 0.7525, 1.0, 1.0])
    other = model_of(anneal_steps=4)
    other.load_state_dict(model.state_dict())
    assert other.annealing() == 1
    other.eval().annealed_steps.zero_()
    other.loss(frames, Objective())
    assert other.annealed_steps == 0


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_of_the_bound(cell: str) -> None:
    model = DeepMarkovModel(2, 3, cell, height=2, width=2, dtype=torch.float64)  # type: ignore[arg-type]
    model.eval()
    frames = torch.rand(4, 1, 2, 2).double()
    names, parameters = zip(*model.named_parameters(), strict=True)

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            torch.manual_seed(0)
            return self.model.loss(frames, Objective()).total

    def run(*values: Tensor) -> Tensor:
        weights = {f"model.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(Wrapped(), weights, ())

    values = [p.detach().clone().requires_grad_() for p in parameters]
    assert torch.autograd.gradcheck(run, values, fast_mode=True)


def test_the_deep_markov_model_learns_a_tiny_batch(bars: Tensor) -> None:
    """Within 200 steps to half the score of the best constant frame. Over 3 seeds: up to 0.01."""
    model = DeepMarkovModel(8, 32, anneal_steps=100, height=8, width=8)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        loss = model.loss(bars, Objective("elbo"))
        loss.total.backward()
        optimiser.step()
    constant = bars.mean((0, 1)).expand(6, 2, 8, 8)
    assert loss.nll < 0.5 * cross_entropy_per_frame(constant, bars).mean()
    assert model.predict(bars[:3]).shape == (3, 2, 8, 8)


def test_deep_markov_errors_and_autocast() -> None:
    model = DeepMarkovModel(2, 3, height=4, width=3)
    frames = torch.rand(4, 2, 4, 3)
    with pytest.raises(ValueError, match="objective 'cross_entropy' does not train"):
        model.loss(frames, Objective("cross_entropy"))
    with pytest.raises(ValueError, match="draws must be at least 2"):
        model.predict(frames, draws=1)
    with pytest.raises(ValueError, match="anneal_steps is -1"):
        DeepMarkovModel(2, 3, anneal_steps=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.loss(frames, Objective()).total.backward()
        assert model.predict(frames[:2], draws=3).var.dtype == torch.float32
