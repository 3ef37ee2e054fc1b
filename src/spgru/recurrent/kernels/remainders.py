"""The variance that a step's first order leaves, as a form of the gradients that come into the step.

Between its products with W a step acts unit by unit. So the gradient of an output by the mean of
any number inside the step is linear in the gradients that come in (by mean and variance of the new
state, and of an LSTM's new cell), and the remainders of all its operations (see
`spgru.functional.remainder`), each times the square of its gradient, add up to a quadratic form of
them: for every unit a few coefficients, computed once for all outputs. They come from the reference
itself, run for all steps at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgru.functional.remainder import Remainder, noting_remainders
from spgru.moments import Moments, unobserved
from spgru.recurrent.cell import Cell

__all__ = ["evaluate_forms", "remainder_forms"]


def remainder_forms(
    cell: Cell, x: Moments, p: Moments, state: tuple[Moments, ...], product_var: Tensor
) -> Tensor:
    """(pairs, rows, H): coefficients of the products of two of the gradients that come in.

    Args:
        x: (rows, gates H), the products with the input
        p: (rows, gates H), those with the state, bias included
        state: (rows, H) each, before the step
        product_var: (rows, gates H), the remainder of the products with the state
    """
    size = state[0].shape[-1]
    with torch.enable_grad(), unobserved(), noting_remainders() as found:
        p = Moments(p.mean.detach().requires_grad_(), p.var)
        stand_in: Any = lambda _: p  # noqa: E731
        neurons = cell.equation(stand_in)(x, state)
        names = ("state", "cell")[: len(state)]
        results = [part for name in names for part in neurons[name]]
        sources = [Remainder(p.mean, product_var), *found]
        slopes = [
            torch.autograd.grad(
                result.sum(), [source.mean for source in sources], retain_graph=True,
                materialize_grads=True,
            )
            for result in results
        ]  # fmt: skip
    forms = []
    for i, first in enumerate(slopes):
        for j, second in enumerate(slopes[i:], i):
            parts = [
                (source.var * a * b).unflatten(-1, (-1, size)).sum(-2)
                for source, a, b in zip(sources, first, second, strict=True)
            ]
            forms.append((1 if i == j else 2) * torch.stack(parts).sum(0))
    return torch.stack(forms)


def evaluate_forms(forms: Tensor, incoming: list[Tensor]) -> Tensor:
    """(n, K): the variance of each output, from gradients (n, K, H) that come in."""
    total: Tensor | float = 0.0
    pairs = iter(forms)
    for i, first in enumerate(incoming):
        for second in incoming[i:]:
            total = total + (next(pairs).unsqueeze(1) * first * second).sum(-1)
    assert isinstance(total, Tensor)
    return total
