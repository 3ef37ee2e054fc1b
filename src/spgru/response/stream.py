"""`Stream`: the response step by step, at constant memory, by tangents that go along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spgru.calibration.state import uncalibrated
from spgru.moments import Moments
from spgru.moments.nested import is_moments
from spgru.nn.cells import RecurrentCell
from spgru.nn.layer import Layer, layers_of
from spgru.nn.recurrent import Recurrent
from spgru.response.cells import maps_of
from spgru.response.directions import draw_directions, new_source, weights_of
from spgru.response.forward import Pushed, flatten, push
from spgru.response.layers import push_layer
from spgru.response.learning import principal_directions
from spgru.response.noise import find_noises
from spgru.response.respond import check_module, uncompiled
from spgru.response.shrinkage import with_shape

__all__ = ["Stream", "StreamState"]


class StreamState(NamedTuple):
    """What a stream carries from step to step; nothing in it has a history."""

    value: Any
    """the state that the module returned"""
    tangents: list[Tensor]
    """(directions, *shape) of every tensor in it"""
    step: int
    """how many there were"""
    directions: tuple[int, int, str]
    """what the tangents go along: seed, number of random ones, and which were learned"""


class Stream:
    """A module run step by step, its variance by linear response; see `spgru.respond`.

        stream = spgru.Stream(model, directions=16)
        stream.learn(x, 8)                                  # optional: directions that matter
        for x_t in sensor:
            y_t, state = stream.step(x_t, state)
        y, state = stream(x)                                # a long sequence

    `respond` goes backward from every output through all steps before; here a fixed number of
    directions in the space of all weights is followed forward together with the state. A step costs
    the same at any time and for any number of outputs, and the mean is that of the closed form.
    Covariance between units, weights shared over time, uncertain inputs (independent from step to
    step) and noise that the module adds all count, to first order.

    The variance is an estimate: right on average over `seed`, with a relative standard error of at
    most sqrt(2 / directions) for one output, less for the sum over outputs. Learned directions take
    their share of the variance out of that error. Equal arguments and seeds give equal results.

    Weights are those at the time of construction. Calibration is left out, as in `respond`.

    Args:
        module: a recurrent layer or cell of ours, or any module built from them
        directions: how many random ones; each takes the memory of all weights, twice
        seed: of the directions
        function: one step, (x_t, state) -> (output, state); None for `module.step`, or else the
            module itself. What it reads back of its own output must be part of the state.
        shape: `"closed"`: where tangents alone are too noisy to tell how the variance is spread
            over the features of a step, the closed form's shape is taken, with the total of the
            tangents; `"tangents"`: always theirs
    """

    def __init__(
        self,
        module: nn.Module,
        directions: int = 16,
        *,
        seed: int = 0,
        function: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        shape: str = "closed",
    ) -> None:
        if directions < 1:
            raise ValueError(f"directions must be at least 1, got {directions}")
        if shape not in ("closed", "tangents"):
            raise ValueError(f"shape must be 'closed' or 'tangents', got {shape!r}")
        check_module(module, "Stream")
        self._module, self._count, self._seed, self._shape = module, directions, seed, shape
        self._call = _step_of(module) if function is None else function
        self._layer = module if function is None and isinstance(module, Recurrent) else None
        with torch.inference_mode(False), torch.no_grad():
            self._weights = weights_of(module)
            self._directions = draw_directions(self._weights, directions, seed)
            self._maps = maps_of(self._weights, self._directions)
        self._is_own_step = function is None
        self._learned = ""

    def step(self, x_t: Any, state: Any = None) -> tuple[Any, StreamState]:
        """One time step.

        Args:
            x_t: what the step takes, Tensor or Moments, sequences in the first dimension unless
                there is one dimension only and the output has one only
            state: what the last call returned; at the start None, or a state of the module, whose
                Moments then count as uncertain and independent

        Returns:
            the output, its Moments with the variance by response, and the state to pass on
        """
        with self._running():
            pushed = self._push(x_t, state)
            output, value = _pair(pushed.values.filled(pushed.values.tensors))
            # Noise that an output got last of all is known: there is no need to estimate it. In
            # the state it goes on as every other source.
            ways = list(pushed.tangents)
            own = [torch.zeros_like(tensor) for tensor in pushed.values.tensors]
            for k, (var, way) in pushed.noises.items():
                ways[k], own[k] = ways[k] - way, var
            y = pytree.tree_map(
                lambda *parts: self._with_variance(_sequence_dims(x_t), *parts),
                output, pushed.values.filled(ways)[0], pushed.values.filled(own)[0],
                is_leaf=is_moments,
            )  # fmt: skip
            count = len(flatten(value).tensors)
            tangents = pushed.tangents[len(pushed.tangents) - count :]
            step = state.step + 1 if isinstance(state, StreamState) else 1
            return y, StreamState(value, tangents, step, self._key)

    def __call__(
        self, x: Tensor | Moments, state: Any = None, time_dim: int | None = None
    ) -> tuple[Any, StreamState]:
        """A sequence, or a piece of one, step by step: memory grows by the outputs alone.

        Args:
            x: steps along `time_dim`
            state: as for `step`
            time_dim: of x and of the result; None for 1 if a recurrent layer of the module has
                `batch_first` and x has three dimensions or more, else 0

        Returns:
            the outputs along time, and the state after them
        """
        dim = self._check_time(x, time_dim)
        outputs = []
        for x_t in x.unbind(dim):
            y, state = self.step(x_t, state)
            outputs.append(y)
        if not outputs:
            raise ValueError("x is an empty sequence; pass at least one time step")
        return pytree.tree_map(lambda *parts: torch.stack(parts, dim), *outputs), state

    def learn(self, x: Tensor | Moments, count: int = 8, time_dim: int | None = None) -> None:
        """Find the directions that move the outputs of these sequences most, and follow them too.

        What of the variance lies along them is then exact; random directions estimate the rest. It
        takes the memory of a backward pass through the sequences. States that were begun before
        cannot be continued.

        Args:
            x: sequences like those that will come, laid out as for a call
            count: how many
            time_dim: as for a call
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        dim = self._check_time(x, time_dim)
        with self._running():
            found = principal_directions(
                self._weights, self._call, list(x.unbind(dim)), count, self._seed
            )
            self._directions = draw_directions(self._weights, self._count, self._seed, found)
            self._maps = maps_of(self._weights, self._directions)
            self._learned = sha256(found.cpu().numpy().tobytes()).hexdigest()

    @property
    def _device(self) -> str:
        return self._directions.fresh.device.type

    @property
    def _key(self) -> tuple[int, int, str]:
        return self._seed, self._count, self._learned

    # -- one step -----------------------------------------------------------------------------

    @contextmanager
    def _running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for block in (
                torch.inference_mode(False), torch.no_grad(), uncompiled(),
                uncalibrated(self._module), torch.autocast(self._device, enabled=False),
            ):  # fmt: skip
                stack.enter_context(block)
            yield

    def _check_time(self, x: Any, time_dim: int | None) -> int:
        if not isinstance(x, (Tensor, Moments)) or isinstance(x.mean, PackedSequence):
            raise TypeError(
                f"x must be a Tensor or Moments along time, got {type(x).__name__}; run other "
                "inputs step by step with `step`"
            )
        return _time_dim(self._module, x) if time_dim is None else time_dim

    def _push(self, x_t: Any, state: Any) -> Pushed:
        goes_on = isinstance(state, StreamState)
        number = state.step if goes_on else 0
        fresh = self._directions.fresh
        generator = torch.Generator(fresh.device).manual_seed(self._seed * 1_000_003 + number + 1)
        if goes_on:
            args, value_ways = flatten((x_t, state.value)), state.tangents
            if state.directions != self._key:
                raise ValueError(
                    "state has other directions than this stream (it is that of another one, or "
                    "`learn` was called since); begin with state=None"
                )
        else:
            args = flatten((x_t, state))
            value_ways = self._new_tangents(state, generator)
        ways = [*self._new_tangents(x_t, generator), *value_ways]
        if goes_on and self._layer is not None:
            found = push_layer(self._layer, self._weights, self._maps, args, ways)
            if found is not None:
                return found
        noises = {}
        # A layer alone adds no noise but by dropout: there is no need to look for it.
        is_alone = self._is_own_step and isinstance(self._module, Layer)
        if not is_alone or self._module.training:
            noises = find_noises(self._weights.values, self._call, args.filled(args.tensors))
        return push(
            self._weights, self._call, self._directions, args, ways, noises, generator, self._maps
        )

    def _new_tangents(self, value: Any, generator: torch.Generator) -> list[Tensor]:
        """Those of sources that were not there before: entries of Moments."""

        def begin(leaf: Any) -> Any:
            if isinstance(leaf, Moments):
                way = new_source(leaf.var, self._directions, generator)
                return Moments(way, torch.zeros_like(way))
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                return leaf.new_zeros(len(self._directions.fresh), *leaf.shape)
            return leaf

        return flatten(pytree.tree_map(begin, value, is_leaf=is_moments)).tensors

    def _with_variance(self, dims: int, output: Any, way: Any, own: Any) -> Any:
        if not isinstance(output, Moments):
            return output
        learned = len(way.mean) - self._count
        exact, drawn = way.mean[:learned].square().sum(0), way.mean[learned:].square().sum(0)
        if self._shape == "closed":
            # (B,) to (B, H) has a batch; (I,) to (H,) has none.
            start = 1 if dims == 1 < output.ndim else dims - 1
            var = with_shape(exact, drawn, output.var - own.mean, self._count, start)
        else:
            var = exact + drawn
        return Moments(output.mean, var + own.mean)


