"""A layer over time as one operator of torch: what `torch.compile` sees instead of a loop.

Traced, the loop would be unrolled, which takes a minute to compile and is done again for every
length. The operator is one node for any length and batch size. When it runs, it calls `run` with
ordinary tensors, so the backend is chosen as it is without a compiler.

Operators exchange tensors only, so what a kernel keeps for its backward pass is not handed on: the
backward operator repeats the forward pass. Training takes one forward pass more than without a
compiler, and the memory of one layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from spgru.families import Family, Gamma, Gaussian, Poisson
from spgru.families.base import PositiveFamily
from spgru.functional import Affine
from spgru.functional.products import MATRIX, SAME_CONVOLUTION
from spgru.moments import Moments, is_autocast
from spgru.recurrent.cell import Cell, gru_cell, lstm_cell, rnn_cell
from spgru.recurrent.scan import Trajectory

__all__ = ["flatten", "make_cell", "run_as_operator", "unflatten", "weights_of"]

_FAMILIES: dict[str, type[Family]] = {family.name: family for family in (Gaussian, Gamma, Poisson)}


_PRODUCTS: dict[str, Any] = {"matrix": MATRIX, "convolution": SAME_CONVOLUTION}


class Description(NamedTuple):
    """What tells one call of `run` from another, but for its tensors, in types of operators."""

    cell: str
    nonlinearity: str
    family: str
    c: float
    gamma: float
    """constants of a positive family's activation, 0 for the Gaussian"""
    rule: str
    product: str
    backend: str
    reverse: bool
    autocast: torch.dtype | None
    """what autocast computes in, None where it is off"""


def make_cell(
    name: str,
    nonlinearity: str,
    family: Family,
    rule: Any,
    hidden: Affine,
    projection: Affine | None,
    size: int,
) -> Cell:
    """The cell of these equations with these weights, for a state of `size` units."""
    if name == "lstm":
        return lstm_cell(hidden, family, rule, projection)
    if name == "rnn":
        return rnn_cell(hidden, family, rule, nonlinearity)  # type: ignore[arg-type]
    return gru_cell(hidden, size, family, rule, name == "gru")


def _describe_product(*maps: Affine | None) -> str | None:
    """None for products that are not a layer's."""
    kinds = [type(affine.product) for affine in maps if affine is not None]
    for name, product in _PRODUCTS.items():
        if all(kind is type(product) for kind in kinds):
            return name
    return None


def _describe_family(family: Family) -> tuple[str, float, float] | None:
    """None for a family that is not ours."""
    if type(family) is not _FAMILIES.get(family.name):
        return None
    if isinstance(family, PositiveFamily):
        return family.name, family.c, family.gamma
    return family.name, 0.0, 0.0


def _make_family(name: str, c: float, gamma: float) -> Family:
    kind: Any = _FAMILIES[name]
    family: Family = kind(c, gamma) if issubclass(kind, PositiveFamily) else kind()
    return family


# -- values as lists of tensors -------------------------------------------------------------------


def flatten(values: Sequence[Any]) -> tuple[list[Tensor], str]:
    """All tensors, and a letter for each value: Moments, Tensor, or none ("-")."""
    tensors: list[Tensor] = []
    kinds = ""
    for value in values:
        if value is None:
            kinds += "-"
        elif isinstance(value, Tensor):
            tensors.append(value)
            kinds += "T"
        else:
            tensors += [value.mean, value.var]
            kinds += "M"
    return tensors, kinds


def unflatten(tensors: Sequence[Tensor], kinds: str) -> list[Any]:
    rest = list(tensors)
    values: list[Any] = []
    for kind in kinds:
        if kind == "-":
            values.append(None)
        elif kind == "T":
            values.append(rest.pop(0))
        else:
            values.append(Moments(rest.pop(0), rest.pop(0)))
    return values


def weights_of(affine: Affine | None) -> list[Any]:
    if affine is None:
        return [None, None]
    if affine.weight_var is None:
        return [affine.weight, affine.bias]
    bias = None if affine.bias is None else Moments(affine.bias, affine.bias_var)  # type: ignore[arg-type]
    return [Moments(affine.weight, affine.weight_var), bias]


# -- the operators --------------------------------------------------------------------------------


def run_as_operator(
    cell: Cell,
    x: Any,
    state: tuple[Any, ...],
    input_map: Affine | None,
    backend: str,
    reverse: bool,
) -> Trajectory | None:
    """What `run` gives, written down as one operator.

    None for a family or a product that the operator does not know.
    """
    family = _describe_family(cell.family)
    product = _describe_product(cell.hidden, input_map)
    if family is None or product is None:
        return None
    device = x.device.type
    autocast = torch.get_autocast_dtype(device) if is_autocast(x) else None
    description = Description(
        cell.name, cell.nonlinearity, *family, cell.rule, product, backend, reverse, autocast
    )
    maps = cell.hidden, input_map, cell.projection
    values = [x, *state, *(part for affine in maps for part in weights_of(affine))]
    values += [None if affine is None else affine.gain for affine in maps]
    values.append(cell.hidden.coherence)
    tensors, kinds = flatten(values)
    results = _scan(tensors, kinds, *description)
    output, *final = unflatten(results, kinds[1] * (1 + len(state)))
    return Trajectory(output, tuple(final), {})


