"""What torch's own functions and the operators do with `Moments`.

Functions check their arguments, since a negative variance would not show in what they return.
Operators do not, because looking would cost more than they do; the next layer looks.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgru.functional import algebra, checked
from spgru.moments import Moments, functions_named, no_rule_for, refuse_writing, rule_for

# -- operators ------------------------------------------------------------------------------------


def _is_same(a: Any, b: Any) -> bool:
    """Whether both are one random tensor: far from independent."""
    return (
        isinstance(a, Moments)
        and isinstance(b, Moments)
        and (a is b or (a.mean is b.mean and a.var is b.var))
    )


def _with(mean: Tensor, var: Tensor) -> Moments:
    """The variance is unchanged, but for a shape or dtype that the mean got from a tensor."""
    return Moments(mean, var.to(mean.dtype).expand(mean.shape))


def _scaled(x: Moments, factor: Any) -> Moments:
    """Moments of `factor` X, for a number or tensor. Exact."""
    # Twice by the factor, not by its square, which may overflow where it is an integer.
    return Moments(x.mean * factor, x.var * factor * factor)


@rule_for(*functions_named("add"))
def _add(a: Any, b: Any = None, *, other: Any = None, alpha: float = 1) -> Any:
    """A + alpha B for independent A and B, or one and the same. Exact."""
    b = other if b is None else b
    if _is_same(a, b):
        return _scaled(a, 1 + alpha)
    if not isinstance(b, Moments):
        return _with(a.mean + (b if alpha == 1 else alpha * b), a.var)
    b = b if alpha == 1 else _scaled(b, alpha)
    if not isinstance(a, Moments):
        return _with(a + b.mean, b.var)
    return algebra.add(a, b)


@rule_for(*functions_named("sub", "subtract"))
def _subtract(a: Any, b: Any = None, *, other: Any = None, alpha: float = 1) -> Any:
    return _add(a, b, other=other, alpha=-alpha)


@rule_for(*functions_named("rsub"))
def _subtract_from(a: Any, b: Any, alpha: float = 1) -> Any:
    return _add(b, a, alpha=-alpha)


@rule_for(*functions_named("mul", "multiply"))
def _multiply(a: Any, b: Any = None, *, other: Any = None) -> Any:
    """A B for independent A and B, or one and the same. Exact (for one and the same: Gaussian)."""
    b = other if b is None else b
    if _is_same(a, b):
        return algebra.square(a)
    if not isinstance(b, Moments):
        return _scaled(a, b)
    if not isinstance(a, Moments):
        return _scaled(b, a)
    return algebra.product(a, b)


@rule_for(*functions_named("div", "divide", "true_divide"))
def _divide(a: Any, b: Any = None, *, other: Any = None) -> Moments:
    """A / b for a number or tensor b. Exact."""
    b = other if b is None else b
    if isinstance(b, Moments):
        raise TypeError(
            "division by Moments has no rule: 1 / X of a Gaussian X has no mean; "
            "divide by x.mean if its variance does not matter"
        )
    return Moments(a.mean / b, a.var / b / b)


@rule_for(*functions_named("neg", "negative"))
def _negate(x: Moments) -> Moments:
    return Moments(-x.mean, x.var)


@rule_for(*functions_named("positive"))
def _itself(x: Moments) -> Moments:
    return x


@rule_for(*functions_named("pow"), Tensor.__pow__)
def _power(x: Any, exponent: Any) -> Moments:
    if isinstance(x, Moments) and not isinstance(exponent, (Tensor, Moments)):
        if exponent == 1:
            return x
        if exponent == 2:
            return algebra.square(x)
    raise TypeError("a power of Moments has a rule for the exponents 1 and 2 only; use x.mean")


rule_for(*functions_named("square"))(algebra.square)


@rule_for(*functions_named("matmul", "mm", "bmm", "mv"))
def _matmul(a: Any, b: Any) -> Any:
    if _is_same(a, b):
        raise TypeError("the matrix product of Moments with itself has no rule; use x.mean")
    return algebra.matmul(a, b)


# -- functions ------------------------------------------------------------------------------------

rule_for(*functions_named("sigmoid"), torch.special.expit)(checked.sigmoid)
rule_for(*functions_named("tanh"))(checked.tanh)
rule_for(*functions_named("gelu"))(checked.gelu)
rule_for(*functions_named("softplus"))(checked.softplus)
rule_for(*functions_named("exp"))(checked.exp)
rule_for(*functions_named("clamp", "clip"))(checked.clamp)
rule_for(*functions_named("clamp_min"))(lambda x, bound: checked.clamp(x, min=bound))
rule_for(*functions_named("clamp_max"))(lambda x, bound: checked.clamp(x, max=bound))
rule_for(*functions_named("sum"))(checked.sum)
rule_for(*functions_named("mean"))(checked.mean)
rule_for(F.linear)(checked.linear)
rule_for(F.conv1d)(checked.conv1d)
rule_for(F.conv2d)(checked.conv2d)
rule_for(F.layer_norm)(checked.layer_norm)
rule_for(F.batch_norm)(checked.batch_norm)
for _name in ("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"):
    rule_for(*functions_named(_name))(getattr(checked, _name))


def _not_in_place(rule: Any, position: int) -> Any:
    """The same rule for a function whose argument at that position is `inplace`."""

    @wraps(rule)
    def outside(*args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if inplace or any(args[position:]):
            refuse_writing("inplace=True")
        return rule(*args[:position], **kwargs)

    return outside


rule_for(torch.relu, Tensor.relu)(checked.relu)
rule_for(F.relu)(_not_in_place(checked.relu, 1))
rule_for(F.silu)(_not_in_place(checked.silu, 1))
rule_for(F.elu)(_not_in_place(checked.elu, 2))
rule_for(F.leaky_relu)(_not_in_place(checked.leaky_relu, 2))
rule_for(F.dropout)(_not_in_place(checked.dropout, 3))


# -- what has no rule, and something better to use than the mean -----------------------------------

no_rule_for(F.gaussian_nll_loss, remedy="use -x.log_prob(target).mean()")
no_rule_for(
    *functions_named("softmax", "log_softmax"),
    remedy="use torch.softmax(x.mean, dim), which leaves out the variance",
)
no_rule_for(
    F.cross_entropy,
    F.nll_loss,
    remedy="pass x.mean as the logits, which leaves out the variance",
)
no_rule_for(
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    remedy="use x.mean, or -x.log_prob(target).mean() to learn the variance too",
)
