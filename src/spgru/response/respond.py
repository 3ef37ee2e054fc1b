"""`respond`: the variance by all independent sources, each followed through the whole module."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgru.calibration.state import uncalibrated
from spgru.modes import enter_gains, weight_mode
from spgru.nn.layer import layers_of
from spgru.nn.recurrent import Recurrent
from spgru.response.arguments import Inputs, Outputs, unpacked
from spgru.response.backward import Backward
from spgru.response.sequences import Layout
from spgru.response.tape import Noise, Tape

__all__ = ["Followed", "check_module", "follow", "respond", "uncompiled"]

_MEAN = "mean"
"""The part of the square by which the mean at a gain differs from the mean that is returned."""


def respond(
    module: nn.Module,
    *inputs: Any,
    sources: bool = False,
    gain: float = 1.0,
    batch_dim: int | None = None,
    create_graph: bool = False,
    memory: int = 2**28,
    function: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """What `module(*inputs, **options)` gives, its variance by linear response.

    With s every independent source (each weight once, whatever the number of steps it acts at; each
    uncertain input; each noise that the module adds; and, as a source of its own, what the first
    order of every single operation leaves of the variance of its result, "higher order")

        Var y = sum over s of var(s) (d E[y] / d mean(s))^2

    where E[y] is the closed-form mean. Covariance between units, weights shared over time and
    predictions that are read back all count. There is nothing to fit and nothing is drawn. Exact
    for a network that is linear in its sources.

        y = spgru.respond(forecaster, x)
        y, parts = spgru.respond(forecaster, x, sources=True)
        parts["gru.weight_hh_l0"], parts["noise"]            # they add up to y.var

    Calibration (`spgru.calibrate`) is left out: its gains stand for the same covariance. So are
    factors and noise that were fitted to outcomes.

    Noise is found whatever way the module adds it: `Moments(y.mean, y.var + s)`, the sum with
    `Moments` of its own, dropout. Every entry of such moments counts as a source of its own. Its
    variance must follow from means: what a module makes of variances (twice `y.var`, the larger of
    `y.var` and a floor) is not seen as such. A variance of which two `Moments` are made is two
    noises: go on with `y = Moments(mean, var)`, not with `var`.

    It costs the module's pass with gradients, a pass without, and one backward pass for all outputs
    of a sequence at once; sequences of a batch are differentiated together. Random numbers are the
    same in all passes; what a module counts in training (statistics of batches) counts each.

    Derivatives are those of a mean over the variances inside the module, which the closed form has
    too small. Where predictions are read back many times, nothing then saturates and the response
    may be several times too wide; a gain on those variances mends that (`consistent_gain`). The
    mean with them is another, nearer to that of drawn networks; that of the plain closed form is
    returned, and the variance is around it: the square of the difference is a part of it, "mean".

        gain = spgru.consistent_gain(forecaster, x_train)     # once
        y = spgru.respond(forecaster, x, gain=gain)

    Args:
        module: a layer of ours, or any module built from them; Gaussian weights, `rule="exact"`
        inputs: what it is called with, or one tuple of that, as in `spgru.audit`; `Moments` among
            them are uncertain
        sources: also return the parts of the variance by source: names of weights, "input" (or
            "input 0", "input 1", ...), "noise", "higher order", "mean"; each laid out as the output
        gain: of all matrices while derivatives are taken: W.var + gain W.mean^2 multiplies the
            variances of their inputs; other than 1 it costs a plain pass more
        batch_dim: the dimension of the outputs along which they are independent sequences; None to
            find out
        create_graph: make the variance differentiable; slower, and takes the memory of all outputs
        memory: bytes that gradients may take at a time
        function: what to call in place of `module`, a method of it for instance
        options: passed on

    Returns:
        the structure that the module returns, in which all `Moments` have the closed-form mean and
        this variance; with `sources` also a dict of such structures, with tensors for `Moments`
    """
    check_numbers(memory=memory, gain=gain, batch_dim=0 if batch_dim is None else batch_dim)
    if not (gain > 0 and math.isfinite(gain)):
        raise ValueError(f"gain must be positive and finite, got {gain}; 1 changes nothing")
    gain = float(gain)
    check_module(module, "respond")
    call = module if function is None else function
    # Gains and scales stand for what the response computes: with both it would count twice.
    with torch.inference_mode(False), torch.enable_grad(), uncompiled(), uncalibrated(module):
        given = Inputs(unpacked(inputs), options, create_graph)
        rewind = _rewinding(module)
        found = follow(module, call, given, gain, batch_dim, create_graph, memory)
        means, parts = found.result.means, found.by_source()
        if gain != 1:
            rewind()
            with torch.set_grad_enabled(create_graph):
                means = Outputs(given.call(call, certain=False), create_graph).means
                pairs = zip(found.result.means, means, strict=True)
                parts[_MEAN] = [(at_gain - plain).square() for at_gain, plain in pairs]
    y = found.result.replaced(means, found.result.summed(parts.values()))
    if not sources:
        return y
    return y, {name: found.result.filled(part) for name, part in parts.items()}


class Followed(NamedTuple):
    """A module's outputs, and what every source adds to their variances."""

    result: Outputs
    layout: Layout
    parts: Mapping[str, Tensor]
    """(slots, sequences) for each source"""

    def by_source(self) -> dict[str, list[Tensor]]:
        """Of all outputs, in their shapes."""
        gather, means = self.layout.gather, self.result.means
        return {name: gather(part, means) for name, part in self.parts.items()}


