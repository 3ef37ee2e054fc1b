"""Linear response against brute force, for random networks.

State variance of a layer at every step: H=64, T=40, 8 sequences of standard normal input, 8 units.
The standard deviation of every weight is given relative to the range ±1/sqrt(H) that weights are
initialised in. Three kinds of means: as `torch.nn` initialises them (I=32); normal of standard
deviation 0.8/sqrt(fan-in) (I=32); the same with few inputs (I=2). Truth draws whole networks, whose
weights are shared over time, and runs them by the equations of `torch.nn` written out here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import publish, save
from torch import Tensor

import spgru
from spgru.reporting.markdown import table

HIDDEN, STEPS, SEQUENCES, UNITS = 64, 40, 8, 8
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "GRU": (spgru.GRU, {}),
    "GRU, reset before (the paper's)": (spgru.GRU, {"reset_after": False}),
    "LSTM": (spgru.LSTM, {}),
    "RNN": (spgru.RNN, {}),
}
MEANS = {"torch.nn": 32, "0.8/sqrt(fan-in)": 32, "0.8/sqrt(fan-in), 2 inputs": 2}
RELATIVE_STDS = (0.02, 0.1, 0.3)


def make(kind: str, means: str, relative_std: float, seed: int) -> tuple[Any, Tensor]:
    torch.manual_seed(seed)
    cls, options = KINDS[kind]
    network = cls(MEANS[means], HIDDEN, weight_std=relative_std / HIDDEN**0.5, **options)
    if means != "torch.nn":
        with torch.no_grad():
            network.weight_ih_l0.normal_(0, 0.8 / MEANS[means] ** 0.5)
            network.weight_hh_l0.normal_(0, 0.8 / HIDDEN**0.5)
    return network, torch.randn(STEPS, SEQUENCES, MEANS[means])


def _step(kind: str, x: Tensor, h: Tensor, c: Tensor, draw: dict[str, Tensor]) -> Any:
    """x (B, I), h and c (draws, B, H) -> the same after one step."""
    w, b = draw["weight_hh_l0"].mT, draw["bias_hh_l0"].unsqueeze(1)
    inputs = x @ draw["weight_ih_l0"].mT + draw["bias_ih_l0"].unsqueeze(1)
    if kind == "RNN":
        return torch.tanh(inputs + h @ w + b), c
    if kind == "LSTM":
        i, f, g, o = (inputs + h @ w + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    n = HIDDEN
    hidden = h @ w + b if kind == "GRU" else h @ w[..., : 2 * n] + b[..., : 2 * n]
    r, z = (inputs[..., : 2 * n] + hidden[..., : 2 * n]).sigmoid().chunk(2, -1)
    if kind == "GRU":
        candidate = torch.tanh(inputs[..., 2 * n :] + r * hidden[..., 2 * n :])
    else:
        reset = (r * h) @ w[..., 2 * n :] + b[..., 2 * n :]
        candidate = torch.tanh(inputs[..., 2 * n :] + reset)
    return (1 - z) * candidate + z * h, c


@torch.no_grad()
def truth(kind: str, network: Any, x: Tensor, draws: int, at_once: int = 100) -> Tensor:
    """(T, B, units): the variance over drawn networks"""
    weights = {name: weight.moments() for name, weight in network.weights().items()}
    first = second = 0.0
    for _ in range(draws // at_once):
        draw = {
            name: m.mean + m.std * torch.randn(at_once, *m.shape) for name, m in weights.items()
        }
        h = c = torch.zeros(at_once, x.shape[1], HIDDEN)
        states = []
        for x_t in x:
            h, c = _step(kind, x_t, h, c, draw)
            states.append(h[..., :UNITS].double())
        found = torch.stack(states)
        first, second = first + found.sum(1), second + (found**2).sum(1)
    return (second - first**2 / draws) / (draws - 1)


def by_step(var: Tensor) -> Tensor:
    return var.double().mean((1, 2))


def measure(kind: str, means: str, relative_std: float, seed: int, draws: int) -> dict[str, Any]:
    network, x = make(kind, means, relative_std, seed)
    function: Callable[..., Any] = lambda x: network(x)[0][..., :UNITS]  # noqa: E731
    true = by_step(truth(kind, network, x, draws))
    with torch.no_grad():
        closed = by_step(function(x).var)
    response, parts = spgru.respond(network, x, function=function, batch_dim=1, sources=True)
    first = by_step(response.var - parts["higher order"])
    return {
        "kind": kind, "means": means, "relative_std": relative_std, "seed": seed,
        "closed": (closed / true).tolist(), "first_order": (first / true).tolist(),
        "response": (by_step(response.var) / true).tolist(),
    }  # fmt: skip


def span(runs: list[dict[str, Any]], key: str) -> str:
    values = [value for run in runs for value in run[key]]
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    results, rows = [], []
    for kind in KINDS:
        for means in MEANS:
            for relative_std in RELATIVE_STDS:
                runs = [
                    measure(kind, means, relative_std, seed, arguments.draws)
                    for seed in range(arguments.seeds)
                ]
                results += runs
                spans = [span(runs, key) for key in ("closed", "first_order", "response")]
                rows.append([kind, means, f"{relative_std}", *spans])
                print(" | ".join(rows[-1]), flush=True)
    options = f"--draws {arguments.draws} --seeds {arguments.seeds}"
    header = [
        "network", "means of the weights", "weight sd (relative)", "closed form / truth",
        "first order / truth", "response / truth",
    ]  # fmt: skip
    save("respond", f"python accuracy/respond.py {options}", results)
    publish("docs/mathematics.md", "respond", table(header, rows))


if __name__ == "__main__":
    main()
