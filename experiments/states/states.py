"""Ways to put back the variance that a state passes on: see README.md.

python experiments/states/states.py > experiments/states/states.txt
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path.insert(0, "accuracy")
from noisy_heads import KINDS, trained, truth

import spgru
from spgru import Moments
from spgru.families import gaussian
from spgru.nn.random_weights import RandomWeights
from spgru.recurrent import cell as cells
from spgru.recurrent import gru

SEEDS, FITTED, LONG = 2, 12, 36


@contextmanager
def rows() -> Iterator[None]:
    """Gains of rows alone."""
    found = RandomWeights.gain_shapes

    def without(self: RandomWeights) -> Any:
        return {key: shape for key, shape in found(self).items() if "coherence" not in key}

    with patch.object(RandomWeights, "gain_shapes", without):
        yield


@contextmanager
def coherence() -> Iterator[None]:
    """As in the library."""
    yield


@contextmanager
def _positive() -> Iterator[None]:
    """What stands in the place of a coherence is positive and starts at 1."""
    with (
        patch("spgru.calibration.fit._gain", lambda key, raw: raw.exp()),
        patch("spgru.calibration.fit._start", lambda key: 0.0),
    ):
        yield


@contextmanager
def factor() -> Iterator[None]:
    """On the variance of the state before a step."""

    def scaled(after: Any, gate: Any, state: Any, k: Tensor | None) -> Any:
        if k is None or isinstance(after, Tensor):
            return after
        return Moments(after.mean, after.var + (k - 1) * (gate.mean**2 + gate.var) * state.var)

    with (
        _positive(),
        patch("spgru.recurrent.gru.coherent", scaled),
        patch("spgru.recurrent.lstm.coherent", scaled),
    ):
        yield


@contextmanager
def candidate() -> Iterator[None]:
    """On the variance of what the candidate's tanh takes."""
    left: list[Tensor] = []
    found = gaussian.Gaussian.candidate

    def scaled(self: Any, x: Any, *options: Any) -> Any:
        if left and isinstance(x, Moments):  # an LSTM has a tanh of its cell, too
            x = Moments(x.mean, left.pop() * x.var)
        return found(self, x, *options)

    def telling(step: Callable[..., Any]) -> Callable[..., Any]:
        def told(*parts: Any, coherence: Tensor | None, **options: Any) -> Any:
            left[:] = [] if coherence is None else [coherence]
            return step(*parts, **options)

        return told

    with ExitStack() as stack:
        stack.enter_context(_positive())
        stack.enter_context(patch.object(gaussian.Gaussian, "candidate", scaled))
        for module, name in ((gru, "gru_step"), (cells, "lstm_step")):
            stack.enter_context(patch.object(module, name, telling(getattr(module, name))))
        yield


def main() -> None:
    torch.set_num_threads(1)
    for kind in KINDS:
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            x = torch.randn(FITTED, 128, 2)
            plain = trained(kind, x)
            plain.recurrent.backend = "reference"
            with torch.no_grad():
                tests = [(steps, torch.randn(steps, 64, 2)) for steps in (FITTED, LONG)]
                known = [(steps, x_test, *truth(plain, x_test)) for steps, x_test in tests]
            for variant in (rows, coherence, factor, candidate):
                network, told = copy.deepcopy(plain), [f"{kind:4s} {seed} {variant.__name__:9s}"]
                with variant():
                    spgru.calibrate(network, x[:, :48], form="gains", progress=False)
                    for steps, x_test, by_weights, noise in known:
                        with torch.no_grad():
                            var = network(x_test).var - noise
                        ratio = (var.sum((1, 2)) / by_weights.sum((1, 2))).tolist()
                        at = (0, FITTED // 2 - 1, FITTED - 1) if steps == FITTED else (LONG - 1,)
                        told += [f"step {k + 1}: {ratio[k]:.3g}" for k in at]
                        if steps == FITTED:
                            told.append(f"spread {(var / by_weights).log().std().item():.2f}")
                print("  ".join(told), flush=True)


if __name__ == "__main__":
    main()