def follow(
    module: nn.Module,
    call: Callable[..., Any],
    given: Inputs,
    gain: float,
    batch_dim: int | None,
    create_graph: bool,
    memory: int,
) -> Followed:
    """Follow every source through the module; with gradients enabled, and without calibration."""
    rewind = _rewinding(module)
    with _gained(module, gain), closing(Tape(module, create_graph)) as tape:
        with tape.first_pass():
            result = Outputs(given.call(call, certain=False), create_graph)
        noises: list[Noise] = []
        rewind()
        with tape.second_pass(noises):
            given.call(call, certain=True)
        tape.check_detached([*result.means, *result.closed_variances])
        first = _batch_dim(module) if batch_dim is None else batch_dim
        sizes = given.sizes(first) if batch_dim is None else result.sizes(batch_dim)
        backward = Backward(tape, given.sources, noises, result, memory)
        return Followed(result, *backward.variances(result.layouts(sizes, first)))


def _gained(module: nn.Module, gain: float) -> AbstractContextManager[Any]:
    """Block in which every row of every matrix has this gain."""
    if gain == 1:
        return nullcontext()
    entered: AbstractContextManager[Any] = enter_gains(
        {
            layer: {
                name: layer._like.new_full((weight.spec.shape[0],), gain)
                for name, weight in layer.weights().items()
                if weight.spec.gain is not None
            }
            for _, layer in layers_of(module)
        }
    )
    return entered


def uncompiled() -> AbstractContextManager[Any]:
    """Compiled modules run as they were written: what happens inside is to be seen."""
    # Where nothing was compiled the compiler need not be imported, which takes a second.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _rewinding(module: nn.Module) -> Callable[[], None]:
    """A function that sets random numbers back to where they are now, so that every pass of a
    module in training has the same masks."""
    device = next(layers_of(module))[1]._like.device
    before = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    return rewind


def check_numbers(memory: Any, **others: Any) -> None:
    """That what `respond` takes itself is not an argument of the module by the same name."""
    for name, value in {"memory": memory, **others}.items():
        is_scalar = isinstance(value, Tensor) and value.ndim == 0
        if isinstance(value, bool) or not (is_scalar or isinstance(value, Real)):
            raise TypeError(
                f"{name} must be a number, got {type(value).__name__}; an argument of the module "
                f"that is called {name} goes in by function=lambda x: module(x, {name}=...)"
            )
    if memory <= 0:
        raise ValueError(f"memory must be a positive number of bytes, got {memory}")


def _batch_dim(module: nn.Module) -> int:
    """The likeliest dimension of the sequences."""
    layers = [layer for layer in module.modules() if isinstance(layer, Recurrent)]
    return 1 if any(not layer.batch_first for layer in layers) else 0


def check_module(module: nn.Module, what: str) -> None:
    """That a response can be computed.

    Args:
        what: is asked for
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module must be an nn.Module, got {type(module).__name__}; pass the module, and what "
            "to call by function="
        )
    layers = dict(layers_of(module))
    if not layers:
        raise ValueError(
            f"module ({type(module).__name__}) holds no random weights; build it from spgru layers"
        )
    owners: dict[Any, str] = {}
    for name, layer in layers.items():
        where = f"{name or 'the module'} ({type(layer).__name__})"
        if weight_mode(layer) is not None:
            raise ValueError(
                f"{what} needs the moments of the weights and cannot run while they are drawn or "
                "at their means; call it outside of `sampling` and `at_mean`"
            )
        if layer.family.name != "gaussian":
            raise ValueError(
                f"{where} has family={layer.family.name!r}; the response is derived for Gaussian "
                "weights only"
            )
        if layer.rule != "exact":
            raise ValueError(
                f"{where} has rule={layer.rule!r}, which gives variance to what has none, so that "
                "sources cannot be told apart; use rule='exact'"
            )
        if layer._like.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{where} has weights of {layer._like.dtype}, too coarse for squares of gradients; "
                "use module.float()"
            )
        for weight in layer.weights():
            # The same mean with a spread of its own is another weight around the same value.
            made_of = tuple(
                id(part) for part in layer._sources(weight) if isinstance(part, nn.Parameter)
            )
            full = f"{name}.{weight}" if name else weight
            other = owners.setdefault(made_of or full, full)
            if other != full:
                raise ValueError(
                    f"{full} and {other} are made of the same Parameters, and {what} would take "
                    "them for two independent weights; use one module in both places"
                )
