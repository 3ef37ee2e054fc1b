"""Forecasts that are read back: closed form, response, that at a consistent gain, drawn networks.

Five series that come with statsmodels. A small GRU with a noise of its own learns the first 70 % of
a series one step ahead, by the evidence lower bound of the closed form, the divergence from the
prior counted a twentieth; then it forecasts 24 steps
from every place of the rest, reading its own forecasts back, noise included. Nothing is fitted to
the intervals; the gain is found on sixteen windows of the training series.

    python accuracy/forecasts.py [--data FOLDER]
    python accuracy/forecasts.py --run blind     # other seeds, and two series more
    python accuracy/forecasts.py --run unseen    # other seeds again, for the gain

The steps and the weight of the prior were chosen with the scores of the first command in view. The
second has networks and series that this choice has not seen, but its scores were in view when it
was decided how the response at a gain treats the mean. The third was run once, after everything.

FOLDER holds the unpacked `statsmodels` package; without it the installed one is used.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from common import publish, save
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.nn.contexts import sampling, shared_weights
from spgru.reporting.markdown import table

CONTEXT, HORIZON, HIDDEN = 36, 24, 16
LEVEL = 0.9
WAYS = "closed", "response", "consistent", "drawn"
GAIN_WINDOWS = 16


# -- series ---------------------------------------------------------------------------------------


def _rows(folder: Path, name: str) -> list[list[str]]:
    with (folder / "datasets" / name / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def el_nino(folder: Path) -> list[float]:
    """Monthly sea surface temperature since 1950."""
    return [float(value) for row in _rows(folder, "elnino") for value in row[1:]]


def sunspots(folder: Path) -> list[float]:
    """Square root of the yearly number since 1700."""
    return [math.sqrt(float(row[1])) for row in _rows(folder, "sunspots")]


def co2(folder: Path) -> list[float]:
    """Change of the monthly mean since 1958."""
    months: dict[str, list[float]] = {}
    for date, value in _rows(folder, "co2"):
        if value:
            months.setdefault(date[:6], []).append(float(value))
    means = [sum(values) / len(values) for _, values in sorted(months.items())]
    return [after - before for before, after in pairwise(means)]


def equipment(folder: Path) -> list[float]:
    """Change of the logarithm of monthly turnover in electrical equipment since 1995."""
    logs = [math.log(float(row[1])) for row in _rows(folder, "elec_equip")]
    return [after - before for before, after in pairwise(logs)]


def unemployment(folder: Path) -> list[float]:
    """Quarterly rate in the United States since 1959."""
    return [float(row[10]) for row in _rows(folder, "macrodata")]


def interest(folder: Path) -> list[float]:
    """Quarterly rate of treasury bills in the United States since 1959."""
    return [float(row[9]) for row in _rows(folder, "macrodata")]


def inflation(folder: Path) -> list[float]:
    """Quarterly rate in the United States since 1959."""
    return [float(row[12]) for row in _rows(folder, "macrodata")]


SERIES: dict[str, Callable[[Path], list[float]]] = {
    "El Niño": el_nino,
    "sunspots": sunspots,
    "CO₂": co2,
    "electrical equipment": equipment,
    "unemployment": unemployment,
}
BLIND: dict[str, Callable[[Path], list[float]]] = {
    **SERIES,
    "treasury bills": interest,
    "inflation": inflation,
}
"""With two series that the steps and the weight of the prior were not chosen on."""
RUNS = {
    "named": ("forecasts", 0, SERIES),
    "blind": ("forecasts_blind", 100, BLIND),
    "unseen": ("forecasts_unseen", 300, BLIND),
}
"""Name of the results, first seed, series"""


# -- the network ----------------------------------------------------------------------------------


class Forecaster(nn.Module):
    """The next value, and the ones after by reading its own forecasts back."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = spgru.GRU(1, HIDDEN, batch_first=True)
        self.head = spgru.Linear(HIDDEN, 1)
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def read(self, hidden: Moments) -> Moments:
        y = self.head(hidden)
        return Moments(y.mean, y.var + self.log_noise.exp())

    def one_step(self, x: Tensor) -> Moments:
        """(B, T, 1) -> the value after each"""
        return self.read(self.gru(x)[0])

    def forward(self, x: Tensor) -> Moments:
        """(B, T, 1) -> (B, HORIZON)"""
        output, state = self.gru(x)
        forecasts = [self.read(output[:, -1])]
        with shared_weights(self):
            for _ in range(HORIZON - 1):
                hidden, state = self.gru.step(forecasts[-1], state)
                forecasts.append(self.read(hidden))
        return spgru.cat(forecasts, 1)


