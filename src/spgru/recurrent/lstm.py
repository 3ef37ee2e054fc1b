"""One step of the long short-term memory. i, f, o: input, forget and output gate."""

from __future__ import annotations

from torch import Tensor

from spgru.families import Family
from spgru.functional import Affine, Rule
from spgru.functional.algebra import add, coherent, product
from spgru.moments import Value, cat
from spgru.recurrent.scan import Neurons, split_last

__all__ = ["lstm_step"]


def lstm_step(
    inputs: Value,
    state: tuple[Value, Value],
    hidden: Affine,
    projection: Affine | None,
    family: Family,
    rule: Rule,
    coherence: Tensor | None = None,
) -> Neurons[Value]:
    """The LSTM of `torch.nn`, with or without projection.

        i, f, o = sigmoid(inputs_ifo + W_ifo h + b_ifo)
        g       = tanh(inputs_g + W_g h + b_g)
        cell'   = f * cell + i * g
        h'      = o * tanh(cell')          times W_hr where there is a projection

    Moments are exact but for the independence of gates and states among each other and of units.

    Args:
        inputs: (*batch, 4 H), the products with x in the order i, f, g, o, bias included
        state: (h, cell), (*batch, H or projected size) and (*batch, H)
        hidden: H or projected size -> 4 H
        projection: H -> projected size
        coherence: (H,), how far i * g goes along with the cell; see
            `spgru.functional.algebra.coherent`
    """
    h, cell = state
    size = cell.shape[-1]
    summed = add(inputs, hidden(h))
    summed_if, summed_g, summed_o = split_last(summed, [2 * size, size, size])
    gates = family.gate(cat([summed_if, summed_o], -1), rule)
    i, f, o = split_last(gates, [size, size, size])
    g = family.candidate(summed_g, rule)
    new_cell = coherent(add(product(f, cell), product(i, g)), f, cell, coherence)
    new_h = product(o, family.candidate(new_cell, rule))
    if projection is not None:
        new_h = projection(new_h)
    return {"i": i, "f": f, "o": o, "candidate": g, "state": new_h, "cell": new_cell}
