"""Forward tangents (`spgru.Stream`) against the response that they estimate, and what a step costs.

A random GRU with few inputs, where the closed form has half of the variance (H=64, T=40, 8
sequences, 8 of its units; as in respond.py); a trained forecaster of 16 units with noise of its own
that reads 48 values, one step ahead, of which the noise is left out since it is exact; and the same
one when it reads 24 values and then its own 24 forecasts. Directions are learned from other
sequences than those of the test. Error: of the logarithm of estimated over exact first order,
entry by entry; the exact one is that of `spgru.respond` without higher orders.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from common import publish, save
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.nn.contexts import sampling
from spgru.reporting.markdown import table

UNITS, CONTEXT, HORIZON = 8, 24, 24
DIRECTIONS = ((4, 0), (12, 0), (48, 0), (4, 8), (8, 16), (16, 32))
SHAPES = ("tangents", "closed")
COSTS = ((16, 1), (16, 32), (64, 1), (64, 32), (256, 1), (256, 32))


class Layer(nn.Module):
    """A few units of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(2, 64, weight_std=0.1 / 8)
        with torch.no_grad():
            self.gru.weight_ih_l0.normal_(0, 0.8 / math.sqrt(2))
            self.gru.weight_hh_l0.normal_(0, 0.1)

    def step(self, x_t: Any, state: Any = None) -> Any:
        output, state = self.gru.step(x_t, state)
        return output[..., :UNITS], state

    def forward(self, x: Any) -> Moments:
        return self.gru(x)[0][..., :UNITS]


class Forecaster(nn.Module):
    """x_t is a value and 1, or 0 and 0 for the network's own last forecast in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, 16)
        self.head = spgru.Linear(16, 1)
        self.log_noise = nn.Parameter(torch.tensor(-3.0))

    def step(self, x_t: Tensor, state: Any = None) -> Any:
        hidden, last = (None, None) if state is None else state
        value, known = x_t.split(1, -1)
        x = value if last is None else last * (1 - known) + value * known
        output, hidden = self.gru.step(x, hidden)
        y = self.head(output)
        y = Moments(y.mean, y.var + self.log_noise.exp())
        return y, (hidden, y)

    def forward(self, x: Tensor) -> Moments:
        state, outputs = None, []
        for x_t in x:
            y, state = self.step(x_t, state)
            outputs.append(y)
        return spgru.stack(outputs)


def series(count: int, steps: int) -> Tensor:
    """(steps, count): two waves of random phase and period, and noise"""
    t = torch.arange(steps).unsqueeze(1)
    periods, phases = 8 + 12 * torch.rand(2, count), 2 * math.pi * torch.rand(2, count)
    waves = torch.sin(2 * math.pi * t.unsqueeze(1) / periods + phases).sum(1)
    return 0.7 * waves + 0.1 * torch.randn(steps, count)


def given(values: Tensor, count: int) -> Tensor:
    """(T, B) -> what a forecaster reads: the first values, then nothing"""
    known = (torch.arange(len(values)) < count).float().unsqueeze(1).expand_as(values)
    return torch.stack([values * known, known], -1)


def trained(seed: int) -> Forecaster:
    torch.manual_seed(seed)
    model, values = Forecaster(), series(256, CONTEXT + HORIZON + 1)
    prior = spgru.Prior("gaussian", std=1.0)
    optimizer = torch.optim.Adam(spgru.parameter_groups(model), lr=0.01)
    for _ in range(400):
        batch = values[:, torch.randperm(256)[:64]]
        output, _ = model.gru(batch[:-1].unsqueeze(-1))
        y = model.head(output)
        y = Moments(y.mean, y.var + model.log_noise.exp())
        loss = -y.log_prob(batch[1:].unsqueeze(-1)).mean()
        loss = loss + 0.05 * spgru.kl_divergence(model, prior) / values.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


@torch.no_grad()
def truth(model: nn.Module, x: Tensor, draws: int) -> Tensor:
    """The variance over drawn networks, noise included"""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(draws):
        with sampling(model, generator):
            y = model(x)
        found.append(y.sample(generator=generator) if bool(y.var.any()) else y.mean)
    return torch.stack(found).double().var(0)


def errors(ratio: Tensor) -> dict[str, float]:
    log = ratio.double().log()
    return {"ratio": float(ratio.double().mean()), "error": float(log.square().mean().sqrt())}


def measure(
    name: str, model: nn.Module, x: Tensor, other: Tensor, seeds: int, draws: int, own: float = 0.0
) -> Any:
    """All directions on one network: `x` to measure on, `other` to learn from.

    Args:
        own: noise of every output, which is left out
    """
    response, parts = spgru.respond(model, x, sources=True, batch_dim=1)
    exact = response.var - parts["higher order"]
    late = slice(len(x) // 2, None)
    true = truth(model, x, draws)[late].mean()
    with torch.no_grad():
        closed = model(x).var
    result: dict[str, Any] = {
        "network": name,
        "closed_over_truth": float(closed[late].mean() / true),
        "first_order_over_truth": float(exact[late].mean() / true),
        "response_over_truth": float(response.var[late].mean() / true),
        "closed": errors((closed - own) / (exact - own)), "directions": [],
    }  # fmt: skip
    for count, learned in DIRECTIONS:
        for shape in SHAPES:
            ratios = []
            for seed in range(seeds):
                stream = spgru.Stream(model, count, seed=seed, shape=shape)
                if learned:
                    stream.learn(other, learned)
                ratios.append((stream(x)[0].var - own) / (exact - own))
            found = errors(torch.stack(ratios))
            result["directions"].append(
                {"random": count, "learned": learned, "shape": shape, **found}
            )
            print(name, count, learned, shape, found, flush=True)
    return result


def processor_time(work: Callable[[], Any], rounds: int = 7, calls: int = 10) -> float:
    """Of one call, the least of several rounds, in milliseconds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            work()
        found.append((time.process_time() - start) / calls * 1e3)
    return min(found)