def train(series: Tensor, seed: int, steps: int, prior_weight: float) -> Forecaster:
    torch.manual_seed(seed)
    model, prior = Forecaster(), spgru.Prior("gaussian", std=1.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    windows = series.unfold(0, CONTEXT + 1, 1).unsqueeze(-1)
    for _ in range(steps):
        batch = windows[torch.randint(len(windows), (32,))]
        likelihood = model.one_step(batch[:, :-1]).log_prob(batch[:, 1:]).mean()
        loss = prior_weight * spgru.kl_divergence(model, prior) / len(series) - likelihood
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def drawn(model: Forecaster, x: Tensor, draws: int) -> Moments:
    """Moments over drawn networks, each with drawn noise in what it reads back."""
    generator = torch.Generator().manual_seed(0)
    means = []
    for _ in range(draws):
        with sampling(model, generator):
            means.append(model(x).mean)
    found = torch.stack(means)
    return Moments(found.mean(0), found.var(0) + model.log_noise.exp())


def scores(forecast: Moments, y: Tensor, true: Moments) -> dict[str, Any]:
    """Coverage of the central interval and negative log likelihood, by horizon.

    Args:
        true: of drawn networks, from whose variance that of a forecast differs by "log_error", the
            root mean square of the logarithm of their ratio
    """
    width = NormalDist().inv_cdf((1 + LEVEL) / 2)
    inside = ((y - forecast.mean).abs() <= width * forecast.std).double()
    return {
        "coverage": inside.mean(0).tolist(),
        "nll": (-forecast.log_prob(y)).double().mean(0).tolist(),
        "std": forecast.std.mean(0).tolist(),
        "log_error": (forecast.var / true.var).log().square().mean().sqrt().item(),
    }


def measure(
    name: str, folder: Path, seed: int, steps: int, prior_weight: float, draws: int
) -> dict[str, Any]:
    values = torch.tensor(BLIND[name](folder))
    split = int(0.7 * len(values))
    values = (values - values[:split].mean()) / values[:split].std()
    model = train(values[:split], seed, steps, prior_weight)
    # Forecasts are of the rest alone; what they start from may lie before.
    windows = values[split - CONTEXT :].unfold(0, CONTEXT + HORIZON, 1)
    x, y = windows[:, :CONTEXT].unsqueeze(-1), windows[:, CONTEXT:]
    with torch.no_grad():
        closed = model(x)
    response, true = spgru.respond(model, x), drawn(model, x, draws)
    familiar = values[:split].unfold(0, CONTEXT, 1).unsqueeze(-1)
    chosen = torch.randperm(len(familiar), generator=torch.Generator().manual_seed(seed))
    gain = spgru.consistent_gain(model, familiar[chosen[:GAIN_WINDOWS]])
    found = {
        "closed": closed, "response": response,
        "consistent": spgru.respond(model, x, gain=gain), "drawn": true,
    }  # fmt: skip
    return {
        "series": name, "seed": seed, "values": len(values), "windows": len(windows), "gain": gain,
        **{way: scores(forecast, y, true) for way, forecast in found.items()},
    }  # fmt: skip


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _error(runs: list[dict[str, Any]], way: str) -> str:
    """How far from drawn networks; their own is 0."""
    return "" if way == "drawn" else f", {_mean([run[way]['log_error'] for run in runs]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the unpacked statsmodels package")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--run", choices=RUNS, default="named", help="which seeds and series")
    parser.add_argument("--steps", type=int, default=800, help="of training")
    parser.add_argument(
        "--prior-weight", type=float, default=0.05, help="of the divergence from the prior"
    )
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    folder = arguments.data
    if folder is None:
        found = importlib.util.find_spec("statsmodels")
        if found is None or found.origin is None:
            raise SystemExit("statsmodels is not installed; unpack its wheel and pass --data")
        folder = Path(found.origin).parent
    results, rows = [], []
    file, first, series = RUNS[arguments.run]
    for name in series:
        start, runs = time.perf_counter(), []
        for seed in range(first, first + arguments.seeds):
            how = arguments.steps, arguments.prior_weight, arguments.draws
            runs.append(measure(name, folder, seed, *how))
        results += runs
        row = [name]
        for way in WAYS:
            coverage = [_mean(run[way]["coverage"]) for run in runs]
            nll = [_mean(run[way]["nll"]) for run in runs]
            row.append(
                f"{_mean(coverage):.2f} ({min(coverage):.2f} to {max(coverage):.2f}), "
                f"{_mean(nll):.2f}" + _error(runs, way)
            )
        row.insert(3, ", ".join(f"{run['gain']:.1f}" for run in runs))
        rows.append(row)
        print(" | ".join(row), f"{time.perf_counter() - start:.0f} s", flush=True)
    mean = ["mean"]
    for way in WAYS:
        parts = [_mean([_mean(run[way][key]) for run in results]) for key in ("coverage", "nll")]
        mean.append(f"{parts[0]:.2f}, {parts[1]:.2f}" + _error(results, way))
    mean.insert(3, "")
    rows.append(mean)
    print(" | ".join(mean))
    options = (
        f"--run {arguments.run} --seeds {arguments.seeds} --steps {arguments.steps} "
        f"--prior-weight {arguments.prior_weight} --draws {arguments.draws}"
    )
    save(file, f"python accuracy/forecasts.py {options}", results)
    header = ["series", "closed form", "response", "gains", "response at these gains"]
    header.append(f"{arguments.draws} drawn networks")
    publish("docs/mathematics.md", file, table(header, rows))


if __name__ == "__main__":
    main()
