"""From gradients of every use of a weight to the variance that the weight causes.

With dm and dv the gradients of an output by mean and variance of W x + b, and sums over the rows
(steps, positions) of one sequence,

    d E[y] / d W.mean = sum dm x.mean' + slope * sum dv x.var',    slope = d (W.var + W^2) / d W
    d E[y] / d b.mean = sum dm

are formed for a few sequences, outputs and rows of W at a time, squared, weighted with W.var and
summed: what is kept is one number for each sequence and output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional.linear import Affine, Size2d
from spgru.functional.products import Convolution, Elementwise, Matrix, SameConvolution
from spgru.response.sequences import Grouping
from spgru.response.tape import Use

__all__ = [
    "Block", "Gradients", "Summed", "block_of", "by_bias", "by_entries", "by_remainder",
    "by_weight", "rows_of", "to_sequences",
]  # fmt: skip


class Block(NamedTuple):
    """Gradients by uses of one weight, sorted by sequence."""

    x_mean: Tensor | None
    """(length, B, groups, I)"""
    x_var: Tensor | None
    by_mean: Tensor
    """(length, B, K, groups, O)"""
    by_var: Tensor | None


class Summed(NamedTuple):
    """Gradients that were summed over rows before."""

    by_weight: Tensor
    """(B, K, O, I)"""
    by_bias: Tensor
    """(B, K, O)"""


class Gradients(NamedTuple):
    """All that is known of one weight and its bias."""

    affine: Affine | None
    """None for a bias without a weight"""
    blocks: list[Block]
    sums: list[Summed]


def block_of(
    uses: Sequence[Use], by_mean: Sequence[Tensor], by_var: Sequence[Tensor] | None, how: Grouping,
    count: int,
) -> Block:  # fmt: skip
    """Uses that are alike, see `rows_of`, sorted.

    Args:
        by_mean: (K, *shape of the result) for each use
        how: their rows are to be sorted
        count: of sequences
    """

    def sort(rows: Tensor) -> Tensor:
        """(rows, ...) -> (length, B, ...)"""
        if isinstance(how, Tensor):
            padded = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
            return padded[how].transpose(0, 1)
        dim, length = how
        if dim == 1:
            return rows.view(length, count, *rows.shape[1:])
        return rows.view(count, length, *rows.shape[1:]).transpose(0, 1)

    def inputs(parts: list[Tensor | None]) -> Tensor | None:
        known = [_inputs(use, x) for use, x in zip(uses, parts, strict=True) if x is not None]
        return sort(torch.cat(known)) if known else None

    return Block(
        inputs([use.x_mean for use in uses]),
        inputs([use.x_var for use in uses]),
        sort(rows_of(uses, by_mean)),
        None if by_var is None else sort(rows_of(uses, by_var)),
    )


def _groups(use: Use) -> int:
    if use.affine is None:
        return 1
    product = use.affine.product
    if isinstance(product, Elementwise):
        return len(use.affine.weight)
    return product.groups if isinstance(product, Convolution) else 1


def rows_of(uses: Sequence[Use], grads: Sequence[Tensor]) -> Tensor:
    """(K, *shape of the result) for each use -> (rows of all, K, groups, O)"""
    use = uses[0]
    if use.affine is not None and isinstance(use.affine.product, Convolution):
        images = [grad.unsqueeze(1) if use.mean.ndim == 3 else grad for grad in grads]
        # (images, positions, K, O)
        rows = [grad.flatten(-2).permute(1, 3, 0, 2).flatten(0, 1) for grad in images]
        joined = _cat(rows)
        return joined.reshape(*joined.shape[:-1], _groups(use), -1)
    joined = _cat([grad.flatten(1, -2).transpose(0, 1) for grad in grads])
    return joined.reshape(*joined.shape[:-1], _groups(use), -1)


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _inputs(use: Use, x: Tensor) -> Tensor:
    """(rows, groups, I): for a convolution the window that every position sees"""
    assert use.affine is not None
    product, weight = use.affine.product, use.affine.weight
    if isinstance(product, Matrix):
        return x.reshape(-1, 1, x.shape[-1])
    if isinstance(product, Elementwise):
        return x.reshape(-1, x.shape[-1], 1)
    if isinstance(product, SameConvolution):
        images = x.reshape(-1, *x.shape[-3:]).movedim(-1, 1)
        product = Convolution(padding=weight.shape[-1] // 2)
    elif isinstance(product, Convolution):
        images = x if x.ndim == 4 else x.unsqueeze(0)
    else:
        raise TypeError(f"respond has no rule for products of the kind {type(product).__name__}")
    kernel = weight.shape[2:]
    stride, padding, dilation = product.stride, product.padding, product.dilation
    if isinstance(padding, str):
        images, padding = _pad_same(images, padding, kernel, dilation), 0
    windows = F.unfold(images, kernel, dilation, padding, stride)  # (images, C k k, positions)
    rows = windows.transpose(1, 2).flatten(0, 1)
    return rows.reshape(len(rows), product.groups, -1)


def _pad_same(images: Tensor, padding: str, kernel: Sequence[int], dilation: Size2d) -> Tensor:
    if padding == "valid":
        return images
    steps = (dilation, dilation) if isinstance(dilation, int) else dilation
    totals = [step * (size - 1) for step, size in zip(steps, kernel, strict=True)]
    widths = [part for total in reversed(totals) for part in (total // 2, total - total // 2)]
    return F.pad(images, widths)


def to_sequences(sums: Tensor, sequence: Tensor, count: int) -> Tensor:
    """Sums (rows, ...) of rows of these sequences, -1 for none -> (count, ...)"""
    number = torch.arange(len(sums), device=sums.device)
    if len(sums) == count and bool(((sequence < 0) | (sequence == number)).all()):
        return sums
    known = sequence >= 0
    return sums.new_zeros(count, *sums.shape[1:]).index_add(0, sequence[known], sums[known])


def by_weight(gradients: Gradients, memory: int) -> Tensor:
    """(B, K): the variance that one weight causes.

    Args:
        memory: bytes that gradients of the weight may take at a time
    """
    affine, blocks, sums = gradients
    assert affine is not None
    assert affine.weight_var is not None
    if not blocks:
        total = sum(part.by_weight for part in sums)
        assert isinstance(total, Tensor)
        return total.flatten(2).square() @ affine.weight_var.flatten()
    count, outputs, groups = blocks[0].by_mean.shape[1:4]
    rows = affine.weight.shape[0] // groups
    inputs = affine.weight[0].numel()
    slope = affine.second_moment_slope().reshape(groups, rows, inputs)
    var = affine.weight_var.reshape(groups, rows, inputs)
    # As many rows of the weight for as many sequences as fit.
    entry = 2 * affine.weight.element_size() * outputs * inputs
    height = max(1, min(rows, memory // entry))
    width = max(1, min(count, memory // (entry * height)))
    found = []
    for start in range(0, count, width):
        part: Tensor | float = 0.0
        for g in range(groups):
            for row in range(0, rows, height):
                at = slice(start, start + width), g, slice(row, row + height)
                part = part + _squared(gradients, *at, slope[g, at[2]], var[g, at[2]])
        assert isinstance(part, Tensor)
        found.append(part)
    return torch.cat(found)


def _squared(
    gradients: Gradients, sequences: slice, g: int, rows: slice, slope: Tensor, var: Tensor
) -> Tensor:
    """(B', K)"""
    total = _summed(gradients.blocks, sequences, g, rows, of_var=False)
    spread = _summed(gradients.blocks, sequences, g, rows, of_var=True)
    assert total is not None
    if spread is not None:
        total = torch.addcmul(total, spread, slope.T.unsqueeze(1))
    for part in gradients.sums:
        total = total + part.by_weight[sequences, :, rows].permute(0, 3, 1, 2)
    return (total.square() * var.T.unsqueeze(1)).sum((1, 3))


def _summed(
    blocks: Sequence[Block], sequences: slice, g: int, rows: slice, of_var: bool
) -> Tensor | None:
    """(B', I, K, rows): gradients times inputs, summed over all rows of a sequence"""
    total: Tensor | None = None
    for block in blocks:
        x, grads = (block.x_var, block.by_var) if of_var else (block.x_mean, block.by_mean)
        if x is None or grads is None:
            continue
        grads = grads[:, sequences, :, g, rows]
        shape = grads.shape[2:]
        # In this order the large factor is read as it lies.
        left, right = x[:, sequences, g].permute(1, 2, 0), grads.flatten(2).transpose(0, 1)
        total = torch.bmm(left, right) if total is None else torch.baddbmm(total, left, right)
    return None if total is None else total.view(*total.shape[:2], *shape)


def by_remainder(gradients: Gradients) -> Tensor | None:
    """(B, K): the variance that products of uncertain weights with uncertain inputs cause."""
    affine = gradients.affine
    parts = []
    for block in gradients.blocks:
        if affine is None or affine.weight_var is None or block.x_var is None:
            continue
        groups = block.by_mean.shape[-2]
        var = affine.weight_var.reshape(groups, -1, affine.weight[0].numel())
        own = torch.einsum("lbgi,goi->lbgo", block.x_var, var)
        parts.append(torch.einsum("lbgo,lbkgo->bk", own, block.by_mean.square()))
    return torch.stack(parts).sum(0) if parts else None


def by_bias(var: Tensor, start: int, gradients: Gradients) -> Tensor:
    """(B, K): the variance that one bias causes, or its part from `start` on."""
    parts = [block.by_mean.sum(0).flatten(2) for block in gradients.blocks]
    parts += [part.by_bias for part in gradients.sums]
    total = sum(parts)
    assert isinstance(total, Tensor)
    return total.square() @ var[start : start + total.shape[-1]]


def by_entries(var: Tensor, grads: Tensor, sequence: Tensor, count: int) -> Tensor:
    """(B, K): the variance that independent entries cause.

    Args:
        var: (entries,)
        grads: (K, entries)
        sequence: of every entry, -1 for none
    """
    parts = (grads.square() * var).T
    known = sequence >= 0
    zeros = parts.new_zeros(count, parts.shape[1])
    return zeros.index_add(0, sequence[known], parts[known])