def _run(tensors: Sequence[Tensor], kinds: str, description: Description) -> list[Tensor]:
    """The output and the final state, by `run`."""
    from spgru.recurrent.backend import run  # which uses this file

    x, *rest = unflatten(tensors, kinds)
    state, maps, (gain, input_gain, outer_gain, coherence) = rest[:-10], rest[-10:-4], rest[-4:]
    weight, bias, input_weight, input_bias, outer, outer_bias = maps
    name, nonlinearity, family, c, gamma, rule, product, backend, reverse, low = description
    hidden = Affine.of(weight, bias, _PRODUCTS[product], gain, coherence)
    input_map, projection = None, None
    if input_weight is not None:
        input_map = Affine.of(input_weight, input_bias, _PRODUCTS[product], input_gain)
    if outer is not None:
        projection = Affine.of(outer, outer_bias, gain=outer_gain)
    made = _make_family(family, c, gamma)
    cell = make_cell(name, nonlinearity, made, rule, hidden, projection, state[0].shape[-1])
    with torch.autocast(x.device.type, low, enabled=low is not None):
        output, final, _ = run(
            cell, x, tuple(state), input_map=input_map, backend=backend,  # type: ignore[arg-type]
            reverse=reverse,
        )  # fmt: skip
    results, _ = flatten([output, *final])
    return results if low is None else [result.float() for result in results]


def _own(tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """As operators must answer: contiguous, and each in memory of its own."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    answer = []
    for tensor in tensors:
        tensor = tensor.detach().contiguous()
        address = tensor.untyped_storage().data_ptr()
        answer.append(tensor.clone() if address in seen else tensor)
        seen.add(address)
    return answer


@torch.library.custom_op("spgru::scan", mutates_args=())
def _scan(
    tensors: Sequence[Tensor],
    kinds: str,
    cell: str,
    nonlinearity: str,
    family: str,
    c: float,
    gamma: float,
    rule: str,
    product: str,
    backend: str,
    reverse: bool,
    autocast: torch.dtype | None,
) -> list[Tensor]:
    description = Description(
        cell, nonlinearity, family, c, gamma, rule, product, backend, reverse, autocast
    )
    with torch.no_grad():
        return _own(_run(tensors, kinds, description), tensors)


@_scan.register_fake
def _(tensors: Sequence[Tensor], kinds: str, *description: Any) -> list[Tensor]:
    x, *values = unflatten(tensors, kinds)
    state = values[:-10]
    dtype = x.dtype if description[-1] is None else torch.float32
    shapes = (x.shape[0], *state[0].shape), *(value.shape for value in state)
    parts = 1 if isinstance(state[0], Tensor) else 2
    return [tensors[0].new_empty(shape, dtype=dtype) for shape in shapes for _ in range(parts)]


def _differentiate(
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor],
    needed: Sequence[int],
    kinds: str,
    cell: str,
    nonlinearity: str,
    family: str,
    c: float,
    gamma: float,
    rule: str,
    product: str,
    backend: str,
    reverse: bool,
    autocast: torch.dtype | None,
) -> list[Tensor]:
    description = Description(
        cell, nonlinearity, family, c, gamma, rule, product, backend, reverse, autocast
    )
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(k in needed) for k, tensor in enumerate(tensors)]
        results = _run(leaves, kinds, description)
        # Not all results depend on what is needed: a Poisson's do not on variances.
        reached = [k for k, result in enumerate(results) if result.requires_grad]
        found = torch.autograd.grad(
            [results[k] for k in reached],
            [leaves[k] for k in needed],
            [gradients[k] for k in reached],
            allow_unused=True,
            materialize_grads=True,
        )
    return _own(found, [*gradients, *tensors])


# Not by `custom_op`, which calls a function below autograd: this one needs it.
torch.library.define(
    "spgru::scan_backward", torch.library.infer_schema(_differentiate, mutates_args=())
)
torch.library.impl("spgru::scan_backward", "CompositeExplicitAutograd")(
    _disable_dynamo(_differentiate)
)


@torch.library.register_fake("spgru::scan_backward")  # type: ignore[untyped-decorator]
def _(
    gradients: Sequence[Tensor], tensors: Sequence[Tensor], needed: Sequence[int], *_: Any
) -> list[Tensor]:
    return [tensors[k].new_empty(tensors[k].shape) for k in needed]


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.rest = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    # Within torch.compile's own tracing gradients are not plain tensors.
    if torch.is_grad_enabled() and all(type(gradient) is Tensor for gradient in gradients):
        raise RuntimeError(
            "a compiled layer has first derivatives only; call it without torch.compile to "
            "differentiate twice (create_graph=True)"
        )
    (is_needed, *_) = ctx.needs_input_grad
    needed = [k for k, need in enumerate(is_needed) if need]
    found = iter(torch.ops.spgru.scan_backward(gradients, ctx.saved_tensors, needed, *ctx.rest))
    return [next(found) if need else None for need in is_needed], *[None] * len(ctx.rest)


_scan.register_autograd(_backward, setup_context=_save_inputs)