def _sequence_dims(x_t: Any) -> int:
    """2 of a step (B, ...), 1 of one with a single dimension, which may be either."""
    first = flatten(x_t).tensors
    return 1 if first and first[0].ndim == 1 else 2


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"a step must return (output, state), got {type(result).__name__}; pass function=, "
            "which takes (x_t, state) and returns both"
        )
    return result


def _step_of(module: nn.Module) -> Callable[[Any, Any], Any]:
    if isinstance(module, RecurrentCell):
        return lambda x_t, state: _cell_step(module, x_t, state)
    step: Callable[[Any, Any], Any] | None = getattr(module, "step", None)
    if step is not None:
        return step
    try:
        signature(module.forward).bind(None, None)
    except TypeError:
        raise TypeError(
            f"module ({type(module).__name__}) has no method `step`, and its forward does not take "
            "(x_t, state); pass function=, which does and returns (output, state)"
        ) from None
    return module


def _cell_step(cell: RecurrentCell, x_t: Any, state: Any) -> tuple[Any, Any]:
    after = cell(x_t, state)
    return after[0] if isinstance(after, tuple) else after, after


def _time_dim(module: nn.Module, x: Any) -> int:
    layers = [layer for _, layer in layers_of(module) if isinstance(layer, Recurrent)]
    return 1 if x.ndim > 2 and any(layer.batch_first for layer in layers) else 0
