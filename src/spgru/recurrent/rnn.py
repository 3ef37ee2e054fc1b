"""One step of the plain recurrent network."""

from __future__ import annotations

from typing import Literal

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.algebra import add
from spgru.functional.rectified import relu
from spgru.moments import Value
from spgru.recurrent.scan import Neurons

__all__ = ["rnn_step"]


def rnn_step(
    inputs: Value,
    state: tuple[Value],
    hidden: Affine,
    nonlinearity: Literal["tanh", "relu"],
    family: Family,
    rule: Rule,
) -> Neurons[Value]:
    """The Elman network of `torch.nn`: h' = tanh(inputs + W h + b), or relu.

    Args:
        inputs: (*batch, H), the product with x, bias included
        state: (h,), (*batch, H)
        hidden: H -> H
    """
    (h,) = state
    summed = add(inputs, hidden(h))
    return {"state": relu(summed) if nonlinearity == "relu" else family.candidate(summed, rule)}
