"""A step of a recurrent layer alone, pushed without torch's forward mode: what that costs to enter
is more than a small step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgru.moments import Moments, stack
from spgru.nn.recurrent import Recurrent
from spgru.response.cells import MapWays, push_cell
from spgru.response.directions import ModuleWeights, taking
from spgru.response.forward import Pushed, Tree, flatten

__all__ = ["push_layer"]


def push_layer(
    layer: Recurrent, weights: ModuleWeights, maps: dict[int, MapWays], args: Tree,
    tangents: list[Tensor],
) -> Pushed | None:  # fmt: skip
    """`layer.step(*args)` with tangents, as `spgru.response.forward.push`; None for what it leaves
    to that one.

    Args:
        args: x_t and the state, of which the layer has seen the like before
        tangents: (R, *shape) of every tensor of `args`
    """
    from spgru.recurrent.kernels.tangents import supports

    states = 2 * len(layer.state_names)
    inputs = len(args.tensors) - states
    if inputs not in (1, 2) or not _fits(layer, args.tensors[0], args.tensors[inputs]):
        return None
    # (rows, I), and (layers, rows, H) each; the same of tangents.
    rows = [part.reshape(-1, part.shape[-1]) for part in args.tensors[:inputs]]
    count = len(tangents[0])
    row_ways = [way.reshape(count, -1, way.shape[-1]) for way in tangents[:inputs]]
    values = [part.reshape(len(part), -1, part.shape[-1]) for part in args.tensors[inputs:]]
    ways = [way.reshape(count, way.shape[1], -1, way.shape[-1]) for way in tangents[inputs:]]
    x: Any = rows[0] if inputs == 1 else Moments(*rows)
    x_way = None if inputs == 1 else Moments(*row_ways)
    after: list[Any] = []
    with taking(weights.values):
        for k in range(layer.num_layers):
            part = layer._part(k, False)
            cell, input_map = layer._cell(part), layer._input_map(part)
            if not supports(cell, input_map, x):
                return None
            state = [part[k] for part in values]
            state_way = [way[:, k] for way in ways]
            after.append(
                push_cell(cell, input_map, x, x_way, _paired(state), _paired(state_way), maps)
            )
            x, x_way = after[-1][0][0], after[-1][1][0]
    batch = args.tensors[0].shape[:-1]
    # The output is a copy: a user may change it in place, and the state must stay.
    output = Moments(*(part.reshape(*batch, -1).clone() for part in x))
    finals, final_ways = [], []
    for k in range(len(layer.state_names)):
        final = stack([own[0][k] for own in after])
        finals.append(final.reshape(-1, *batch, final.shape[-1]))
        way = stack([own[1][k] for own in after], 1)
        final_ways += [*way.reshape(count, -1, *batch, way.shape[-1])]
    assert x_way is not None
    out_ways = [way.reshape(count, *batch, way.shape[-1]) for way in x_way]
    result = flatten((output, layer._pack_state(tuple(finals))))
    return Pushed(result, [*out_ways, *final_ways], {})


def _paired(parts: list[Tensor]) -> tuple[Moments, ...]:
    return tuple(Moments(*parts[k : k + 2]) for k in range(0, len(parts), 2))


def _fits(layer: Recurrent, x: Tensor, state: Tensor) -> bool:
    """Whether there is nothing to complain of, nor anything else to be done than the step."""
    return (
        x.dtype is torch.float32
        and x.ndim in (1, 2)
        and x.shape[-1] == layer.input_size
        and x.shape[:-1] == state.shape[1:-1]
        and not (layer.dropout and layer.training)
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._is_recorded)
    )
