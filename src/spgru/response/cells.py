"""Recurrent steps among the operations that tangents are pushed through, by kernels.

Torch's forward mode takes a step apart into hundreds of operations. Here it is one: its values and
tangents are taken out of the wrappers of `torch.func`, and put into them again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch

from spgru.functional import Affine
from spgru.moments import Moments
from spgru.recurrent import Cell
from spgru.response.directions import Directions, ModuleWeights

__all__ = ["MapWays", "maps_of", "push_cell", "pushed_single_step"]


_make_dual: Any = forward_ad.make_dual
_unpack_dual: Any = forward_ad.unpack_dual


class MapWays(NamedTuple):
    """Tangents of one map x -> W x + b."""

    weight: Tensor
    """(R, O, I)"""
    slope: Tensor
    """(R, O, I): those of W.var + W^2"""
    bias: Tensor | None
    """(R, O)"""
    second: Tensor
    """(O, I): W.var + W^2"""


def maps_of(weights: ModuleWeights, directions: Directions) -> dict[int, MapWays]:
    """Those of all matrices, by the address of their means."""
    ways, found = iter(directions.tangents), {}
    for own in weights.values.values():
        by_name = {name: next(ways) for name in own}
        for name, moments in own.items():
            if moments.mean.ndim == 2:
                way = by_name[name]
                found[moments.mean.data_ptr()] = MapWays(
                    way,
                    2 * moments.mean * way,
                    by_name.get(name.replace("weight", "bias", 1)),
                    moments.var + moments.mean**2,
                )
    return found


def _push_map(
    affine: Affine, ways: MapWays, x: Tensor | Moments, x_way: Moments | None
) -> tuple[Moments, Moments]:
    """(rows, I) and (R, rows, I) -> (rows, O) and (R, rows, O)."""
    x_mean, x_var = (x, None) if isinstance(x, Tensor) else x
    assert affine.weight_var is not None
    mean = F.linear(x_mean, affine.weight, affine.bias)
    var = F.linear(x_mean**2, affine.weight_var, affine.bias_var)
    mean_way = torch.matmul(x_mean, ways.weight.mT)
    if ways.bias is not None:
        mean_way += ways.bias.unsqueeze(1)
    if x_way is not None:
        mean_way += F.linear(x_way.mean, affine.weight)
        var_way = F.linear(2 * x_mean * x_way.mean, affine.weight_var)
    else:
        var_way = torch.zeros_like(mean_way)
    if x_var is not None:
        var += F.linear(x_var, ways.second)
        var_way += torch.matmul(x_var, ways.slope.mT)
        if x_way is not None:
            var_way += F.linear(x_way.var, ways.second)
    return Moments(mean, var), Moments(mean_way, var_way)


def push_cell(
    cell: Cell, input_map: Affine, x: Tensor | Moments, x_way: Moments | None,
    state: tuple[Moments, ...], state_way: tuple[Moments, ...], maps: dict[int, MapWays],
) -> tuple[tuple[Moments, ...], tuple[Moments, ...]]:  # fmt: skip
    """One step: (rows, I), (rows, H) each, and their tangents -> the state after, and its own.

    Args:
        maps: of the weights of `cell` and `input_map`, which are ordinary tensors here
    """
    from spgru.recurrent.kernels.tangents import push_step

    inputs, input_way = _push_map(input_map, maps[input_map.weight.data_ptr()], x, x_way)
    hidden = cell.hidden
    p, p_way = _push_map(hidden, maps[hidden.weight.data_ptr()], state[0], state_way[0])
    return push_step(cell, inputs, input_way, p, p_way, state, state_way)


def pushed_single_step(
    maps: dict[int, MapWays], level: int, count: int, cell: Cell, x: Any, state: tuple[Any, ...],
    input_map: Affine, *_: Any,
) -> tuple[Moments, ...] | None:  # fmt: skip
    """`spgru.recurrent.single_step` of tensors with tangents; None where it cannot be done so.

    Args:
        level: of `torch.func.vmap` over directions
        count: of directions
    """
    # Nothing that computes constants may be imported inside a transform.
    with torch._C._DisableFuncTorch():
        from spgru.recurrent.kernels.tangents import supports

        if not supports(cell, input_map, x):
            return None
    hidden, inputs = _raw_map(cell.hidden), _raw_map(input_map)
    if hidden is None or inputs is None:
        return None
    if any(own.weight.data_ptr() not in maps for own in (hidden, inputs)):
        return None
    parts = []
    for value in (x, *state):
        for tensor in _parts(value):
            taken = _taken_apart(tensor, count)
            if taken is None:
                return None
            parts.append(taken)
    batch = x.shape[:-1]
    with torch._C._DisableFuncTorch():
        pairs: list[Any] = [
            (value.reshape(-1, value.shape[-1]), way.reshape(count, -1, way.shape[-1]))
            for value, way in parts
        ]
        x_parts = pairs[: len(pairs) - 2 * len(state)]
        at = range(len(x_parts), len(pairs), 2)
        x_raw = x_parts[0][0] if len(x_parts) == 1 else Moments(x_parts[0][0], x_parts[1][0])
        ways = [way for _, way in x_parts]
        x_way = Moments(ways[0], ways[1] if len(ways) == 2 else torch.zeros_like(ways[0]))
        values, found = push_cell(
            replace(cell, hidden=hidden), inputs, x_raw, x_way,
            tuple(Moments(pairs[k][0], pairs[k + 1][0]) for k in at),
            tuple(Moments(pairs[k][1], pairs[k + 1][1]) for k in at), maps,
        )  # fmt: skip
        outputs = [
            (
                value.reshape(*batch, value.shape[-1]),
                way.reshape(count, *batch, value.shape[-1]),
            )
            for moments, own in zip(values, found, strict=True)
            for value, way in zip(moments, own, strict=True)
        ]
    duals = [_make_dual(value, _functorch._add_batch_dim(way, 0, level)) for value, way in outputs]
    return tuple(Moments(*duals[k : k + 2]) for k in range(0, len(duals), 2))


def _parts(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _raw(tensor: Tensor | None) -> Tensor | None:
    """Without wrappers; None where it differs between directions."""
    while tensor is not None and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return None
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _raw_map(affine: Affine) -> Affine | None:
    """The map with ordinary tensors, without tangents; None where there is none."""
    if affine.gain is not None or affine.coherence is not None or affine.weight_var is None:
        return None
    weight, bias = _value(affine.weight), _value(affine.bias)
    if weight is None or (bias is None) != (affine.bias is None):
        return None
    return Affine(weight, affine.weight_var, bias, affine.bias_var, affine.product)


def _value(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _raw(_unpack_dual(tensor).primal)


def _taken_apart(tensor: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """The value (*shape) and its tangents (R, *shape) as ordinary tensors."""
    primal, tangent = _unpack_dual(tensor)
    value = _raw(primal)
    if value is None:
        return None
    if tangent is None:
        return value, value.new_zeros(count, *value.shape)
    dim: int | None = None
    while _functorch.is_functorch_wrapped_tensor(tangent):
        if _functorch.is_batchedtensor(tangent):
            if dim is not None:
                return None
            dim = _functorch.maybe_get_bdim(tangent)
        tangent = _functorch.get_unwrapped(tangent)
    with torch._C._DisableFuncTorch():
        if dim is None:
            return value, tangent.expand(count, *tangent.shape)
        return value, tangent.movedim(dim, 0)
