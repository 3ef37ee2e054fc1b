"""Directions in weight space that move a module's outputs most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from spgru.moments import Moments
from spgru.moments.nested import is_moments
from spgru.response.directions import ModuleWeights, taking

__all__ = ["principal_directions"]

_SAMPLES = 6
"""Random combinations of the outputs for each direction that is asked for."""


def principal_directions(
    weights: ModuleWeights, call: Callable[[Any, Any], Any], steps: list[Any], count: int, seed: int
) -> Tensor:
    """(count, entries of all weights), orthonormal, in standard deviations of the weights.

    With J the Jacobian of all outputs, each in its closed-form standard deviation, by all weights,
    each in its own, these are nearly the first right singular vectors of J. Gradients of random
    combinations of the outputs, J' w, have covariance J' J: their principal components are taken.
    """
    with torch.enable_grad():
        means = [moments.mean.detach().requires_grad_() for moments in weights.moments]
        values = weights.changed(means)
        state, outputs, scales = None, [], []
        with taking(values):
            for x_t in steps:
                y, state = call(x_t, state)
                for leaf in pytree.tree_leaves(y, is_leaf=is_moments):
                    if isinstance(leaf, Moments):
                        outputs.append(leaf.mean.flatten())
                        scales.append(leaf.var.detach().flatten())
        var = torch.cat(scales)
        output = torch.cat(outputs) * torch.where(var > 0, var, torch.inf).rsqrt()
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(_SAMPLES * count):
        combination = torch.randn(len(output), generator=generator).to(output)
        grads = torch.autograd.grad(
            output, means, combination, retain_graph=True, materialize_grads=True
        )
        parts = [grad * own.std for grad, own in zip(grads, weights.moments, strict=True)]
        rows.append(torch.cat([part.flatten() for part in parts]))
    samples = torch.stack(rows)
    # By the small matrix of products: there are far fewer samples than weights.
    _, vectors = torch.linalg.eigh(samples @ samples.T)
    basis: Tensor = torch.linalg.qr((vectors[:, -count:].T @ samples).T).Q
    return basis.T.contiguous()
