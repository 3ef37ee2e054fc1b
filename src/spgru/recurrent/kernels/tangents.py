"""One step of a cell with tangents along many directions, by the kernels of a step.

Between its products a step acts unit by unit, so that its derivative is a few coefficients for
every unit, whatever the number of directions: those of its adjoint (`tapped`), read the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgru.functional import Affine
from spgru.functional.products import Matrix
from spgru.moments import Moments
from spgru.recurrent.cell import Cell
from spgru.recurrent.kernels.tapped import step_coefficients

__all__ = ["push_step", "supports"]


def supports(cell: Cell, input_map: Affine, x: Tensor | Moments) -> bool:
    """Whether `push_step` can do this; weights have no gains and are those of Gaussians."""
    from spgru.recurrent.kernels.native import library
    from spgru.recurrent.kernels.native.cells import KERNELS

    return (
        cell.name in KERNELS
        and cell.obstacle is None
        and all(type(own.product) is Matrix for own in (cell.hidden, input_map))
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and library.obstacle() is None
    )


def push_step(
    cell: Cell, x: Moments, x_way: Moments, p: Moments, p_way: Moments, state: tuple[Moments, ...],
    state_way: tuple[Moments, ...],
) -> tuple[tuple[Moments, ...], tuple[Moments, ...]]:  # fmt: skip
    """The state after a step, and its tangents.

    Args:
        x: (rows, gates H), the product with the input
        x_way: (R, rows, gates H), its tangents: those of means in `mean`, of variances in `var`
        p: (rows, gates H), the product with the state, bias included
        state: (rows, H) each
    """
    from spgru.recurrent.kernels.native.cells import KERNELS

    kernels = KERNELS[cell.name]
    rows, size = state[0].shape
    parts = [part.contiguous() for moments in (x, p, *state) for part in moments]
    parts += [None] * (8 - len(parts))  # type: ignore[list-item]
    x_mean, x_var, p_mean, p_var, h_mean, h_var, c_mean, c_var = parts
    after = [torch.empty_like(h_mean) for _ in range(2 * len(state))]
    new = after + [None] * (4 - len(after))
    kernels.forward(
        x_mean=x_mean, x_var=x_var, p_mean=p_mean, p_var=p_var, bias=None, bias_var=None,
        coherence=None, h_mean=h_mean, h_var=h_var, c_mean=c_mean, c_var=c_var, new_mean=new[0],
        new_var=new[1], new_c_mean=new[2], new_c_var=new[3], operand_mean=None,
        operand_moments=h_mean.new_empty(rows, 2 * size), rows=rows, size=size,
    )  # fmt: skip
    c = step_coefficients(kernels, None, None, *parts)
    ways = [(c.x_mean, x_way.mean), (c.x_var, x_way.var)]
    if kernels.one_gradient:
        ways = [(c.x_mean, x_way.mean + p_way.mean), (c.x_var, x_way.var + p_way.var)]
    else:
        ways += [(c.p_mean, p_way.mean), (c.p_var, p_way.var)]
    carried = state_way[-1]  # of an LSTM its cell
    ways += [(c.carried_mean, carried.mean), (c.carried_var, carried.var)]
    found = [
        sum(_by_unit(coefficient[place] * way, size) for coefficient, way in ways)
        for place in range(len(after))
    ]
    pairs = range(0, len(after), 2)
    return (
        tuple(Moments(after[k], after[k + 1]) for k in pairs),
        tuple(Moments(found[k], found[k + 1]) for k in pairs),  # type: ignore[arg-type]
    )


def _by_unit(parts: Tensor, size: int) -> Tensor:
    """(R, rows, gates H) -> (R, rows, H): summed over gates."""
    return parts if parts.shape[-1] == size else parts.unflatten(-1, (-1, size)).sum(-2)
