"""The deep Markov model of Krishnan, Shalit and Sontag (2017), "Structured inference networks".

A state z_t moves by p(z_t | z_t-1) and shows itself as a frame by p(x_t | z_t). An inference
network q(z_t | z_t-1, x_t ... x_T) is trained with them on the evidence lower bound.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgru.baselines.common import certain_frames, check_draws, moments_over_draws, shift, to_frames
from spgru.checks import check_choice
from spgru.families import Gaussian
from spgru.models.config import CellName
from spgru.moments import Moments, stack
from spgru.objectives import Loss, Objective, bernoulli_nll, check_target

__all__ = ["Combiner", "DeepMarkovModel", "Inference", "Transition"]

# Added to every variance, since the KL takes its logarithm; small against the initial ones, 0.7.
_LEAST_VARIANCE = 1e-4


def _variance(raw: Tensor) -> Tensor:
    return F.softplus(raw) + _LEAST_VARIANCE


class Transition(nn.Module):
    """p(z_t | z_t-1), between a linear and a nonlinear map by a gate.

        gate = sigmoid(MLP(z)),  proposal = MLP(z)
        mean = (1 - gate) * (A z + a) + gate * proposal
        var  = softplus(B relu(proposal) + b)

    A starts as the identity: a state at first stays where it is.
    """

    def __init__(self, state_size: int, hidden_size: int) -> None:
        super().__init__()

        def two_layers() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(state_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, state_size)
            )

        self.gate, self.proposal = two_layers(), two_layers()
        self.linear = nn.Linear(state_size, state_size)
        self.spread = nn.Linear(state_size, state_size)
        with torch.no_grad():
            nn.init.eye_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, z: Tensor) -> Moments:
        """(N, Z) -> (N, Z)"""
        proposal = self.proposal(z)
        mean = torch.lerp(self.linear(z), proposal, torch.sigmoid(self.gate(z)))
        return Moments(mean, _variance(self.spread(torch.relu(proposal))))


class Combiner(nn.Module):
    """q(z_t | z_t-1, x_t ... x_T) from the last state and the backward network's view of the rest.

    h = (tanh(C z + c) + right) / 2, and mean and variance are linear in h, the latter by softplus.
    """

    def __init__(self, state_size: int, hidden_size: int) -> None:
        super().__init__()
        self.lift = nn.Linear(state_size, hidden_size)
        self.mean = nn.Linear(hidden_size, state_size)
        self.spread = nn.Linear(hidden_size, state_size)

    def forward(self, z: Tensor, right: Tensor) -> Moments:
        """(N, Z), (N, H) -> (N, Z)"""
        h = 0.5 * (torch.tanh(self.lift(z)) + right)
        return Moments(self.mean(h), _variance(self.spread(h)))


class Inference(NamedTuple):
    """States of a sequence, each (T, N, Z)."""

    z: Tensor
    """drawn"""
    posterior: Moments
    """q(z_t | z_t-1, x), given the draw before"""
    prior: Moments
    """p(z_t | z_t-1), given the draw before"""


class DeepMarkovModel(nn.Module):
    """A nonlinear state-space model of frames.

    Args:
        state_size: Z
        hidden_size: units of the inference network, the transition and the emission
        cell: of the backward inference network, `"lstm"` or `"gru"`
        anneal_steps: training steps over which the weight of the divergence grows to 1; a buffer
            counts them, so a checkpoint resumes where it stopped
        anneal_from: that weight at the start
        initial_logit: added to the last bias at the start, see `spgru.models.ModelConfig`
        height: of a frame
        width: of a frame
    """

    annealed_steps: Tensor

    def __init__(
        self,
        state_size: int = 100,
        hidden_size: int = 1024,
        cell: CellName = "lstm",
        *,
        anneal_steps: int = 1000,
        anneal_from: float = 0.01,
        initial_logit: float = 0.0,
        height: int = 64,
        width: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("cell", cell, get_args(CellName))
        if anneal_steps < 0 or not 0 <= anneal_from <= 1:
            raise ValueError(
                f"anneal_steps is {anneal_steps} and anneal_from {anneal_from}; they must be at "
                "least 0, and in [0, 1]"
            )
        self.state_size, self.height, self.width = state_size, height, width
        self.anneal_steps, self.anneal_from = anneal_steps, anneal_from
        pixels = height * width
        self.transition = Transition(state_size, hidden_size)
        self.emission = nn.Sequential(
            nn.Linear(state_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, pixels),
        )
        shift(self.emission.get_parameter("4.bias"), initial_logit)
        self.backward_rnn = (nn.GRU if cell == "gru" else nn.LSTM)(pixels, hidden_size)
        self.combiner = Combiner(state_size, hidden_size)
        self.start = nn.Parameter(torch.zeros(state_size))
        """(Z,): the state before the first frame"""
        self.register_buffer("annealed_steps", torch.zeros((), dtype=torch.int64))
        self.to(device=device, dtype=dtype)

    def infer(
        self, frames: Tensor, draws: int = 1, generator: torch.Generator | None = None
    ) -> Inference:
        """Draw the states of a sequence from the posterior, one after the other.

        Args:
            frames: (T, B, height, width)
            draws: states drawn for every sequence; N = draws * B, draws first
        """
        pixels = certain_frames(frames, self.height, self.width)
        # Backwards, so that the output at t has read x_t to x_T; once for all draws.
        right = self.backward_rnn(pixels.flip(0))[0].flip(0).repeat(1, draws, 1)
        z = self.start.expand(right.shape[1], -1)
        states, posteriors, priors = [], [], []
        for right_t in right.unbind(0):
            priors.append(self.transition(z))
            posteriors.append(self.combiner(z, right_t))
            z = _sample(posteriors[-1], generator)
            states.append(z)
        return Inference(torch.stack(states), stack(posteriors), stack(priors))

    def _logits(self, z: Tensor) -> Tensor:
        """(T, N, Z) -> (T, N, height, width)"""
        return to_frames(self.emission(z), self.height, self.width)

    def annealing(self) -> Tensor:
        """The weight of the divergence now. A scalar in [anneal_from, 1]."""
        progress = self.annealed_steps.to(self.start.dtype) / max(self.anneal_steps, 1)
        if self.anneal_steps == 0:
            return torch.ones_like(progress)
        return (self.anneal_from + (1 - self.anneal_from) * progress).clamp(max=1)

    def loss(self, frames: Tensor, objective: Objective) -> Loss:
        """The negative evidence lower bound per frame, over both halves of the sequence.

        `nll` is that of frames the posterior has seen, not of predicted ones; see `predict`.
        Its divergence, of q(z_t | z_t-1, x) from p(z_t | z_t-1), is weighted by annealing and the
        objective's beta; the weights are plain numbers and have none. In training mode every call
        is a step of the annealing.

        Args:
            frames: (2 T, B, height, width) in [0, 1]
            objective: `"elbo"`, the only one the model has
        """
        if objective.name != "elbo":
            raise ValueError(
                f"objective {objective.name!r} does not train a deep Markov model; use 'elbo'"
            )
        z, posterior, prior = self.infer(frames)
        logits = self._logits(z)
        check_target(logits, frames)
        nll = bernoulli_nll(logits, frames)
        kl = Gaussian().kl(posterior, prior).sum(-1).mean()
        total = nll + objective.beta * self.annealing() * kl
        if self.training:
            self.annealed_steps += 1
        return Loss(total, nll, kl)

    @torch.no_grad()
    def predict(
        self,
        frames: Tensor,
        steps: int | None = None,
        draws: int = 50,
        generator: torch.Generator | None = None,
    ) -> Moments:
        """Pixels of the frames after these, (steps, B, height, width).

        The states of the given frames are drawn from the posterior, those after them from the
        transition; mean and unbiased variance of sigmoid(logit) over the draws.

        Args:
            frames: (T, B, height, width)
            steps: how many; None for as many as were seen
            draws: paths drawn for every sequence
            generator: on the model's device; None for torch's own
        """
        check_draws(draws)
        z = self.infer(frames, draws, generator).z[-1]
        future = []
        for _ in range(len(frames) if steps is None else steps):
            z = _sample(self.transition(z), generator)
            future.append(z)
        return moments_over_draws(self._logits(torch.stack(future)), draws, frames.dtype)


def _sample(moments: Moments, generator: torch.Generator | None) -> Tensor:
    """A draw that gradients pass through."""
    mean, std = moments.mean, moments.std
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + std * noise
