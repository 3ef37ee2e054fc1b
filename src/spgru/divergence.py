"""Distance of a network's weights from a prior."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spgru.families import Prior, get
from spgru.nn.weight import named_weights

__all__ = ["kl_divergence"]


def kl_divergence(module: nn.Module, prior: Prior) -> Tensor:
    """KL(weights || prior), summed over all random weights of `module`. A scalar, in nats.

    Infinite where a weight has variance 0, except pruned weights, which do not count. For an ELBO
    per sequence divide by the number of sequences.
    """
    family = get(prior.family)
    terms = []
    for name, weight in named_weights(module):
        if weight.family.name != family.name:
            raise ValueError(
                f"{name} is {weight.family.name} but the prior is {family.name}; "
                "the divergence is closed form within one family only"
            )
        q = weight.random_moments()
        terms.append(family.kl(q, prior.moments(weight.fan_in, q)).sum())
    if not terms:
        raise ValueError(
            f"module ({type(module).__name__}) holds no random weights; build it from spgru layers"
        )
    return torch.stack(terms).sum()
