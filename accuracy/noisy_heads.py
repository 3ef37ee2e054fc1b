"""Calibrated networks whose noise depends on the input, against drawn networks.

    python accuracy/noisy_heads.py

Small GRUs and LSTMs with a `GaussianHead` learn a walk with noise. Their variance on sequences that
neither training nor fit has seen, over that of drawn networks, noise included.
"""

from __future__ import annotations

import argparse
import copy

import torch
from common import publish, save
from torch import Tensor, nn

import spgru
from spgru import Moments
from spgru.reporting.markdown import table

KINDS = {"GRU": spgru.GRU, "LSTM": spgru.LSTM}
SEEDS, DRAWS, STEPS = 4, 400, 200


class Network(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.recurrent = KINDS[kind](2, 24, weight_std=0.1)
        self.head = spgru.GaussianHead(24, 1)

    def forward(self, x: Tensor) -> Moments:
        result: Moments = self.head(self.recurrent(x)[0])
        return result


def trained(kind: str, x: Tensor) -> Network:
    """On a walk along the first feature, with noise that grows with the second."""
    network = Network(kind)
    y = 0.3 * x[..., :1].cumsum(0) + torch.randn_like(x[..., :1]) * (0.1 + 0.3 * x[..., 1:].abs())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(STEPS):
        loss = spgru.loss(network(x), y, network, data_size=y.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def truth(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """Variance that drawn weights cause, and mean variance of the noise."""
    means, noises = [], []
    for seed in range(DRAWS):
        with spgru.sampling(network, torch.Generator().manual_seed(10_000 + seed)):
            mean, noise = network(x)
        means.append(mean)
        noises.append(noise)
    return torch.stack(means).var(0), torch.stack(noises).mean(0)


@torch.no_grad()
def ratio(network: Network, x: Tensor, true: Tensor) -> float:
    return (network(x).var.sum() / true.sum()).item()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results, rows = [], []
    for kind in KINDS:
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            x = torch.randn(12, 128, 2)
            plain = trained(kind, x)
            x_test = torch.randn(12, 64, 2)
            with torch.no_grad():
                by_weights, noise = truth(plain, x_test)
            true = by_weights + noise
            found = {"plain": ratio(plain, x_test, true)}
            chosen = {}
            for form in ("gains", "auto"):
                network = copy.deepcopy(plain)
                report = spgru.calibrate(network, x[:, :48], form=form, progress=False)
                chosen[form] = report.chosen
                found[form] = ratio(network, x_test, true)
            share = (by_weights.sum() / true.sum()).item()
            results.append(
                {"network": kind, "seed": seed, "by weights": share, "chosen": chosen["auto"]}
                | found
            )
            numbers = [f"{value:.2f}" for value in (share, *found.values())]
            rows.append([kind, str(seed), *numbers, chosen["auto"]])
            print(rows[-1], flush=True)
    header = [
        "network", "seed", "share caused by weights", "closed / true", "gains alone", "chosen form",
        "which is",
    ]  # fmt: skip
    save("noisy_heads", "python accuracy/noisy_heads.py", results)
    publish("docs/mathematics.md", "noisy_heads", table(header, rows))


if __name__ == "__main__":
    main()
