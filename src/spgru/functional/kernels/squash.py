"""Sigmoid and tanh of moments in one pass: two tensors read, two written, nothing else kept."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from spgru.checks import is_transformed
from spgru.functional import activation
from spgru.functional.kernels.logistic import logistic, logistic_with_slopes
from spgru.functional.kernels.rows import as_rows
from spgru.moments import Moments

__all__ = ["squash"]

_BLOCK = 256


@triton.jit
def _forward(mean, var, new_mean, new_var, count, is_tanh: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = at < count
    m, v = tl.load(mean + at, mask, 0.0), tl.load(var + at, mask, 0.0)
    if is_tanh:
        centred, w = logistic(2 * m, 4 * v)
        tl.store(new_mean + at, 2 * centred, mask)
        tl.store(new_var + at, 4 * w, mask)
    else:
        value, w = logistic(m, v, centred=False)
        tl.store(new_mean + at, value, mask)
        tl.store(new_var + at, w, mask)


@triton.jit
def _backward(
    mean, var, out_mean, out_var, mean_grad, var_grad,  # the last four None where not wanted
    count, is_tanh: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = at < count
    # tanh(X) = 2 (sigmoid(2X) - 1/2): factors 2 and 4 on either side.
    scale: tl.constexpr = 2 if is_tanh else 1
    square: tl.constexpr = scale * scale
    m, v = tl.load(mean + at, mask, 0.0), tl.load(var + at, mask, 0.0)
    _, _, a_m, a_v, b_m, b_v = logistic_with_slopes(scale * m, square * v)
    by_m = tl.zeros(m.shape, tl.float32)
    by_v = tl.zeros(m.shape, tl.float32)
    if out_mean is not None:
        by = scale * tl.load(out_mean + at, mask, 0.0)
        by_m += by * a_m
        by_v += by * a_v
    if out_var is not None:
        by = square * tl.load(out_var + at, mask, 0.0)
        by_m += by * b_m
        by_v += by * b_v
    if mean_grad is not None:
        tl.store(mean_grad + at, scale * by_m, mask)
    if var_grad is not None:
        tl.store(var_grad + at, square * by_v, mask)


def _launch(kernel: Any, *tensors: Tensor | None, is_tanh: bool) -> None:
    first = tensors[0]
    assert first is not None
    count = first.numel()
    if count:
        # Triton launches on the current device, which need not be that of the tensors.
        with torch.cuda.device_of(first):
            kernel[(triton.cdiv(count, _BLOCK),)](*tensors, count, is_tanh, _BLOCK)


class _Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, is_tanh: bool) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(mean, var)
        ctx.set_materialize_grads(False)
        ctx.is_tanh = is_tanh
        mean, var = as_rows(mean), as_rows(var)
        results = torch.empty_like(mean), torch.empty_like(var)
        _launch(_forward, mean, var, *results, is_tanh=is_tanh)
        return results

    @staticmethod
    def backward(ctx: Any, *out: Tensor | None) -> Any:
        mean, var = ctx.saved_tensors
        # Gradients are recorded here only where they are to be differentiated again.
        if torch.is_grad_enabled() or is_transformed(*out):
            return *_by_reference(mean, var, out, ctx.is_tanh, ctx.needs_input_grad[:2]), None
        mean, var = as_rows(mean), as_rows(var)
        grads = [torch.empty_like(mean) if needed else None for needed in ctx.needs_input_grad[:2]]
        rows = [None if grad is None else as_rows(grad) for grad in out]
        _launch(_backward, mean, var, *rows, *grads, is_tanh=ctx.is_tanh)
        return *grads, None


def _by_reference(
    mean: Tensor, var: Tensor, out: tuple[Tensor | None, ...], is_tanh: bool, needed: Any
) -> list[Tensor | None]:
    """The same gradients by formulas that can be differentiated again and take several at once."""
    # Entries do not mix: the gradient of the sum is every entry's own slope. By views, because one
    # of the two may have been made from the other, which is not this function's to follow.
    with torch.enable_grad():
        mean, var = mean.view_as(mean), var.view_as(var)
        sums = [part.sum() for part in activation.squash_by_torch(Moments(mean, var), is_tanh)]
    grads: list[Tensor | None] = [None, None]
    again = torch.is_grad_enabled()
    for k, x in enumerate((mean, var)):
        for total, by in zip(sums, out, strict=True):
            if needed[k] and by is not None:
                (slope,) = torch.autograd.grad(total, x, retain_graph=True, create_graph=again)
                part, sum_so_far = by * slope, grads[k]
                grads[k] = part if sum_so_far is None else sum_so_far + part
    return grads


def squash(mean: Tensor, var: Tensor, is_tanh: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of sigmoid(X) or tanh(X), float32."""
    return _Squash.apply(mean, var, is_tanh)  # type: ignore[no-any-return]