def cost(hidden: int, batch: int) -> dict[str, Any]:
    """Milliseconds of a step of a GRU with 8 inputs: plain, and with directions."""
    gru, x = spgru.GRU(8, hidden), torch.randn(batch, 8)
    with torch.no_grad(), spgru.frozen(gru):
        _, state = gru.step(x)
        plain = processor_time(lambda: gru.step(x, state), calls=50)
    times = {}
    for count in (4, 12, 48):
        stream = spgru.Stream(gru, count)
        _, begun = stream.step(x)
        times[str(count)] = processor_time(lambda: stream.step(x, begun))  # noqa: B023
    print(hidden, batch, plain, times, flush=True)
    return {"hidden": hidden, "batch": batch, "plain": plain, "directions": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--draws", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = Layer()
    limits = arguments.seeds, arguments.draws
    found = [measure("random GRU", layer, torch.randn(40, 8, 2), torch.randn(40, 8, 2), *limits)]
    model = trained(0)
    torch.manual_seed(1)
    steps = CONTEXT + HORIZON
    values = [series(16, steps) for _ in range(2)]
    inputs = [given(part, steps) for part in values]
    noise = float(model.log_noise.exp())
    found.append(measure("one step ahead", model, *inputs, *limits, noise))
    inputs = [given(part, CONTEXT) for part in values]
    found.append(measure("fed back", model, *inputs, *limits))
    costs = [cost(*case) for case in COSTS]
    command = f"python accuracy/tangents.py --seeds {arguments.seeds} --draws {arguments.draws}"
    save("tangents", command, {"accuracy": found, "cost_ms": costs})
    rows = [
        [
            f"{row['random']} random, {row['learned']} learned",
            *(f"{run['directions'][k + j]['error']:.3f}" for run in found for j in range(2)),
        ]
        for k, row in list(enumerate(found[0]["directions"]))[::2]
    ]
    rows.insert(0, ["closed form alone"])
    for run in found:
        rows[0] += [f"{run['closed']['error']:.3f}", ""]
    header = ["directions"]
    for run in found:
        header += [f"{run['network']}: tangents' shape", "mixed shape"]
    publish("docs/mathematics.md", "tangents", table(header, rows))
    header = ["H", "sequences", "plain step, ms", "4 directions", "12", "48"]
    rows = [
        [
            str(row["hidden"]), str(row["batch"]), f"{row['plain']:.2f}",
            *(f"{value / row['plain']:.0f} times" for value in row["directions"].values()),
        ]
        for row in costs
    ]  # fmt: skip
    publish("docs/mathematics.md", "tangents_cost", table(header, rows))


if __name__ == "__main__":
    main()
