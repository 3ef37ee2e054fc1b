"""One step of the gated recurrent unit. h: state, r: reset gate, z: update gate, c: candidate."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.algebra import add, coherent, lerp, product
from spgru.moments import Value
from spgru.recurrent.scan import Neurons, Step, split_last

__all__ = ["gru_step", "gru_step_reset_before", "make_gru_step"]


def gru_step(
    inputs: Value,
    state: tuple[Value],
    hidden: Affine,
    family: Family,
    rule: Rule,
    coherence: Tensor | None = None,
) -> Neurons[Value]:
    """The GRU of `torch.nn` and cuDNN, which resets after the product with W.

        r, z = sigmoid(inputs_rz + W_rz h + b_rz)
        c    = tanh(inputs_c + r * (W_c h + b_c))
        h'   = (1 - z) * c + z * h

    Moments are exact but for the independence of r, z, c and h among each other and of the units.

    Args:
        inputs: (*batch, 3 H), the products with x for r, z and c, bias included
        state: (h,), each (*batch, H)
        hidden: H -> 3 H
        coherence: (H,), how far c goes along with h; see `spgru.functional.algebra.coherent`
    """
    (h,) = state
    size = h.shape[-1]
    inputs_rz, inputs_c = split_last(inputs, [2 * size, size])
    hidden_rz, hidden_c = split_last(hidden(h), [2 * size, size])
    r, z = split_last(family.gate(add(inputs_rz, hidden_rz), rule), [size, size])
    c = family.candidate(add(inputs_c, product(r, hidden_c)), rule)
    state_after = coherent(lerp(c, h, z, rule), z, h, coherence)
    return {"r": r, "z": z, "candidate": c, "state": state_after}


def gru_step_reset_before(
    inputs: Value,
    state: tuple[Value],
    hidden_rz: Affine,
    hidden_c: Affine,
    family: Family,
    rule: Rule,
    coherence: Tensor | None = None,
) -> Neurons[Value]:
    """The GRU of the SP-GRU paper, which resets the state before the product with W.

        r, z = sigmoid(inputs_rz + W_rz h + b_rz)
        c    = tanh(inputs_c + W_c (r * h) + b_c)
        h'   = (1 - z) * c + z * h

    Args:
        inputs: (*batch, 3 H), the products with x for r, z and c, bias included
        state: (h,), each (*batch, H)
        hidden_rz: H -> 2 H
        hidden_c: H -> H
        coherence: as of `gru_step`
    """
    (h,) = state
    size = h.shape[-1]
    inputs_rz, inputs_c = split_last(inputs, [2 * size, size])
    r, z = split_last(family.gate(add(inputs_rz, hidden_rz(h)), rule), [size, size])
    c = family.candidate(add(inputs_c, hidden_c(product(r, h))), rule)
    state_after = coherent(lerp(c, h, z, rule), z, h, coherence)
    return {"r": r, "z": z, "candidate": c, "state": state_after}


def make_gru_step(
    hidden: Affine, size: int, reset_after: bool, family: Family, rule: Rule
) -> Step[Any]:
    """Either GRU with the weights `hidden`, H -> 3 H, of a state of `size` units."""
    if reset_after:
        return partial(
            gru_step, hidden=hidden, family=family, rule=rule, coherence=hidden.coherence
        )
    return partial(
        gru_step_reset_before,
        hidden_rz=hidden.rows(0, 2 * size),
        hidden_c=hidden.rows(2 * size, 3 * size),
        family=family,
        rule=rule,
        coherence=hidden.coherence,
    )
