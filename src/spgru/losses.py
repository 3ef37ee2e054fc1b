"""`loss`: the objective of a training step in one call."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spgru.checks import check_choice, check_probabilities
from spgru.divergence import kl_divergence
from spgru.families import Prior
from spgru.moments import Moments
from spgru.objectives import expected_softplus

__all__ = ["loss"]

Kind = Literal["elbo", "nll"]
Likelihood = Literal["gaussian", "bernoulli", "categorical"]


def loss(
    output: Moments,
    target: Tensor,
    model: nn.Module | None = None,
    *,
    kind: Kind = "elbo",
    data_size: float | None = None,
    kl_weight: float = 1.0,
    step: int | None = None,
    warmup: int = 0,
    prior: Prior | None = None,
    likelihood: Likelihood = "gaussian",
) -> Tensor:
    """What to minimise, a scalar in nats for each entry of the target.

        loss = spgru.loss(model(x), y, model, data_size=y_train.numel())
        loss = spgru.loss(model(x), y, model, data_size=y_train.numel(), step=step, warmup=1000)
        loss = spgru.loss(model(x), y, kind="nll")

    `"elbo"` is the negative evidence lower bound: the negative log likelihood, plus the divergence
    of all random weights of `model` from their prior over the number of targets in the training
    data. `"nll"` is the first part alone.

    - `likelihood="gaussian"`: -log N(target; output.mean, output.var), noise that the model adds
      included.
    - `"bernoulli"`: `output` are logits, `target` numbers from 0 to 1; the expected cross entropy
      over the logits' distribution.
    - `"categorical"`: `output` (*shape, classes) are logits, `target` (*shape) integers; the bound
      log sum exp(mean + var / 2) - mean of the class, which the expected cross entropy is below.

    Args:
        output: what the model gives
        target: of its shape; of classes one dimension less
        model: whose random weights the divergence is of
        data_size: entries of the targets in the whole training data, as `y_train.numel()`
        kl_weight: factor on the divergence; 1 is the bound
        step: steps done so far, for `warmup`
        warmup: steps over which the weight of the divergence rises from 0 to `kl_weight`
        prior: by default Gaussian with standard deviation 1 / sqrt(inputs of a weight)
        likelihood: of the target
    """
    check_choice("kind", kind, get_args(Kind))
    check_choice("likelihood", likelihood, get_args(Likelihood))
    if not isinstance(output, Moments):
        raise TypeError(f"output must be Moments, got {type(output).__name__}; pass model(x)")
    fit = _nll(output, target, likelihood)
    if kind == "nll":
        return fit
    weight = _kl_weight(kl_weight, step, warmup)
    if model is None or data_size is None or not data_size > 0:
        raise ValueError(
            "kind='elbo' needs model=, whose weights the divergence is of, and data_size=, the "
            "entries of all training targets (y_train.numel()); or use kind='nll'"
        )
    # Left out rather than multiplied by 0: of certain weights it is infinite.
    if weight == 0:
        return fit
    prior = Prior("gaussian", std=1.0) if prior is None else prior
    return fit + weight / data_size * kl_divergence(model, prior)


def _nll(output: Moments, target: Tensor, likelihood: Likelihood) -> Tensor:
    expected = output.shape[:-1] if likelihood == "categorical" else output.shape
    if target.shape != expected:
        raise ValueError(
            f"target has shape {tuple(target.shape)} but the output {tuple(output.shape)}; with "
            f"likelihood={likelihood!r} it must have {tuple(expected)}"
        )
    if likelihood == "gaussian":
        return -output.log_prob(target).mean()
    if likelihood == "bernoulli":
        check_probabilities("target", target)
        return (expected_softplus(output) - target * output.mean).mean()
    if target.is_floating_point():
        raise TypeError(f"target has dtype {target.dtype} but must be classes; use target.long()")
    chosen = output.mean.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(output.mean + 0.5 * output.var, -1) - chosen).mean()


def _kl_weight(kl_weight: float, step: int | None, warmup: int) -> float:
    if not kl_weight >= 0 or warmup < 0 or (step or 0) < 0:
        raise ValueError(
            f"kl_weight, warmup and step must not be negative, got {kl_weight}, {warmup} and {step}"
        )
    if warmup == 0:
        return kl_weight
    if step is None:
        raise ValueError("warmup= counts steps; pass step=, the number of steps done so far")
    return kl_weight * min(1.0, step / warmup)
