"""A layer over time for `torch.export` and `torch.onnx`: a loop that stays a loop in the graph.

An exported program has to run without this package, so it consists of torch's own operations: the
reference's step inside torch's `scan`, which ONNX calls Scan. Unrolled it would hold for one length
only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan, scan_op

from spgru.functional import Affine
from spgru.recurrent.cell import Cell
from spgru.recurrent.operator import flatten, make_cell, unflatten, weights_of
from spgru.recurrent.scan import Trajectory

__all__ = ["run_exportable"]


def run_exportable(
    cell: Cell, x: Any, state: tuple[Any, ...], input_map: Affine | None, reverse: bool
) -> Trajectory:
    """`scan`, for any number of steps; for the arguments see `run`."""
    inputs = x if input_map is None else input_map(x)
    kind = "T" if isinstance(inputs, Tensor) else "M"
    size = state[0].shape[-1]
    maps = [cell.hidden] if cell.projection is None else [cell.hidden, cell.projection]
    names = ("state", "cell")[: len(state)]
    # torch's scan gets all tensors as arguments and knows nothing but tensors.
    weights, kinds = flatten([part for affine in maps for part in _prepared(affine)])
    first, xs = flatten(state)[0], flatten([inputs])[0]
    if torch.onnx.is_in_onnx_export():
        # ONNX programs do not learn, and torch 2.13 fails on gradients of a scan behind another.
        first, xs, weights = ([part.detach() for part in parts] for parts in (first, xs, weights))

    def body(*tensors: Tensor) -> list[Tensor]:
        carry, x = tensors[: len(first)], tensors[len(first) : len(first) + len(xs)]
        parts = unflatten(tensors[len(first) + len(xs) :], kinds)
        inner = [_restored(affine, *parts[4 * k : 4 * k + 4]) for k, affine in enumerate(maps)]
        now = make_cell(
            cell.name, cell.nonlinearity, cell.family, cell.rule, inner[0], (*inner, None)[1], size
        ).step
        neurons = now(unflatten(x, kind)[0], tuple(unflatten(carry, kind * len(names))))
        after = flatten([neurons[name] for name in names])[0]
        # Copies, because no two results may share their memory.
        return [*after, *(part.clone() for part in flatten([neurons["state"]])[0])]

    def split(results: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return results[: len(first)], results[len(first) :]

    xs = [x.flip(0) for x in xs] if reverse else xs
    initial = [part.clone() for part in first]
    if torch.compiler.is_dynamo_compiling():  # torch.export with strict=True
        final, output = scan(lambda carry, x: split(body(*carry, *x, *weights)), initial, xs)
    else:
        # What `scan` calls in the end; it would have Dynamo read the body first, which takes ten
        # times as long as the rest of the export.
        final, output = split(scan_op(body, initial, xs, tuple(weights)))
    output = [part.flip(0) for part in output] if reverse else output
    final_state = tuple(unflatten(final, kind * len(names)))
    return Trajectory(unflatten(output, kind)[0], final_state, {})


def _prepared(affine: Affine) -> list[Any]:
    """Its weights, and what they imply: worked out before the loop, and not at every step."""
    second = None if affine.weight_var is None else affine.second_moment()
    return [*weights_of(affine), second, affine.coherence]


def _restored(
    like: Affine, weight: Any, bias: Any, second: Tensor | None, coherence: Tensor | None
) -> Affine:
    affine = Affine.of(weight, bias, like.product, coherence=coherence)
    if second is not None:
        affine.keep("second moment", lambda: second)
    return affine
